//! The watched jobs: those with new leases are added, those without leases are removed.

use std::collections::BTreeMap;

use gpufrac_core::fraction::Fraction;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_records::evidence::Record;

use super::Daemon;
use super::watched::{JobLeases, WatchedJob};
use crate::judge::watch::{LONGEST_GAP_ROUNDS, Watch};
use crate::key::Key;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

/// The number of samples in a point of a new record's series.
const FIRST_SAMPLES_PER_POINT: u32 = 6;
/// The longest time in seconds from the lease to the start of the job.
const LONGEST_START_S: u64 = 30;

impl Daemon {
    /// Starts to watch jobs with new leases, with their saved state if there is one; stops to watch jobs without
    /// leases.
    pub(super) fn sync_leases(&mut self, leases: Vec<Lease>) {
        let now = self.outside.clock.now();
        self.note_ends(&leases, now);
        self.leases = leases;
        self.meter.sync(&self.leases, now);
        let mut active = active_jobs(&self.leases);
        let mut gone = Vec::new();
        for (job, watched) in &mut self.watched {
            match active.get(job) {
                Some(leases) if watched.update(leases) => drop(active.remove(job)),
                _ => gone.push(*job),
            }
        }
        for job in gone {
            self.forget_job(job, now);
        }
        let first = self.round == 1;
        for (job, leases) in active {
            let watched = self.adopt_job(leases, now);
            self.watched.insert(job, watched);
        }
        if first {
            let tidied = self
                .outside
                .memory
                .tidy(&|job| self.watched.contains_key(&job));
            self.reports
                .report_once(&self.outside.log, Topic::Records, tidied.err());
            if self.node.shared.is_some() {
                let tidied = self.peers.tidy(|job| self.watched.contains_key(&job));
                self.reports
                    .report_once(&self.outside.log, Topic::Shared, tidied.err());
            }
            // The remaining saved watches are those of jobs that ended meanwhile.
            self.state.watches.clear();
        }
    }

    fn adopt_job(&mut self, leases: JobLeases, now: BootTime) -> WatchedJob {
        let lease = &leases.first;
        let key = Key::of(lease);
        let slices = leases.iter().count();
        let mut watches = self.state.watches.iter();
        let known = watches.position(|watch| watch.key == key && watch.slices() == slices);
        let interval = self.node.config.reaper.interval;
        let mut record = None;
        let watch = match known {
            Some(place) => {
                record = self.outside.memory.read(key).unwrap_or_else(|error| {
                    self.outside.log.warning(error);
                    None
                });
                self.state.watches.swap_remove(place)
            }
            None => {
                let mut watch = Watch::new(key, now);
                let age = self.outside.clock.unix_now().abs_diff(lease.created_unix);
                let longest_gap = interval * LONGEST_GAP_ROUNDS;
                let is_old = age > longest_gap.as_secs().max(LONGEST_START_S);
                let known = self.leases_known;
                if is_old || known.is_some_and(|known| now.since(known) > longest_gap) {
                    watch.mark_active(now, "its earlier activity is unknown");
                }
                watch
            }
        };
        let step = interval * FIRST_SAMPLES_PER_POINT;
        let record = record.unwrap_or_else(|| {
            let began_unix = self.outside.clock.unix(watch.began);
            let mut record = Record::new(lease, began_unix, step);
            if slices > 1 && lease.fraction == Fraction::ONE {
                record.fraction = slices.to_string();
            }
            record
        });
        WatchedJob::new(leases, watch, record)
    }

    /// Stops to watch a job that has no lease any more, or other ones.
    fn forget_job(&mut self, job: JobId, now: BootTime) {
        let Some(mut watched) = self.watched.remove(&job) else {
            return;
        };
        watched.record.ended_ms = Some(now.since(watched.watch.began).as_millis() as u64);
        if self.node.shared.is_some() {
            let withdrawn = self.peers.withdraw(job);
            self.reports
                .report_once(&self.outside.log, Topic::Shared, withdrawn.err());
        }
        if !watched.record.events.is_empty() {
            let kept = self.outside.memory.keep(&watched.record, &self.peers);
            self.reports
                .report_once(&self.outside.log, Topic::Records, kept.err());
            self.keep_for_user(&watched.record);
        }
        if let Err(error) = self.outside.memory.end(job) {
            self.outside.log.warning(error);
        }
    }
}

/// The jobs whose leases are all active. A lease that is being made or released says nothing about its job.
fn active_jobs(leases: &[Lease]) -> BTreeMap<JobId, JobLeases> {
    let mut jobs: BTreeMap<JobId, Vec<&Lease>> = BTreeMap::new();
    for lease in leases {
        jobs.entry(lease.job_id).or_default().push(lease);
    }
    let is_active = |lease: &&Lease| lease.state == LeaseState::Active;
    let whole = jobs
        .into_iter()
        .filter(|(_, own)| own.iter().all(is_active));
    let by_number = whole.filter_map(|(job, mut own)| {
        own.sort_unstable_by_key(|lease| lease.number);
        let mut own = own.into_iter().cloned();
        let first = own.next()?;
        let further = own.collect();
        Some((job, JobLeases { first, further }))
    });
    by_number.collect()
}
