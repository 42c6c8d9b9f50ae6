//! All that the daemon knows of a job's leases here.

use std::time::Duration;

use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{Facts, Policy, Reaper};
use slurm_sys::client::JobInfo;

use crate::act::refusal::Refusal;
use crate::clock::BootTime;
use crate::judge::stall::Stalled;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, LONGEST_SUSPECT_GAP_ROUNDS, Watch};
use crate::keep::evidence::Record;
use crate::key::Key;
use crate::measure::sample::{Sample, Source};
use crate::report::metrics::SliceMetrics;

/// All that the daemon knows of a job's leases here: one, or several where each task has a slice.
pub(super) struct WatchedJob {
    /// The first lease. What is the job's own, its user and its wish, is the same in all of them.
    pub(super) lease: Lease,
    /// The others.
    further: Vec<Lease>,
    pub(super) watch: Watch,
    pub(super) record: Record,
    /// What the last look found: a sample of each slice, and what they say of the job.
    samples: Vec<Sample>,
    pub(super) last: Option<Sample>,
    /// What Slurm said of the job when it was last asked.
    pub(super) job: Option<JobInfo>,
    /// The round in which Slurm is asked at the earliest.
    pub(super) next_question: u64,
    /// Why nothing was done although it was due; said once.
    pub(super) refused: Option<Refusal>,
    /// The size of the record when it was last written; None: it is to be written in any case.
    pub(super) written: Option<RecordSize>,
}

/// The leases of a job here, by their numbers.
pub(super) struct JobLeases {
    pub(super) first: Lease,
    pub(super) further: Vec<Lease>,
}

impl JobLeases {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        [&self.first].into_iter().chain(&self.further)
    }
}

/// How much there is to write of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordSize {
    points: usize,
    events: usize,
}

impl RecordSize {
    pub(super) const EMPTY: RecordSize = RecordSize {
        points: 0,
        events: 0,
    };

    pub(super) fn of(record: &Record) -> RecordSize {
        RecordSize {
            points: record.series.points.len(),
            events: record.events.len(),
        }
    }
}

impl WatchedJob {
    /// Of a job that begins to be watched.
    pub(super) fn new(leases: JobLeases, watch: Watch, record: Record) -> WatchedJob {
        WatchedJob {
            lease: leases.first,
            further: leases.further,
            watch,
            record,
            samples: Vec::new(),
            last: None,
            job: None,
            next_question: 0,
            refused: None,
            written: Some(RecordSize::EMPTY),
        }
    }

    /// Its leases, in their order.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        [&self.lease].into_iter().chain(&self.further)
    }

    /// Takes its leases as they were just read; false if they are others than those that are watched.
    pub(super) fn update(&mut self, leases: &JobLeases) -> bool {
        let id = |lease: &Lease| (Key::of(lease), lease.number);
        let is_same = self.leases().map(id).eq(leases.iter().map(id));
        if is_same {
            self.lease.clone_from(&leases.first);
            self.further.clone_from(&leases.further);
        }
        is_same
    }

    /// The policy that holds for the job, as far as Slurm was asked about it.
    pub(super) fn policy<'a>(&self, reaper: &'a Reaper) -> &'a Policy {
        reaper.policy(&facts(&self.lease, self.job.as_ref()))
    }

    /// The stall of the slice by this policy whose window ends first.
    pub(super) fn stalled(&self, policy: &Policy) -> Option<Stalled> {
        self.watch.stalled(policy, self.lease.idle_wish)
    }

    /// Whether the job has other nodes, as far as Slurm was asked.
    pub(super) fn is_on_several_nodes(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.node_count > 1)
    }

    /// Takes in a sample of each slice.
    pub(super) fn take(
        &mut self,
        now: BootTime,
        samples: Vec<Sample>,
        policy: &Policy,
        interval: Duration,
    ) {
        let wish = self.lease.idle_wish;
        let gap = match self.watch.is_suspect(policy, wish, self.watch.sampled) {
            true => LONGEST_SUSPECT_GAP_ROUNDS,
            false => LONGEST_GAP_ROUNDS,
        };
        self.watch.observe(now, &samples, interval * gap);
        let at = now.since(self.watch.began);
        let sample = Sample::of_job(&samples);
        self.record.series.add(at, &sample);
        (self.samples, self.last) = (samples, Some(sample));
    }

    /// What Prometheus reads of the slices.
    pub(super) fn metrics(&self, now: BootTime) -> impl Iterator<Item = SliceMetrics> {
        let leases = self.leases().enumerate();
        leases.map(move |(number, lease)| self.metrics_of(lease, self.samples.get(number), now))
    }

    fn metrics_of(&self, lease: &Lease, last: Option<&Sample>, now: BootTime) -> SliceMetrics {
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
            memory_bytes: last
                .and_then(|sample| sample.memory)
                .map(|memory| memory.0 << 20),
            memory_limit_bytes: lease.slice.memory_mib.0 << 20,
            idle_seconds: now.since(self.watch.last_active).as_secs_f64(),
            source: last.map_or(Source::Missing, |sample| sample.source),
        }
    }
}

/// The data of a job for the choice of its rule.
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
