//! Takes samples of the slices.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};

use super::Daemon;
use super::watched::WatchedJob;
use crate::key::SliceId;
use crate::measure::sample::{Activity, Sample};
use crate::report::errors::Topic;
use crate::rhythm::LookScope;

impl Daemon {
    pub(super) fn look(&mut self, observe: &mut dyn FnMut(LookScope) -> bool) {
        // An instance that is being released must not be queried again after its handle was dropped.
        let ending = self.leases.iter();
        let ending = ending.filter(|lease| lease.state == LeaseState::Releasing);
        let ending: Vec<&str> = ending.map(|lease| lease.slice.gpu_uuid.as_str()).collect();
        let seen = |lease: &&Lease| {
            lease.slice.mig().is_none() || !ending.contains(&lease.slice.gpu_uuid.as_str())
        };
        let leases: Vec<&Lease> = self.watched.values().flat_map(WatchedJob::leases).collect();
        let all = leases.len();
        let leases: Vec<&Lease> = leases.into_iter().filter(seen).collect();
        let scope = if leases.len() == all { LookScope::All } else { LookScope::OtherGpus };
        let reaper = &self.node.config.reaper;
        let policy = |lease: &Lease| {
            let watched = self.watched.get(&lease.job_id);
            watched.map_or(&reaper.general, |watched| watched.policy(reaper))
        };
        let mut look =
            self.outside
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
        for watched in self.watched.values_mut() {
            let ids = watched.leases().map(SliceId::of);
            let samples: Option<Vec<Sample>> = ids.map(|id| look.samples.remove(&id)).collect();
            // A slice without a sample may be the busiest.
            let Some(samples) = samples else {
                continue;
            };
            let unknown = |sample: &&Sample| matches!(sample.activity, Activity::Unknown(_));
            self.state.totals.unknown_samples += samples.iter().filter(unknown).count() as u64;
            let policy = watched.policy(reaper);
            watched.take(now, samples, policy, reaper.interval);
        }
        self.count_use(now, &look.energy);
    }

    /// Takes another sample of the slices of a job before it ends, in the shortest time in which activity can be
    /// measured.
    pub(super) fn look_again(&mut self, job: JobId) {
        let Some(watched) = self.watched.get(&job) else {
            return;
        };
        let policy = self.policy(watched).clone();
        let leases: Vec<&Lease> = watched.leases().collect();
        let on_their_gpu = |other: &&Lease| {
            let mut own = leases.iter();
            own.any(|own| own.slice.gpu_uuid == other.slice.gpu_uuid)
        };
        let neighbours = self.watched.values().flat_map(WatchedJob::leases);
        let neighbours: Vec<&Lease> = neighbours.filter(on_their_gpu).collect();
        let samples = self
            .outside
            .sampler
            .look_at(&self.node, &leases, &neighbours, &policy);
        let interval = self.node.config.reaper.interval;
        let now = self.outside.clock.now();
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.take(now, samples, &policy, interval);
        }
    }
}
