//! The rounds of the daemon: read the leases, take samples, judge, act, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{Mode, Policy};
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::FileError;
use gpufrac_node::node::Node;
use gpufrac_node::state::stuck::Stuck;
use gpufrac_records::usage::{GpuTime, Tallies};

use self::ends::EndedSlice;
use self::watched::{RecordSize, WatchedJob};
use crate::act::mail_queue::MailQueue;
use crate::act::overdue::Cleanup;
use crate::judge::breaker::Breakers;
use crate::judge::peers::{PeerError, Peers};
use crate::keep::meter::Meter;
use crate::keep::state::State;
use crate::key::SliceId;
use crate::outside::Outside;
use crate::report::errors::{ErrorReports, Topic};
use crate::report::metrics::{PoolMetrics, Snapshot, lost_units};
use crate::rhythm::{self, LookScope, Rhythm};
use gpufrac_node::clock::BootTime;

mod books;
mod breakers;
mod carry_out;
mod decide;
mod ends;
mod jobs;
mod leases;
mod lend;
mod look;
mod parts;
mod private;
mod reap;
mod status;
mod steps;
mod tell;
mod watched;

/// Rounds between two clean-ups.
const ROUNDS_BETWEEN_CLEANUPS: u64 = 6;
/// Rounds between two removals of old records.
const ROUNDS_BETWEEN_PURGES: u64 = 360;

/// The daemon without its loop.
pub struct Daemon {
    node: Node,
    /// `Config::sum` of the node's configuration.
    config_sum: String,
    outside: Outside,
    peers: Peers,
    mail_queue: MailQueue,
    state: State,
    /// The jobs with active leases.
    watched: BTreeMap<JobId, WatchedJob>,
    /// All leases of the node.
    leases: Vec<Lease>,
    /// When the leases were last read without an error.
    leases_known: Option<BootTime>,
    /// How the slices are used.
    meter: Meter,
    /// The GPUs of pools, whose time is not recorded yet.
    gpus: Vec<GpuTime>,
    /// Slices that ended, of which Slurm is to be asked.
    ended: Vec<EndedSlice>,
    /// The round from which on Slurm is asked about them.
    next_question_of_ends: u64,
    breakers: Breakers,
    snapshot: Arc<Mutex<Snapshot>>,
    round: u64,
    cleanup: Cleanup,
    reports: ErrorReports,
    /// Where HAMi-core's limit is lifted.
    lifted: BTreeSet<SliceId>,
    /// Slurm's `PrivateData`; None while it is not known.
    private: Option<PrivateData>,
    /// The leases that were copied for their users.
    copied: Option<Vec<Lease>>,
    /// The pools at the end of the last round.
    pools: Vec<PoolMetrics>,
    /// The places that were stuck then.
    stuck: Vec<Stuck>,
}

impl Daemon {
    /// Starts with the state that an earlier run of the daemon saved.
    ///
    /// # Errors
    /// The saved state cannot be read.
    pub fn start(
        node: Node,
        outside: Outside,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> Result<Daemon, FileError> {
        let (state, unusable) = outside.memory.load()?;
        if let Some(why) = unusable {
            outside.log.warning(format!(
                "reading the saved state failed: {why}; every slice counts as active now"
            ));
        }
        let now = outside.clock.now();
        let tallies = outside.books.resume().unwrap_or_else(|error| {
            outside.log.warning(error);
            Tallies::default()
        });
        let mut daemon = Daemon {
            peers: Peers::new(node.shared.as_deref(), &node.name),
            mail_queue: MailQueue::new(),
            watched: BTreeMap::new(),
            leases: Vec::new(),
            leases_known: None,
            meter: Meter::resume(tallies, now),
            gpus: Vec::new(),
            ended: Vec::new(),
            next_question_of_ends: 0,
            breakers: Breakers::default(),
            round: 0,
            cleanup: Cleanup::default(),
            reports: ErrorReports::default(),
            lifted: BTreeSet::new(),
            private: None,
            copied: None,
            pools: Vec::new(),
            stuck: Vec::new(),
            config_sum: node.config.sum(),
            node,
            outside,
            state,
            snapshot,
        };
        daemon.take_up_books();
        Ok(daemon)
    }

    /// Takes a new configuration; windows, warnings and history stay.
    pub fn reload(&mut self, node: Node) {
        self.peers = Peers::new(node.shared.as_deref(), &node.name);
        self.outside.sampler.reload(&node);
        self.config_sum = node.config.sum();
        self.node = node;
        for watched in self.watched.values_mut() {
            watched.refused = None;
        }
    }

    /// The rhythm of the next round. A slice that has been stalled for half of its window is observed without gaps.
    pub fn rhythm(&self) -> Rhythm {
        let interval = self.node.config.reaper.interval;
        let now = self.outside.clock.now();
        let mut watched = self.watched.values();
        let suspect = watched.any(|watched| {
            let policy = self.policy(watched);
            policy.mode != Mode::Off
                && watched
                    .watch
                    .is_suspect(policy, watched.lease.idle_wish, now)
        });
        Rhythm::new(interval, suspect)
    }

    /// One round. `changed`: whether leases may have changed since the last round. `observe` waits while activity is
    /// measured, as long as the [`LookScope`] allows, and returns whether the time was long enough for a measurement.
    pub fn round(&mut self, changed: bool, mut observe: impl FnMut(LookScope) -> bool) {
        self.round += 1;
        self.state.totals.rounds += 1;
        self.follow_private_data();
        // inotify can lose events, so leases are also read at intervals; and again after an error.
        let read = changed
            || self.reports.has_error(Topic::Leases)
            || self.round % ROUNDS_BETWEEN_CLEANUPS == 1;
        match read.then(|| self.outside.slices.list(&self.node)) {
            None => {}
            Some(Ok(leases)) => self.sync_leases(leases),
            Some(Err(error)) => {
                // The job of a damaged lease is not known, so nothing is decided.
                self.reports
                    .report_once(&self.outside.log, Topic::Leases, Some(error));
                return self.publish();
            }
        }
        self.leases_known = Some(self.outside.clock.now());
        self.copy_leases();
        self.reports
            .report_once(&self.outside.log, Topic::Leases, None::<String>);
        self.learn_ends(self.outside.clock.now());
        self.look(&mut observe);
        let now = self.outside.clock.now();
        self.lend(now);
        self.ask_about_suspects(now);
        self.reap(now);
        self.end_kept();
        if self.round % ROUNDS_BETWEEN_CLEANUPS == 1 {
            self.cleanup.run(
                &self.outside,
                &self.node,
                &self.leases,
                self.round,
                &mut self.reports,
            );
        }
        if self.round % ROUNDS_BETWEEN_PURGES == 1 {
            let keep = self.node.config.reaper.keep;
            let now_unix = self.outside.clock.unix_now();
            let purged = self
                .outside
                .memory
                .purge(keep, now_unix, &self.node.name, &self.peers)
                .and(self.purge_own(keep).map_err(PeerError::from));
            self.reports
                .report_once(&self.outside.log, Topic::Purge, purged.err());
        }
        self.show();
        self.publish();
        self.save();
        self.save_books();
    }

    fn end_kept(&mut self) {
        let Outside { slices, log, .. } = &self.outside;
        let ended = slices.end_kept(&self.node, &self.leases, log);
        self.reports.report_once(log, Topic::Kept, ended.err());
    }

    /// Saves the state; the daemon ends.
    pub fn stop(&mut self) {
        self.lend_nothing();
        for watched in self.watched.values_mut() {
            watched.written = None;
        }
        self.save();
        self.close_gpus();
        self.save_running();
        self.ship_records();
        self.mail_queue.finish();
    }

    fn policy(&self, watched: &WatchedJob) -> &Policy {
        watched.policy(&self.node.config.reaper)
    }

    /// Whether the work since `began` takes so long that the next samples must not wait for the rest of it.
    fn is_late(&self, began: BootTime) -> bool {
        rhythm::is_late(
            self.outside.clock.as_ref(),
            began,
            self.node.config.reaper.interval,
        )
    }

    fn publish(&mut self) {
        self.state.totals.mail_errors += self.mail_queue.failed();
        self.state.totals.jobs_put_back += self.outside.put_back.swap(0, Ordering::Relaxed);
        let now = self.outside.clock.now();
        let slices = self
            .watched
            .values()
            .flat_map(|watched| watched.metrics(now));
        let snapshot = Snapshot {
            slices: slices.collect(),
            totals: self.state.totals.clone(),
            node_breaker: self.breakers.node,
            cluster_breaker: self.breakers.cluster,
            unleased_instances: self.cleanup.unleased(),
            overdue_leases: self.cleanup.overdue(),
            stuck_places: self.stuck.len() as u32,
            stuck_units: lost_units(&self.stuck, &self.pools),
            pools: self.pools.clone(),
            hides_jobs: self.hides_jobs(),
            strangers: self.cleanup.strangers(),
        };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    fn save(&mut self) {
        let watches = self.watched.values().map(|watched| watched.watch.clone());
        self.state.watches = watches.collect();
        let saved = self.outside.memory.save(&self.state);
        self.reports
            .report_once(&self.outside.log, Topic::State, saved.err());
        let mut copied = None;
        let jobs: Vec<JobId> = self.watched.keys().copied().collect();
        for job in jobs {
            let Some(watched) = self.watched.get(&job) else {
                continue;
            };
            let size = Some(RecordSize::of(&watched.record));
            if size == watched.written {
                continue;
            }
            if let Err(error) = self.outside.memory.write(&watched.record) {
                self.outside.log.warning(error);
                continue;
            }
            let copy = self.copy_record(&watched.record);
            if copy.is_ok()
                && let Some(watched) = self.watched.get_mut(&job)
            {
                watched.written = size;
            }
            copied = Some(copied.unwrap_or(Ok(())).and(copy));
        }
        if let Some(copied) = copied {
            self.reports
                .report_once(&self.outside.log, Topic::OwnRecords, copied.err());
        }
    }
}
