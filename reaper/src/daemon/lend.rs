//! Lends the compute of idle jobs to neighbours that asked for a burst, where HAMi-core limits them.

use std::collections::BTreeSet;

use gpufrac_core::lease::Lease;

use super::Daemon;
use crate::judge::lend;
use crate::key::SliceId;
use crate::outside::Outside;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

impl Daemon {
    /// After each look: a neighbour that was idle in the look before may be busy now.
    pub(super) fn lend(&mut self, now: BootTime) {
        let interval = self.node.config.reaper.interval;
        let is_idle = |lease: &Lease| {
            let watched = self.watched.get(&lease.job_id);
            // Of an earlier look nothing is believed.
            watched.is_some_and(|watched| {
                now.since(watched.watch.sampled) <= interval && watched.was_idle(lease)
            })
        };
        let wanted = lend::borrowers(&self.leases, is_idle);
        let wanted = wanted.map(|(lease, limited)| (lease.clone(), limited));
        self.set_limits(wanted.collect());
    }

    /// All limits hold while nobody looks.
    pub(super) fn lend_nothing(&mut self) {
        let all = lend::borrowers(&self.leases, |_| false).map(|(lease, _)| lease.clone());
        self.set_limits(all.map(|lease| (lease, true)).collect());
    }

    fn set_limits(&mut self, wanted: Vec<(Lease, bool)>) {
        let Outside { slices, log, .. } = &self.outside;
        let mut error = None;
        let mut lifted = BTreeSet::new();
        for (lease, limited) in wanted {
            let slice = SliceId::of(&lease);
            // In each round: users can write the file as well.
            let is_lifted = match slices.limit(&self.node, &lease, limited) {
                Ok(has_program) => has_program && !limited,
                Err(failed) => {
                    error = error.or(Some(failed));
                    false
                }
            };
            if is_lifted {
                lifted.insert(slice);
            }
            if is_lifted != self.lifted.contains(&slice) {
                let what =
                    if is_lifted { "lifted, as its neighbours are idle" } else { "in force again" };
                let name = lease.name();
                log.info(format!(
                    "job {name}: HAMi-core's limit of compute is {what}"
                ));
            }
        }
        self.lifted = lifted;
        self.reports.report_once(log, Topic::Burst, error);
    }
}
