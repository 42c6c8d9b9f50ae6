//! Hides what Slurm's `PrivateData` hides, and gives each user what is the user's own.

use std::time::Duration;

use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::FileError;
use gpufrac_node::node::Node;
use gpufrac_node::state::private;
use gpufrac_records::evidence::Record;

use super::{Daemon, ROUNDS_BETWEEN_CLEANUPS};
use crate::keep::own::Own;
use crate::keep::shipping::{self, ShippingError};
use crate::report::errors::Topic;

impl Daemon {
    /// Opens and closes folders as `PrivateData` says now. A change is followed before anything else of the round is
    /// written.
    pub(super) fn follow_private_data(&mut self) {
        let Some(privacy) = &mut self.outside.privacy else {
            return;
        };
        let (learnt, error) = privacy.learn(self.round);
        let log = &self.outside.log;
        let failed = error.is_some();
        self.reports.report_once(log, Topic::Private, error);
        let Some(now) = learnt else {
            return;
        };
        let changed = self.private != Some(now);
        if changed && (self.private.is_some() || now != PrivateData::default()) {
            log.info(format!(
                "Slurm's PrivateData is {now} (of jobs, usage and nodes)"
            ));
        }
        self.private = Some(now);
        self.peers.hide_jobs(now.jobs);
        let mut applied = private::apply(&self.node.run, &self.node.state, now);
        if let Some(shared) = &self.node.shared
            && (changed || self.round % ROUNDS_BETWEEN_CLEANUPS == 1)
        {
            applied = applied.and(private::apply_shared(shared, now));
        }
        if !failed {
            self.reports.report_once(log, Topic::Private, applied.err());
        }
        if changed {
            // The copies are written again.
            self.copied = None;
            for watched in self.watched.values_mut() {
                watched.written = None;
            }
            if now.jobs {
                let copied = Own::of(&self.node).kept();
                self.reports
                    .report_once(log, Topic::OwnRecords, copied.err());
            }
        }
    }

    /// Whether jobs are hidden from other users. While `PrivateData` is not known, what node-setup closed is hidden.
    pub(super) fn hides_jobs(&self) -> bool {
        match self.private {
            Some(private) => private.jobs,
            None => private::hides_jobs(&self.node.run),
        }
    }

    /// The data that is hidden from other users.
    pub(super) fn hidden(&self) -> PrivateData {
        let jobs = self.hides_jobs();
        PrivateData {
            jobs,
            ..self.private.unwrap_or_default()
        }
    }

    /// Copies the leases for their users, if they changed.
    pub(super) fn copy_leases(&mut self) {
        if !self.hides_jobs() || self.copied.as_ref() == Some(&self.leases) {
            return;
        }
        let own = Own::of(&self.node);
        let watched = &self.watched;
        let copied = own
            .leases(&self.leases)
            .and_then(|()| own.ended(&|job| watched.contains_key(&job)));
        self.copied = copied.is_ok().then(|| self.leases.clone());
        self.reports
            .report_once(&self.outside.log, Topic::Own, copied.err());
    }

    /// Copies a record of a running job for its user.
    pub(super) fn copy_record(&self, record: &Record) -> Result<(), FileError> {
        if self.hides_jobs() { Own::of(&self.node).running(record) } else { Ok(()) }
    }

    /// Keeps a record for the job's user beyond the end of the job.
    pub(super) fn keep_for_user(&mut self, record: &Record) {
        if self.hides_jobs() {
            let kept = Own::of(&self.node).keep(record);
            self.reports
                .report_once(&self.outside.log, Topic::OwnRecords, kept.err());
        }
    }

    /// Removes old copies of kept records, also where nothing is hidden any more.
    pub(super) fn purge_own(&self, age: Duration) -> Result<(), FileError> {
        if self.outside.privacy.is_none() {
            return Ok(());
        }
        let now = Duration::from_secs(self.outside.clock.unix_now());
        Own::of(&self.node).purge(now.saturating_sub(age))
    }

    /// Copies usage records for their users.
    pub(super) fn ship_own(&self) -> Result<(), ShippingError> {
        if !self.private.is_some_and(PrivateData::hides_usage) {
            return Ok(());
        }
        let Node { state, shared, .. } = &self.node;
        shipping::all(|| shipping::ship_own(state, shared.as_deref(), &self.node.name))
    }
}
