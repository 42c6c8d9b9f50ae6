//! The state of a watched job.

use std::time::Duration;

use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{Facts, Policy, Reaper};
use gpufrac_records::evidence::{Record, Source};
use slurm_sys::client::JobInfo;

use crate::act::refusal::Refusal;
use crate::judge::stall::Stalled;
use crate::judge::watch::{LONGEST_GAP_ROUNDS, LONGEST_SUSPECT_GAP_ROUNDS, Watch};
use crate::key::Key;
use crate::measure::sample::{Activity, Sample};
use crate::report::metrics::SliceMetrics;
use gpufrac_node::clock::BootTime;

/// The state of a watched job with its leases on this node: one, or several if each task has a slice or the job has
/// several GPUs.
pub(super) struct WatchedJob {
    /// The first lease. Properties of the job, such as its user and its wish, are the same in all leases.
    pub(super) lease: Lease,
    /// The other leases.
    further: Vec<Lease>,
    pub(super) watch: Watch,
    pub(super) record: Record,
    /// The last samples, one for each slice.
    samples: Vec<Sample>,
    pub(super) last: Option<Sample>,
    /// Slurm's last record of the job.
    pub(super) job: Option<JobInfo>,
    /// The first round in which Slurm is asked.
    pub(super) next_question: u64,
    /// The last recorded reason why a due action was not taken.
    pub(super) refused: Option<Refusal>,
    /// The size of the record when it was last written; None if it must be written.
    pub(super) written: Option<RecordSize>,
}

/// The leases of a job on this node, by number.
pub(super) struct JobLeases {
    pub(super) first: Lease,
    pub(super) further: Vec<Lease>,
}

impl JobLeases {
    /// All leases.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        [&self.first].into_iter().chain(&self.further)
    }
}

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
    /// A job that is watched from now on.
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

    /// The leases, in order.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        [&self.lease].into_iter().chain(&self.further)
    }

    /// Takes the leases that were just read; false if they are not the watched ones.
    pub(super) fn update(&mut self, leases: &JobLeases) -> bool {
        let id = |lease: &Lease| (Key::of(lease), lease.number);
        let is_same = self.leases().map(id).eq(leases.iter().map(id));
        if is_same {
            self.lease.clone_from(&leases.first);
            self.further.clone_from(&leases.further);
        }
        is_same
    }

    /// The policy of the job, by Slurm's last record.
    pub(super) fn policy<'a>(&self, reaper: &'a Reaper) -> &'a Policy {
        reaper.policy(&facts(&self.lease, self.job.as_ref()))
    }

    /// The stall of the slice whose window ends first in this policy.
    pub(super) fn stalled(&self, policy: &Policy) -> Option<Stalled> {
        self.watch.stalled(policy, self.lease.idle_wish)
    }

    /// Whether the job has further nodes, by Slurm's last record.
    pub(super) fn is_on_several_nodes(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.node_count > 1)
    }

    /// Adds a sample of each slice.
    pub(super) fn take(
        &mut self,
        now: BootTime,
        samples: Vec<Sample>,
        policy: &Policy,
        interval: Duration,
    ) {
        let wish = self.lease.idle_wish;
        let gap = if self.watch.is_suspect(policy, wish, self.watch.sampled) {
            LONGEST_SUSPECT_GAP_ROUNDS
        } else {
            LONGEST_GAP_ROUNDS
        };
        self.watch.observe(now, &samples, interval * gap);
        let at = now.since(self.watch.began);
        let sample = Sample::of_job(&samples);
        self.record.series.add(at, (&sample).into());
        (self.samples, self.last) = (samples, Some(sample));
    }

    /// Whether the last look found no use of one of its leases.
    pub(super) fn was_idle(&self, lease: &Lease) -> bool {
        let number = self.leases().position(|own| own.is_same(lease));
        let sample = number.and_then(|number| self.samples.get(number));
        sample.is_some_and(|sample| sample.activity == Activity::Idle)
    }

    /// Its slices with their samples of `now`; none where they were not looked at then.
    pub(super) fn sampled(&self, now: BootTime) -> impl Iterator<Item = (&Lease, &Sample)> {
        let is_fresh = self.watch.sampled == now;
        let leases = self.leases().zip(&self.samples);
        leases.filter(move |_| is_fresh)
    }

    /// Its slices with their last samples; none before the first.
    pub(super) fn last_samples(&self) -> impl Iterator<Item = (&Lease, &Sample)> {
        self.leases().zip(&self.samples)
    }

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
