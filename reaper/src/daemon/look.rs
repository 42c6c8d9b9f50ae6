//! Looks at the slices.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};

use super::Daemon;
use crate::measure::sample::Activity;
use crate::report::errors::Topic;
use crate::rhythm::LookScope;

impl Daemon {
    pub(super) fn look(&mut self, observe: &mut dyn FnMut(LookScope) -> bool) {
        // An instance that is about to go must not be looked at again after it was let go of.
        let ending = self.leases.iter();
        let ending = ending.filter(|lease| lease.state == LeaseState::Releasing);
        let ending: Vec<&str> = ending.map(|lease| lease.slice.gpu_uuid.as_str()).collect();
        let seen = |lease: &&Lease| {
            lease.slice.mig().is_none() || !ending.contains(&lease.slice.gpu_uuid.as_str())
        };
        let leases = self.watched.values().map(|watched| &watched.lease);
        let leases: Vec<&Lease> = leases.filter(seen).collect();
        let scope = match leases.len() == self.watched.len() {
            true => LookScope::All,
            false => LookScope::OtherGpus,
        };
        let reaper = &self.node.config.reaper;
        let policy = |lease: &Lease| {
            let watched = self.watched.get(&lease.job_id);
            watched.map_or(&reaper.general, |watched| watched.policy(reaper))
        };
        let look = self
            .outside
            .sampler
            .look(&self.node, &leases, &mut || observe(scope), &policy);
        self.state.totals.driver_errors += look.errors.len() as u64;
        self.reports.report_once(
            &self.outside.log,
            Topic::Driver,
            look.errors.first().cloned(),
        );
        let now = self.outside.clock.now();
        let reaper = &self.node.config.reaper;
        for (job, sample) in look.samples {
            let Some(watched) = self.watched.get_mut(&job) else {
                continue;
            };
            if matches!(sample.activity, Activity::Unknown(_)) {
                self.state.totals.unknown_samples += 1;
            }
            let policy = watched.policy(reaper);
            watched.take(now, sample, policy, reaper.interval);
        }
    }

    /// One more look at a slice whose job is about to end. It takes the time of a shortest look.
    pub(super) fn look_again(&mut self, job: JobId) {
        let Some(watched) = self.watched.get(&job) else {
            return;
        };
        let lease = watched.lease.clone();
        let policy = self.policy(watched).clone();
        let gpu = &lease.slice.gpu_uuid;
        let neighbours = self.watched.values().map(|watched| &watched.lease);
        let neighbours: Vec<&Lease> = neighbours
            .filter(|other| other.slice.gpu_uuid == *gpu)
            .collect();
        let sample = self
            .outside
            .sampler
            .look_at(&self.node, &lease, &neighbours, &policy);
        let interval = self.node.config.reaper.interval;
        let now = self.outside.clock.now();
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.take(now, sample, &policy, interval);
        }
    }
}
