//! One round after the other: leases, samples, judgement, actions, what is reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_core::policy::{Facts, Mode, Policy};
use gpufrac_host::files::FileError;
use gpufrac_node::node::Node;

use crate::act::mail_queue::MailQueue;
use crate::act::overdue::Cleanup;
use crate::act::refusal::Refusal;
use crate::act::slurm::Job;
use crate::clock::BootTime;
use crate::judge::breaker::Breakers;
use crate::judge::escalation::Escalation;
use crate::judge::peers::{LeaseCount, Peers};
use crate::judge::stall::Stalled;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, LONGEST_SUSPECT_GAP_ROUNDS, Watch};
use crate::keep::evidence::{Decision, Event, Record};
use crate::keep::state::State;
use crate::key::Key;
use crate::measure::sample::{Activity, Sample};
use crate::outside::Outside;
use crate::report::errors::{ErrorReports, Topic};
use crate::report::metrics::{SliceMetrics, Snapshot};
use crate::rhythm::{self, LookScope, Rhythm};

/// A point of a record's series is made of so many samples at first.
const FIRST_SAMPLES_PER_POINT: u32 = 6;
/// Rounds between two looks for what other runs left.
const ROUNDS_BETWEEN_CLEANUPS: u64 = 6;
/// Seconds that a prolog may take from the lease to the start of its job.
const LONGEST_START_S: u64 = 30;
/// Rounds between two clearings of old records.
const ROUNDS_BETWEEN_PURGES: u64 = 360;

/// All that the daemon knows of one lease.
pub(crate) struct WatchedLease {
    pub(crate) lease: Lease,
    pub(crate) watch: Watch,
    pub(crate) record: Record,
    pub(crate) last: Option<Sample>,
    /// What Slurm said of the job when it was last asked.
    pub(crate) job: Option<Job>,
    /// The round in which Slurm is asked at the earliest.
    ask_in: u64,
    /// Why nothing was done although it was due; said once.
    pub(crate) refused: Option<Refusal>,
    /// Points and events when the record was last written.
    written: (usize, usize),
}

impl WatchedLease {
    /// Takes in a sample.
    fn take(&mut self, now: BootTime, sample: Sample, policy: &Policy, interval: Duration) {
        let wish = self.lease.idle_wish;
        let gap = match self.watch.is_suspect(policy, wish, self.watch.sampled) {
            true => LONGEST_SUSPECT_GAP_ROUNDS,
            false => LONGEST_GAP_ROUNDS,
        };
        self.watch.observe(now, &sample, interval * gap);
        let at = now.since(self.watch.began);
        self.record.series.add(at, &sample);
        self.last = Some(sample);
    }
}

/// The daemon without its loop.
pub struct Daemon {
    pub(crate) node: Node,
    pub(crate) outside: Outside,
    pub(crate) peers: Peers,
    pub(crate) mail_queue: MailQueue,
    pub(crate) state: State,
    /// The active leases.
    pub(crate) watched: BTreeMap<u32, WatchedLease>,
    /// All of them.
    leases: Vec<Lease>,
    pub(crate) breakers: Breakers,
    snapshot: Arc<Mutex<Snapshot>>,
    round: u64,
    cleanup: Cleanup,
    pub(crate) reports: ErrorReports,
}

impl Daemon {
    /// Takes up what an earlier run left.
    ///
    /// # Errors
    /// The state of before cannot be read.
    pub fn start(
        node: Node,
        outside: Outside,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> Result<Daemon, FileError> {
        let (state, unusable) = outside.memory.load()?;
        if let Some(why) = unusable {
            outside.log.warning(format!(
                "the state of before is not used, as {why}: every slice counts as used now"
            ));
        }
        let daemon = Daemon {
            peers: Peers::new(node.shared.as_deref(), &node.name),
            mail_queue: MailQueue::new(),
            watched: BTreeMap::new(),
            leases: Vec::new(),
            breakers: Breakers::default(),
            round: 0,
            cleanup: Cleanup::default(),
            reports: ErrorReports::default(),
            node,
            outside,
            state,
            snapshot,
        };
        Ok(daemon)
    }

    /// Takes another configuration; windows, warnings and history stay.
    pub fn reload(&mut self, node: Node) {
        self.peers = Peers::new(node.shared.as_deref(), &node.name);
        self.outside.sampler.reload(&node);
        self.node = node;
        for watched in self.watched.values_mut() {
            watched.refused = None;
        }
    }

    /// How the next round is to be. A slice that has been stalled for half of its time is watched without gaps.
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

    /// One round. `changed`: whether leases may have changed since the last one. `observe` waits while activity is
    /// measured, for as long as a [`LookScope`] is worth it, and says whether it was long enough to tell.
    pub fn round(&mut self, changed: bool, mut observe: impl FnMut(LookScope) -> bool) {
        self.round += 1;
        self.state.totals.rounds += 1;
        // Events can be lost, so not by them alone; and what could not be read is read again.
        let read = changed
            || self.reports.has_error(Topic::Leases)
            || self.round % ROUNDS_BETWEEN_CLEANUPS == 1;
        match read.then(|| self.outside.slices.list(&self.node)) {
            None => {}
            Some(Ok(leases)) => self.sync_leases(leases),
            Some(Err(error)) => {
                // Whom a damaged file names is not known: nothing is decided.
                self.reports
                    .report_once(&self.outside.log, Topic::Leases, Some(error));
                return self.publish();
            }
        }
        self.reports
            .report_once(&self.outside.log, Topic::Leases, None::<String>);
        self.look(&mut observe);
        let now = self.outside.clock.now();
        self.ask(now);
        self.reap(now);
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
                .purge(keep, now_unix, &self.node.name, &self.peers);
            self.reports
                .report_once(&self.outside.log, Topic::Purge, purged.err());
        }
        self.publish();
        self.save();
    }

    /// Keeps everything: the daemon ends.
    pub fn stop(&mut self) {
        for watched in self.watched.values_mut() {
            watched.written = (usize::MAX, usize::MAX);
        }
        self.save();
        self.mail_queue.finish();
    }

    pub(crate) fn policy(&self, watched: &WatchedLease) -> &Policy {
        self.node
            .config
            .reaper
            .policy(&facts(&watched.lease, watched.job.as_ref()))
    }

    /// New leases are watched from now on, or taken up from the state of before; those that are gone are done with.
    fn sync_leases(&mut self, leases: Vec<Lease>) {
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
        let keys: HashMap<u32, Key> = active.iter().map(|l| (l.job_id, Key::of(l))).collect();
        let gone: Vec<u32> = self
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
            ask_in: 0,
            refused: None,
            written: (0, 0),
        }
    }

    /// The lease is gone.
    fn forget_lease(&mut self, job: u32, now: BootTime) {
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

    fn look(&mut self, observe: &mut dyn FnMut(LookScope) -> bool) {
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
            reaper.policy(&facts(
                lease,
                watched.and_then(|watched| watched.job.as_ref()),
            ))
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
            let policy = reaper.policy(&facts(&watched.lease, watched.job.as_ref()));
            watched.take(now, sample, policy, reaper.interval);
        }
    }

    /// One more look at a slice whose job is about to end. It takes the time of a shortest look.
    pub(crate) fn look_again(&mut self, job: u32) {
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

    /// Learns of Slurm what rules may need to know of jobs that begin to look stalled. Busy jobs cost it nothing.
    fn ask(&mut self, now: BootTime) {
        let reaper = &self.node.config.reaper;
        let unknown: Vec<u32> = self
            .watched
            .iter()
            .filter(|(_, watched)| watched.job.is_none() && watched.ask_in <= self.round)
            .filter(|(_, watched)| {
                // Any rule may turn out to hold.
                let wish = watched.lease.idle_wish;
                let mut policies = reaper.policies().filter(|policy| policy.mode != Mode::Off);
                policies.any(|policy| watched.watch.is_suspect(policy, wish, now))
            })
            .map(|(job, _)| *job)
            .collect();
        for job in unknown {
            self.fresh(job);
            if self.reports.has_error(Topic::Slurm) || self.is_late(now) {
                // Who does not answer once is not asked for the others now.
                break;
            }
        }
    }

    /// Whether what is done since `began` takes so long that the next look at the slices must not wait for the rest of it.
    pub(crate) fn is_late(&self, began: BootTime) -> bool {
        rhythm::is_late(
            self.outside.clock.as_ref(),
            began,
            self.node.config.reaper.interval,
        )
    }

    /// What Slurm says of a job now; None where it does not answer, or knows no such job.
    pub(crate) fn fresh(&mut self, job: u32) -> Option<Job> {
        let answer = self.outside.slurm.job(job);
        let watched = self.watched.get_mut(&job)?;
        watched.ask_in = self.round + LONGEST_GAP_ROUNDS as u64;
        let (answer, error) = match answer {
            Ok(answer) => (answer, None),
            Err(error) => {
                self.state.totals.slurm_errors += 1;
                (None, Some(error.to_string()))
            }
        };
        if let Some(answer) = &answer {
            watched.job = Some(answer.clone());
        }
        self.reports
            .report_once(&self.outside.log, Topic::Slurm, error);
        answer
    }

    /// What was decided, in the record and in the log.
    pub(crate) fn decide(
        &mut self,
        job: u32,
        decision: Decision,
        stalled: &Stalled,
        policy: &Policy,
        detail: &str,
    ) -> Option<Event> {
        let now = self.outside.clock.now();
        let watched = self.watched.get_mut(&job)?;
        let event = Event {
            at_ms: now.since(watched.watch.began).as_millis() as u64,
            decision,
            dry_run: policy.mode != Mode::On,
            stall: stalled.stall,
            stalled_ms: now.since(stalled.since).as_millis() as u64,
            window_ms: stalled.window.as_millis() as u64,
            rule: policy.name.clone(),
            source: watched
                .last
                .as_ref()
                .map_or(crate::measure::sample::Source::Missing, |sample| {
                    sample.source
                }),
            detail: detail.to_owned(),
        };
        watched.record.events.push(event.clone());
        let record = &watched.record;
        self.outside.log.info(format!(
            "decision={} dry_run={} job={job} user={} account={} partition={} pool={} device={} fraction={} stall={} stalled_s={:.1} window_s={:.1} rule={:?} source={} detail={detail:?}",
            decision.name(),
            event.dry_run,
            record.user,
            record.account.as_deref().unwrap_or("-"),
            record.partition,
            record.pool,
            record.device,
            record.fraction,
            event.stall,
            event.stalled_ms as f64 / 1000.0,
            event.window_ms as f64 / 1000.0,
            event.rule,
            event.source,
        ));
        // At once: the node may go down with its /run.
        let kept = self.outside.memory.keep(record, &self.peers);
        let written = self.outside.memory.write(record);
        let error = kept.err().map(|error| error.to_string());
        let error = error.or(written.err().map(|error| error.to_string()));
        self.reports
            .report_once(&self.outside.log, Topic::Records, error);
        Some(event)
    }

    /// Warnings do not hold any more.
    pub(crate) fn forget_warnings(&mut self, job: u32) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.watch.escalation = Escalation::default();
            watched.refused = None;
        }
    }

    /// The leases here, and those whose jobs are due for a warning or had one.
    pub(crate) fn count(&self, stalled: u32) -> LeaseCount {
        LeaseCount::new(
            self.watched.len() as u32,
            stalled,
            self.state.opened.cluster,
            self.outside.clock.as_ref(),
        )
    }

    fn publish(&mut self) {
        self.state.totals.mail_errors += self.mail_queue.failed();
        let now = self.outside.clock.now();
        let slices = self
            .watched
            .values()
            .map(|watched| slice_metrics(watched, now));
        let snapshot = Snapshot {
            slices: slices.collect(),
            totals: self.state.totals.clone(),
            node_breaker: self.breakers.node,
            cluster_breaker: self.breakers.cluster,
            unleased_instances: self.cleanup.unleased(),
            overdue_leases: self.cleanup.overdue(),
        };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    fn save(&mut self) {
        let watches = self.watched.values().map(|watched| watched.watch.clone());
        self.state.watches = watches.collect();
        let saved = self.outside.memory.save(&self.state);
        self.reports
            .report_once(&self.outside.log, Topic::State, saved.err());
        for watched in self.watched.values_mut() {
            let size = (
                watched.record.series.points.len(),
                watched.record.events.len(),
            );
            if size == watched.written {
                continue;
            }
            match self.outside.memory.write(&watched.record) {
                Ok(()) => watched.written = size,
                Err(error) => self.outside.log.warning(error),
            }
        }
    }
}

/// Jobs with more than one lease.
fn with_several(leases: &[Lease]) -> BTreeSet<u32> {
    let further = leases.iter().filter(|lease| lease.number > 0);
    further.map(|lease| lease.job_id).collect()
}

/// What is known of a job for the choice of its rule.
pub(crate) fn facts<'a>(lease: &'a Lease, job: Option<&'a Job>) -> Facts<'a> {
    Facts {
        pool: Some(&lease.pool),
        partition: Some(&lease.partition),
        account: Some(match (&lease.account, job) {
            (Some(account), _) => account,
            (None, Some(job)) => &job.account,
            (None, None) => "",
        }),
        user: Some(&lease.user),
        qos: job.map(|job| job.qos.as_str()),
        reservation: job.map(|job| job.reservation.as_str()),
        name: job.map(|job| job.name.as_str()),
        interactive: job.map(|job| !job.batch),
    }
}

fn slice_metrics(watched: &WatchedLease, now: BootTime) -> SliceMetrics {
    let lease = &watched.lease;
    let last = watched.last.as_ref();
    SliceMetrics {
        job: lease.job_id,
        user: lease.user.clone(),
        account: lease.account.clone().unwrap_or_default(),
        partition: lease.partition.clone(),
        pool: lease.pool.clone(),
        gpu: lease.slice.gpu_uuid.clone(),
        device: lease.slice.cuda_device().unwrap_or("").to_owned(),
        fraction: f64::from(lease.fraction.numerator()) / f64::from(lease.fraction.denominator()),
        busy_share: last.and_then(|sample| sample.busy_share),
        memory_bytes: last
            .and_then(|sample| sample.memory)
            .map(|memory| memory.0 << 20),
        memory_limit_bytes: lease.slice.memory_mib.0 << 20,
        idle_seconds: now.since(watched.watch.last_active).as_secs_f64(),
        source: last.map_or(crate::measure::sample::Source::Missing, |sample| {
            sample.source
        }),
    }
}
