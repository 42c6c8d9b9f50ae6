//! Which leases are watched: new ones are adopted, those that are gone are forgotten.

use std::collections::{BTreeSet, HashMap};

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};

use super::Daemon;
use super::watched::{RecordSize, WatchedLease};
use crate::clock::BootTime;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, Watch};
use crate::keep::evidence::Record;
use crate::key::Key;
use crate::report::errors::Topic;

/// A point of a record's series is made of so many samples at first.
const FIRST_SAMPLES_PER_POINT: u32 = 6;
/// Seconds that a prolog may take from the lease to the start of its job.
const LONGEST_START_S: u64 = 30;

impl Daemon {
    /// New leases are watched from now on, or taken up from the state of before; those that are gone are done with.
    pub(super) fn sync_leases(&mut self, leases: Vec<Lease>) {
        let now = self.outside.clock.now();
        let (known, several) = (with_several(&self.leases), with_several(&leases));
        for job in several.difference(&known) {
            self.outside.log.info(format!(
                "job {job} has several slices here, one for each task, and is left alone: nobody looks at all of them at once"
            ));
        }
        self.leases = leases;
        let active = self.leases.iter();
        let active = active.filter(|lease| lease.state == LeaseState::Active);
        let judged = active.filter(|lease| !several.contains(&lease.job_id));
        let active: Vec<Lease> = judged.cloned().collect();
        let keys: HashMap<JobId, Key> = active.iter().map(|l| (l.job_id, Key::of(l))).collect();
        let gone: Vec<JobId> = self
            .watched
            .iter()
            .filter(|(job, watched)| keys.get(job) != Some(&watched.watch.key))
            .map(|(job, _)| *job)
            .collect();
        for job in gone {
            self.forget_lease(job, now);
        }
        let first = self.round == 1;
        for lease in active {
            if let Some(known) = self.watched.get_mut(&lease.job_id) {
                known.lease = lease;
                continue;
            }
            let watched = self.adopt_lease(lease, now);
            self.watched.insert(watched.lease.job_id, watched);
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
            // What is left of it is of jobs that ended meanwhile.
            self.state.watches.clear();
        }
    }

    fn adopt_lease(&mut self, lease: Lease, now: BootTime) -> WatchedLease {
        let key = Key::of(&lease);
        let known = self.state.watches.iter().position(|watch| watch.key == key);
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
                if age
                    > (interval * LONGEST_GAP_ROUNDS)
                        .as_secs()
                        .max(LONGEST_START_S)
                {
                    watch.mark_active(now, "what it did before is not known");
                }
                watch
            }
        };
        let step = interval * FIRST_SAMPLES_PER_POINT;
        let record = record.unwrap_or_else(|| {
            let began_unix = self.outside.clock.unix(watch.began);
            Record::new(&lease, began_unix, step)
        });
        WatchedLease {
            lease,
            watch,
            record,
            last: None,
            job: None,
            next_question: 0,
            refused: None,
            written: Some(RecordSize::EMPTY),
        }
    }

    /// The lease is gone.
    fn forget_lease(&mut self, job: JobId, now: BootTime) {
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
        }
        if let Err(error) = self.outside.memory.end(job) {
            self.outside.log.warning(error);
        }
    }
}

/// Jobs with more than one lease.
fn with_several(leases: &[Lease]) -> BTreeSet<JobId> {
    let further = leases.iter().filter(|lease| lease.number > 0);
    further.map(|lease| lease.job_id).collect()
}
