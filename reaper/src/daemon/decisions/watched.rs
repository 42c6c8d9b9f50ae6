//! A watched job: its samples, what Slurm says of it, and the record of decisions about it.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{Facts, Mode, Policy, Reaper, Stall};
use gpufrac_node::clock::BootTime;
use gpufrac_node::slurm_call::{ActionError, SlurmAction, SlurmError};
use gpufrac_records::evidence::{Decision, Event, Record, Source};
use gpufrac_view::Usage;
use slurm_sys::client::JobInfo;

use crate::act::refusal::Refusal;
use crate::judge::escalation::Escalation;
use crate::judge::stall::Stalled;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, LONGEST_SUSPECT_GAP_ROUNDS, Watch};
use crate::key::{Key, SliceId};
use crate::measure::sample::{Activity, Sample};
use crate::report::errors::topic;
use crate::report::metrics::SliceMetrics;
use crate::round::Round;

/// Rounds between two questions about a job without an answer yet.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 6;

/// The state of a watched job with its leases on this node: one, or several if each task has a slice or the job has
/// several GPUs.
pub(super) struct WatchedJob {
    pub(super) leases: JobLeases,
    pub(super) watch: Watch,
    pub(super) record: Record,
    /// The last samples, one for each slice.
    samples: Vec<Sample>,
    pub(super) last: Option<Sample>,
    /// Slurm's last record of the job.
    pub(super) job: Option<JobInfo>,
    /// The first round in which Slurm is asked.
    next_question: u64,
    /// The last recorded reason why a due action was not taken.
    pub(super) refused: Option<Refusal>,
    /// The size of the record when it was last written; None if it must be written.
    pub(super) written: Option<(usize, usize)>,
}

/// The leases of a job on this node, by number.
pub(super) struct JobLeases {
    /// Properties of the job, such as its user and its wish, are the same in all leases.
    pub(super) first: Lease,
    pub(super) further: Vec<Lease>,
}

impl JobLeases {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        [&self.first].into_iter().chain(&self.further)
    }
}

impl WatchedJob {
    pub(super) fn new(leases: JobLeases, watch: Watch, record: Record) -> WatchedJob {
        WatchedJob {
            leases,
            watch,
            record,
            samples: Vec::new(),
            last: None,
            job: None,
            next_question: 0,
            refused: None,
            written: Some((0, 0)),
        }
    }

    /// The leases, in order.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    pub(super) fn slices(&self) -> impl Iterator<Item = SliceId> {
        self.leases().map(SliceId::of)
    }

    /// Whether the leases that were just read are the watched ones.
    pub(super) fn has(&self, leases: &JobLeases) -> bool {
        let id = |lease: &Lease| (Key::of(lease), lease.number);
        self.leases().map(id).eq(leases.iter().map(id))
    }

    /// The policy of the job, by Slurm's last record.
    pub(super) fn policy<'a>(&self, reaper: &'a Reaper) -> &'a Policy {
        reaper.policy(&facts(&self.leases.first, self.job.as_ref()))
    }

    /// The stall of the slice whose window ends first in this policy.
    pub(super) fn stalled(&self, policy: &Policy) -> Option<Stalled> {
        self.watch.stalled(policy, self.leases.first.idle_wish)
    }

    /// Whether the job has further nodes, by Slurm's last record.
    pub(super) fn is_on_several_nodes(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.node_count > 1)
    }

    /// Whether a slice has been stalled for half of its window, so that the job is observed without gaps.
    pub(super) fn is_suspect(&self, policy: &Policy, now: BootTime) -> bool {
        let wish = self.leases.first.idle_wish;
        policy.mode != Mode::Off && self.watch.is_suspect(policy, wish, now)
    }

    /// Adds a sample of each slice.
    pub(super) fn take(&mut self, now: BootTime, samples: Vec<Sample>, reaper: &Reaper) {
        let policy = self.policy(reaper);
        let wish = self.leases.first.idle_wish;
        let gap = if self.watch.is_suspect(policy, wish, self.watch.sampled) {
            LONGEST_SUSPECT_GAP_ROUNDS
        } else {
            LONGEST_GAP_ROUNDS
        };
        self.watch.observe(now, &samples, reaper.interval * gap);
        let at = now.since(self.watch.began);
        let sample = Sample::of_job(&samples);
        self.record.series.add(at, (&sample).into());
        (self.samples, self.last) = (samples, Some(sample));
    }

    /// Whether the last look found no use of one of its leases.
    pub(super) fn was_idle(&self, lease: &Lease) -> bool {
        let mut samples = self.last_samples();
        let sample = samples.find(|(own, _)| own.is_same(lease));
        sample.is_some_and(|(_, sample)| sample.activity == Activity::Idle)
    }

    /// Its slices with their last samples; none before the first.
    pub(super) fn last_samples(&self) -> impl Iterator<Item = (&Lease, &Sample)> {
        self.leases().zip(&self.samples)
    }

    /// Whether Slurm is to be asked, because the job begins to look stalled and rules may depend on the answer. Busy
    /// jobs need no questions.
    pub(super) fn is_unknown(&self, round: &Round, now: BootTime) -> bool {
        // Any rule may match.
        let mut policies = round.settings().policies();
        self.job.is_none()
            && self.next_question <= round.number
            && policies.any(|policy| self.is_suspect(policy, now))
    }

    /// Slurm's current record of the job; None if Slurm does not answer, or knows no such job.
    pub(super) fn ask(&mut self, round: &mut Round) -> Option<JobInfo> {
        let answer = round.outside.slurm.job(self.leases.first.job_id);
        self.next_question = round.number + ROUNDS_BETWEEN_QUESTIONS;
        let answer = round.answer(answer).flatten()?;
        self.job = Some(answer.clone());
        Some(answer)
    }

    /// Carries out an action on this run of the job only.
    pub(super) fn act(
        &self,
        round: &Round,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
        let key = self.watch.key;
        let slurm = &round.outside.slurm;
        slurm.act(key.job_id, key.restart_count, actions)
    }

    /// Writes a decision to the record and to the log.
    pub(super) fn decide(
        &mut self,
        round: &mut Round,
        decision: Decision,
        stalled: &Stalled,
        policy: &Policy,
        detail: &str,
    ) -> Event {
        let now = round.now();
        let source = self.last.as_ref().map(|sample| sample.source);
        let event = Event {
            at_ms: now.since(self.watch.began).as_millis() as u64,
            decision,
            dry_run: policy.mode != Mode::On,
            stall: stalled.stall,
            stalled_ms: now.since(stalled.since).as_millis() as u64,
            window_ms: stalled.window.as_millis() as u64,
            rule: policy.name.clone(),
            source: source.unwrap_or(Source::Missing),
            detail: detail.to_owned(),
        };
        self.record.events.push(event.clone());
        let record = &self.record;
        round.outside.log.info(format!(
            "decision={} dry_run={} job={} user={} account={} partition={} pool={} device={} fraction={} stall={} stalled_s={:.1} window_s={:.1} rule={:?} source={} detail={detail:?}",
            decision.name(),
            event.dry_run,
            self.leases.first.job_id,
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
        // At once, because /run is lost if the node goes down.
        let kept = round.outside.memory.keep(record, &round.peers);
        let written = round.outside.memory.write(record);
        round.report(topic::RECORDS, kept.and(written.map_err(Into::into)));
        event
    }

    /// Cancels the warnings without a record.
    pub(super) fn forget_warnings(&mut self) {
        self.watch.escalation = Escalation::default();
        self.refused = None;
    }

    /// Records once that a due action was not taken.
    pub(super) fn refuse(
        &mut self,
        round: &mut Round,
        stalled: &Stalled,
        policy: &Policy,
        why: Refusal,
    ) {
        if self.refused.as_ref() != Some(&why) {
            let detail = why.to_string();
            self.refused = Some(why);
            self.decide(round, Decision::Refuse, stalled, policy, &detail);
        }
    }

    /// Cancels the warnings and records it.
    pub(super) fn clear(&mut self, round: &mut Round, policy: &Policy, detail: &str) {
        let stall = self.watch.escalation.stall().unwrap_or(Stall::Idle);
        let wish = policy.granted(self.leases.first.idle_wish);
        let stalled = Stalled {
            stall,
            since: self.watch.last_active,
            window: policy.window(stall, wish).unwrap_or_default(),
        };
        self.decide(round, Decision::Clear, &stalled, policy, detail);
        self.forget_warnings();
    }

    /// How its slices were used; none before the first sample.
    pub(super) fn usage(
        &self,
        round: &Round,
        now: BootTime,
    ) -> impl Iterator<Item = ((JobId, u32), Usage)> {
        let policy = self.policy(round.settings());
        // A dry run ends no job.
        let acts = policy.mode == Mode::On;
        let stalled = self.stalled(policy).filter(|_| acts);
        let escalation = &self.watch.escalation;
        let end = stalled.and_then(|stalled| escalation.announced_end(&stalled, policy));
        let ends = end.map(|end| round.outside.clock.unix(end));
        self.last_samples().map(move |(lease, sample)| {
            let usage = Usage {
                activity: sample.busy_share,
                memory_mib: sample.memory.map(|memory| memory.0),
                source: sample.source.name().to_owned(),
                idle: now.since(self.watch.last_active).as_secs(),
                window: stalled.map(|stalled| stalled.window.as_secs()),
                warnings: if acts { escalation.warnings() } else { 0 },
                ends,
            };
            ((lease.job_id, lease.number), usage)
        })
    }

    pub(super) fn metrics(&self, now: BootTime) -> impl Iterator<Item = SliceMetrics> {
        self.leases().enumerate().map(move |(number, lease)| {
            let last = self.samples.get(number);
            let memory = last.and_then(|sample| sample.memory);
            SliceMetrics {
                job: lease.job_id,
                user: lease.user.clone(),
                account: lease.account.clone().unwrap_or_default(),
                partition: lease.partition.clone(),
                pool: lease.pool.clone(),
                gpu: lease.slice.gpu_uuid.clone(),
                device: lease.slice.cuda_device().unwrap_or("").to_owned(),
                fraction: f64::from(lease.fraction.numerator())
                    / f64::from(lease.fraction.denominator()),
                busy_share: last.and_then(|sample| sample.busy_share),
                memory_bytes: memory.map(|memory| memory.0 << 20),
                memory_limit_bytes: lease.slice.memory_mib.0 << 20,
                idle_seconds: now.since(self.watch.last_active).as_secs_f64(),
                source: last.map_or(Source::Missing, |sample| sample.source),
            }
        })
    }
}

/// The properties of a job that select its rule.
fn facts<'a>(lease: &'a Lease, job: Option<&'a JobInfo>) -> Facts<'a> {
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
