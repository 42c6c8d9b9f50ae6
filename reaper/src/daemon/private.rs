//! What is private: hides what Slurm's `PrivateData` hides, and gives each user what is the user's own.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::FileError;
use gpufrac_node::node::Node;
use gpufrac_node::state::private;
use gpufrac_records::evidence::Record;

use super::ROUNDS_BETWEEN_CLEANUPS;
use crate::keep::shipping::{self, ShippingError};
use crate::keep::{own, records};
use crate::report::errors::topic;
use crate::round::Round;

#[derive(Default)]
pub(super) struct PrivateFiles {
    /// Slurm's `PrivateData`; None while it is not known.
    known: Option<PrivateData>,
    /// The leases that were copied for their users.
    leases: Option<Vec<Lease>>,
    /// The sizes of the records that were copied for their users.
    records: BTreeMap<JobId, (usize, usize)>,
}

impl PrivateFiles {
    /// Opens and closes folders as `PrivateData` says now. A change is followed before anything else of the round is
    /// written.
    pub(super) fn follow(&mut self, round: &mut Round) {
        let Some(privacy) = &mut round.outside.privacy else {
            return;
        };
        let (learnt, error) = privacy.learn(round.number);
        let failed = error.is_some();
        round.report(topic::PRIVATE, error.map_or(Ok(()), Err));
        let Some(now) = learnt else {
            return;
        };
        let changed = self.known != Some(now);
        if changed && (self.known.is_some() || now != PrivateData::default()) {
            round.outside.log.info(format!(
                "Slurm's PrivateData is {now} (of jobs, usage and nodes)"
            ));
        }
        self.known = Some(now);
        round.peers.hide_jobs(now.jobs);
        let mut applied = private::apply(&round.node.run, &round.node.state, now);
        if let Some(shared) = &round.node.shared
            && (changed || round.is_each(ROUNDS_BETWEEN_CLEANUPS))
        {
            applied = applied.and(private::apply_shared(shared, now));
        }
        if !failed {
            round.report(topic::PRIVATE, applied);
        }
        if changed {
            self.copy_again();
            if now.jobs {
                let copied = own::kept(&round.node);
                round.report(topic::OWN_RECORDS, copied);
            }
        }
    }

    /// All copies are written again.
    pub(super) fn copy_again(&mut self) {
        self.leases = None;
        self.records.clear();
    }

    /// The data that is hidden from other users. While `PrivateData` is not known, what node-setup closed is hidden.
    pub(super) fn hidden(&self, node: &Node) -> PrivateData {
        self.known.unwrap_or_else(|| PrivateData {
            jobs: private::hides_jobs(&node.run),
            ..PrivateData::default()
        })
    }

    /// Copies the leases for their users, if they changed. `is_here`: whether a job is on the node.
    pub(super) fn copy_leases(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
        is_here: &dyn Fn(JobId) -> bool,
    ) {
        if !self.hidden(&round.node).jobs || self.leases.as_deref() == Some(leases) {
            return;
        }
        let copied = own::leases(&round.node, leases);
        let copied = copied.and_then(|()| own::ended(&round.node, is_here));
        self.leases = copied.is_ok().then(|| leases.to_vec());
        round.report(topic::OWN, copied);
    }

    /// Copies the records of running jobs that grew for their users.
    pub(super) fn copy_records<'a>(
        &mut self,
        round: &mut Round,
        of: impl Iterator<Item = &'a Record>,
    ) {
        if !self.hidden(&round.node).jobs {
            self.records.clear();
            return;
        }
        let before = std::mem::take(&mut self.records);
        let mut outcome = None;
        for record in of {
            let size = records::size(record);
            if size != before.get(&record.job).copied().unwrap_or_default() {
                let copied = own::running(&round.node, record);
                let is_copied = copied.is_ok();
                outcome = Some(outcome.unwrap_or(Ok(())).and(copied));
                if !is_copied {
                    continue;
                }
            }
            self.records.insert(record.job, size);
        }
        if let Some(outcome) = outcome {
            round.report(topic::OWN_RECORDS, outcome);
        }
    }

    /// Keeps records for the jobs' users beyond the end of the jobs.
    pub(super) fn keep<'a>(&self, round: &mut Round, of: impl Iterator<Item = &'a Record>) {
        if !self.hidden(&round.node).jobs {
            return;
        }
        for record in of {
            let kept = own::keep(&round.node, record);
            round.report(topic::OWN_RECORDS, kept);
        }
    }

    /// Removes old copies of kept records, also where nothing is hidden any more.
    pub(super) fn purge(&self, round: &Round, before: Duration) -> Result<(), FileError> {
        match round.outside.privacy {
            Some(_) => own::purge(&round.node, before),
            None => Ok(()),
        }
    }

    /// Copies usage records for their users.
    pub(super) fn ship(&self, node: &Node) -> Result<(), ShippingError> {
        if !self.known.is_some_and(PrivateData::hides_usage) {
            return Ok(());
        }
        let shared = node.shared.as_deref();
        shipping::all(|| shipping::ship_own(&node.state, shared, &node.name))
    }
}
