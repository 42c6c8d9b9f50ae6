//! What decides: the watched jobs, their state on disk, the circuit breakers, and the steps of each escalation.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufrac_core::fraction::Fraction;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::clock::BootTime;
use gpufrac_records::evidence::Record;
use gpufrac_view::Usage;

use self::breakers::Closed;
use self::judge::Due;
use self::unlimited::Unlimited;
use self::watched::{JobLeases, WatchedJob};
use crate::act::mail::Message;
use crate::act::overdue::Cleanup;
use crate::judge::breaker::{Breakers, Count, UserCounts};
use crate::judge::lend;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, Watch};
use crate::keep::records;
use crate::keep::state::State;
use crate::key::{Key, SliceId};
use crate::measure::sample::{Activity, Sample};
use crate::report::errors::topic;
use crate::report::metrics::SliceMetrics;
use crate::rhythm::LookScope;
use crate::round::Round;

mod breakers;
mod judge;
mod steps;
mod unlimited;
mod watched;

/// The number of samples in a point of a new record's series.
const FIRST_SAMPLES_PER_POINT: u32 = 6;
/// The longest time in seconds from the lease to the start of the job.
const LONGEST_START_S: u64 = 30;
/// The period of `reaps_per_hour` in seconds.
const LIMITED_SPAN_S: u64 = 3600;

pub(super) struct Decisions {
    /// The jobs with active leases.
    watched: BTreeMap<JobId, WatchedJob>,
    /// As it was read or last written, except for the times of reclaims.
    state: State,
    breakers: Breakers,
    /// Where HAMi-core's limit is lifted.
    lifted: BTreeSet<SliceId>,
    unlimited: Unlimited,
    pub(super) cleanup: Cleanup,
}

/// The samples of one look.
pub(super) struct Samples<'a> {
    /// The end of the time that they cover.
    pub(super) at: BootTime,
    pub(super) slices: Vec<(&'a Lease, &'a Sample)>,
    /// Energy counters of the GPUs in millijoules, by UUID.
    pub(super) energy: HashMap<String, u64>,
}

/// The due actions of a round.
pub(super) struct Judgement {
    pub(super) due: Vec<Due>,
    /// Whether the breakers let them be carried out.
    pub(super) closed: Closed,
    /// Messages to the admins.
    pub(super) mails: Vec<Message>,
}

/// What people see of the decisions.
pub(super) struct Findings<'a> {
    pub(super) slices: Vec<SliceMetrics>,
    /// By job and number of the slice.
    pub(super) usage: HashMap<(JobId, u32), Usage>,
    pub(super) breakers: Breakers,
    pub(super) cleanup: &'a Cleanup,
}

impl Decisions {
    /// Goes on with the state of an earlier run of the daemon.
    pub(super) fn resume(state: State) -> Decisions {
        Decisions {
            watched: BTreeMap::new(),
            breakers: Breakers {
                last: state.opened,
                ..Breakers::default()
            },
            state,
            lifted: BTreeSet::new(),
            unlimited: Unlimited::default(),
            cleanup: Cleanup::default(),
        }
    }

    /// After a new configuration: what was refused may be allowed now.
    pub(super) fn reload(&mut self) {
        for watched in self.watched.values_mut() {
            watched.refused = None;
        }
    }

    /// Whether a slice has been stalled for half of its window.
    pub(super) fn suspects(&self, round: &Round) -> bool {
        let now = round.now();
        let mut watched = self.watched.values();
        watched.any(|job| job.is_suspect(job.policy(round.settings()), now))
    }

    /// Starts to watch jobs with new leases, with their saved state if there is one; stops to watch jobs without
    /// leases. `known`: when the leases were last read before. Returns the records of jobs that are over.
    pub(super) fn sync(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
        known: Option<BootTime>,
    ) -> Vec<Record> {
        let now = round.now();
        let mut active = active_jobs(leases);
        let mut gone = Vec::new();
        for (job, watched) in &mut self.watched {
            match active.entry(*job) {
                Entry::Occupied(leases) if watched.has(leases.get()) => {
                    watched.leases = leases.remove();
                }
                _ => gone.push(*job),
            }
        }
        let gone = gone.into_iter();
        let over = gone.filter_map(|job| self.forget(round, job, now));
        let over = over.collect();
        for (job, leases) in active {
            let watched = self.adopt(round, leases, now, known);
            self.watched.insert(job, watched);
        }
        if round.number == 1 {
            let is_here = |job| self.watched.contains_key(&job);
            let tidied = round.outside.memory.tidy(&is_here);
            round.report(topic::RECORDS, tidied);
            if round.node.shared.is_some() {
                let tidied = round.peers.tidy(is_here);
                round.report(topic::SHARED, tidied);
            }
            // The remaining saved watches are those of jobs that ended meanwhile.
            self.state.watches.clear();
        }
        over
    }

    fn adopt(
        &mut self,
        round: &Round,
        leases: JobLeases,
        now: BootTime,
        known: Option<BootTime>,
    ) -> WatchedJob {
        let lease = &leases.first;
        let key = Key::of(lease);
        let slices = leases.iter().count();
        let mut watches = self.state.watches.iter();
        let saved = watches.position(|watch| watch.key == key && watch.slices() == slices);
        let interval = round.interval();
        let mut record = None;
        let watch = match saved {
            Some(place) => {
                record = round.outside.memory.read(key).unwrap_or_else(|error| {
                    round.outside.log.warning(error);
                    None
                });
                self.state.watches.swap_remove(place)
            }
            None => {
                let mut watch = Watch::new(key, now);
                let age = round.outside.clock.unix_now().abs_diff(lease.created_unix);
                let longest_gap = interval * LONGEST_GAP_ROUNDS;
                let is_old = age > longest_gap.as_secs().max(LONGEST_START_S);
                if is_old || known.is_some_and(|known| now.since(known) > longest_gap) {
                    watch.mark_active(now, "its earlier activity is unknown");
                }
                watch
            }
        };
        let step = interval * FIRST_SAMPLES_PER_POINT;
        let record = record.unwrap_or_else(|| {
            let began_unix = round.outside.clock.unix(watch.began);
            let mut record = Record::new(lease, began_unix, step);
            if slices > 1 && lease.fraction == Fraction::ONE {
                record.fraction = slices.to_string();
            }
            record
        });
        WatchedJob::new(leases, watch, record)
    }

    /// Stops to watch a job that has no lease any more, or other ones. Keeps its record if it had decisions.
    fn forget(&mut self, round: &mut Round, job: JobId, now: BootTime) -> Option<Record> {
        let watched = self.watched.remove(&job)?;
        let mut record = watched.record;
        record.ended_ms = Some(now.since(watched.watch.began).as_millis() as u64);
        if round.node.shared.is_some() {
            let withdrawn = round.peers.withdraw(job);
            round.report(topic::SHARED, withdrawn);
        }
        if !record.events.is_empty() {
            let kept = round.outside.memory.keep(&record, &round.peers);
            round.report(topic::RECORDS, kept);
        }
        if let Err(error) = round.outside.memory.end(job) {
            round.outside.log.warning(error);
        }
        Some(record)
    }

    pub(super) fn watches(&self, job: JobId) -> bool {
        self.watched.contains_key(&job)
    }

    pub(super) fn sample(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
        observe: &mut dyn FnMut(LookScope) -> bool,
    ) -> Samples<'_> {
        // An instance that is being released must not be queried again after its handle was dropped.
        let ending = leases.iter();
        let ending = ending.filter(|lease| lease.state == LeaseState::Releasing);
        let ending: Vec<&str> = ending.map(|lease| lease.slice.gpu_uuid.as_str()).collect();
        let seen = |lease: &&Lease| {
            lease.slice.mig().is_none() || !ending.contains(&lease.slice.gpu_uuid.as_str())
        };
        let all: Vec<&Lease> = self.watched.values().flat_map(WatchedJob::leases).collect();
        let leases: Vec<&Lease> = all.iter().copied().filter(seen).collect();
        let is_all = leases.len() == all.len();
        let scope = if is_all { LookScope::All } else { LookScope::OtherGpus };
        let reaper = &round.node.config.reaper;
        let policy = |lease: &Lease| {
            let watched = self.watched.get(&lease.job_id);
            watched.map_or(&reaper.general, |watched| watched.policy(reaper))
        };
        let sampler = &mut round.outside.sampler;
        let mut found = sampler.sample_all(&round.node, &leases, &mut || observe(scope), &policy);
        round.totals.driver_errors += found.errors.len() as u64;
        round.report(topic::DRIVER, found.errors.first().map_or(Ok(()), Err));
        let at = round.now();
        for watched in self.watched.values_mut() {
            let ids = watched.slices();
            let samples: Option<Vec<Sample>> = ids.map(|id| found.samples.remove(&id)).collect();
            // A slice without a sample may be the busiest.
            let Some(samples) = samples else {
                continue;
            };
            let unknown = |sample: &&Sample| matches!(sample.activity, Activity::Unknown(_));
            round.totals.unknown_samples += samples.iter().filter(unknown).count() as u64;
            watched.take(at, samples, round.settings());
        }
        let fresh = self.watched.values();
        let fresh = fresh.filter(|watched| watched.watch.sampled == at);
        Samples {
            at,
            slices: fresh.flat_map(WatchedJob::last_samples).collect(),
            energy: found.energy,
        }
    }

    /// Takes another sample of the slices of a job before it ends, in the shortest time in which activity can be
    /// measured.
    fn look_again(&mut self, round: &mut Round, job: JobId) {
        let Some(watched) = self.watched.get(&job) else {
            return;
        };
        let leases: Vec<&Lease> = watched.leases().collect();
        let on_their_gpu = |other: &&Lease| {
            let mut own = leases.iter();
            own.any(|own| own.slice.gpu_uuid == other.slice.gpu_uuid)
        };
        let neighbours = self.watched.values().flat_map(WatchedJob::leases);
        let neighbours: Vec<&Lease> = neighbours.filter(on_their_gpu).collect();
        let policy = watched.policy(&round.node.config.reaper);
        let sampler = &mut round.outside.sampler;
        let samples = sampler.sample_again(&round.node, &leases, &neighbours, policy);
        let now = round.now();
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.take(now, samples, round.settings());
        }
    }

    /// Lends the compute of idle jobs to neighbours that asked for a burst, where HAMi-core limits them. After each
    /// look: a neighbour that was idle in the look before may be busy now.
    pub(super) fn lend(&mut self, round: &mut Round, leases: &[Lease], now: BootTime) {
        let is_idle = |lease: &Lease| {
            let watched = self.watched.get(&lease.job_id);
            // Of an earlier look nothing is believed.
            watched.is_some_and(|watched| {
                now.since(watched.watch.sampled) <= round.interval() && watched.was_idle(lease)
            })
        };
        let wanted = lend::borrowers(leases, is_idle).collect();
        self.set_limits(round, wanted);
    }

    /// Puts all limits in force: nothing is known of the neighbours.
    pub(super) fn lend_nothing(&mut self, round: &mut Round, leases: &[Lease]) {
        let all = lend::borrowers(leases, |_| false).map(|(lease, _)| (lease, true));
        self.set_limits(round, all.collect());
    }

    fn set_limits(&mut self, round: &mut Round, wanted: Vec<(&Lease, bool)>) {
        let mut outcome = Ok(());
        let mut lifted = BTreeSet::new();
        for (lease, limited) in wanted {
            let slice = SliceId::of(lease);
            // In each round: users can write the file as well.
            let has_program = round.outside.slices.limit(&round.node, lease, limited);
            let is_lifted = !limited && *has_program.as_ref().unwrap_or(&false);
            outcome = outcome.and(has_program.map(drop));
            if is_lifted {
                lifted.insert(slice);
            }
            if is_lifted != self.lifted.contains(&slice) {
                let what =
                    if is_lifted { "lifted, as its neighbours are idle" } else { "in force again" };
                let name = lease.name();
                round.outside.log.info(format!(
                    "job {name}: HAMi-core's limit of compute is {what}"
                ));
            }
        }
        self.lifted = lifted;
        round.report(topic::BURST, outcome);
    }

    pub(super) fn judge(&mut self, round: &mut Round, now: BootTime) -> Judgement {
        self.ask_about_suspects(round, now);
        let reaped = &mut self.state.reaped;
        reaped.retain(|at| now.since(*at).as_secs() < LIMITED_SPAN_S);
        let mut due = Vec::new();
        let mut users = UserCounts::default();
        for watched in self.watched.values_mut() {
            due.extend(watched.judge(round, &self.breakers, now));
            // Of a job on several nodes each node counts its own part; only the first node finds a due action.
            let leases = watched.leases().count() as u32;
            let counts = watched.looks_stalled(round.settings(), now);
            let stalled = if counts { leases } else { 0 };
            users.add(watched.leases.first.user_id, Count { leases, stalled });
        }
        let mut mails = Vec::new();
        let closed = self.check_breakers(round, users, now, !due.is_empty(), &mut mails);
        Judgement { due, closed, mails }
    }

    fn ask_about_suspects(&mut self, round: &mut Round, now: BootTime) {
        for watched in self.watched.values_mut() {
            if !watched.is_unknown(round, now) {
                continue;
            }
            watched.ask(round);
            if round.has_error(topic::SLURM) || round.is_late(now) {
                // If Slurm does not answer, it is not asked about the other jobs in this round.
                break;
            }
        }
    }

    pub(super) fn findings(&self, round: &Round) -> Findings<'_> {
        let now = round.now();
        let jobs = self.watched.values();
        Findings {
            slices: jobs.clone().flat_map(|job| job.metrics(now)).collect(),
            usage: jobs.flat_map(|job| job.usage(round, now)).collect(),
            breakers: self.breakers,
            cleanup: &self.cleanup,
        }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.watched.values().map(|watched| &watched.record)
    }

    /// Writes the state, and the records that grew.
    pub(super) fn save(&mut self, round: &mut Round) {
        let watches = self.watched.values().map(|watched| watched.watch.clone());
        self.state.watches = watches.collect();
        self.state.opened = self.breakers.last;
        self.state.totals.clone_from(&round.totals);
        let saved = round.outside.memory.save(&self.state);
        round.report(topic::STATE, saved);
        for watched in self.watched.values_mut() {
            let size = Some(records::size(&watched.record));
            if size == watched.written {
                continue;
            }
            match round.outside.memory.write(&watched.record) {
                Ok(()) => watched.written = size,
                Err(error) => round.outside.log.warning(error),
            }
        }
    }

    /// All limits hold while nobody looks, and all is written.
    pub(super) fn stop(&mut self, round: &mut Round, leases: &[Lease]) {
        self.lend_nothing(round, leases);
        for watched in self.watched.values_mut() {
            watched.written = None;
        }
        self.save(round);
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
