//! What is kept of a job: its samples, and what was decided for which reason. Written while the job
//! runs, kept for days if anything was decided, read by `gpufrac why`.

use std::time::Duration;

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{IdleWish, Stall};
use serde::{Deserialize, Serialize};

use crate::measure::sample::{Activity, Sample, Source};

/// Of the text of a [`Record`].
pub const VERSION: u32 = 1;
/// Points of a series at most; then neighbours become one.
const MOST_POINTS: usize = 256;

/// A job's record on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// Slurm's id of the job.
    pub job: JobId,
    /// How often it had been requeued.
    pub restart_count: u32,
    /// Its user.
    pub user: String,
    /// Its user's id.
    pub uid: UserId,
    /// The account charged.
    pub account: Option<String>,
    /// The partition.
    pub partition: String,
    /// The node.
    pub node: String,
    /// The pool.
    pub pool: String,
    /// Part of the GPU, as a decimal.
    pub fraction: String,
    /// MIG profile or mechanism.
    pub profile: String,
    /// What CUDA calls the device.
    pub device: String,
    /// Memory that the job may use.
    pub memory_mib: u64,
    /// What the user asked for.
    pub wish: IdleWish,
    /// When the lease was written: seconds since 1970.
    pub created_unix: u64,
    /// When the first sample was taken: seconds since 1970. Times below count from here, by a clock that nobody sets.
    pub began_unix: u64,
    /// Activity and memory.
    pub series: Series,
    /// The decisions, oldest first.
    pub events: Vec<Event>,
    /// When the lease was seen to be gone.
    pub ended_ms: Option<u64>,
}

/// Samples, at equal distances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// From one point to the next.
    pub step_ms: u64,
    /// The points, the first at the beginning.
    pub points: Vec<Point>,
}

/// What the samples of one step say together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Samples in it; none while the daemon did not run.
    pub samples: u32,
    /// Of these, how many could not tell.
    pub unknown: u32,
    /// Of these, how many saw use.
    pub busy: u32,
    /// Greatest activity, 0 to 1. Where the source has no figure, 1 for use and 0 for none.
    pub peak: f32,
    /// Greatest memory.
    pub memory_mib: u32,
    /// Of the last sample.
    pub source: Source,
}

impl Point {
    const EMPTY: Point = Point {
        samples: 0,
        unknown: 0,
        busy: 0,
        peak: 0.0,
        memory_mib: 0,
        source: Source::Missing,
    };

    fn of(sample: &Sample) -> Point {
        let busy = sample.activity == Activity::Busy;
        Point {
            samples: 1,
            unknown: u32::from(matches!(sample.activity, Activity::Unknown(_))),
            busy: u32::from(busy),
            peak: sample.busy_share.unwrap_or(if busy { 1.0 } else { 0.0 }) as f32,
            memory_mib: sample.memory.map_or(0, |memory| memory.0 as u32),
            source: sample.source,
        }
    }

    fn and(self, later: Point) -> Point {
        Point {
            samples: self.samples + later.samples,
            unknown: self.unknown + later.unknown,
            busy: self.busy + later.busy,
            peak: self.peak.max(later.peak),
            memory_mib: self.memory_mib.max(later.memory_mib),
            source: if later.samples > 0 {
                later.source
            } else {
                self.source
            },
        }
    }
}

impl Series {
    /// An empty series.
    pub fn new(step: Duration) -> Series {
        Series {
            step_ms: (step.as_millis() as u64).max(1),
            points: Vec::new(),
        }
    }

    /// Adds a sample taken so long after the beginning.
    pub fn add(&mut self, at: Duration, sample: &Sample) {
        let at_ms = at.as_millis() as u64;
        while at_ms / self.step_ms >= MOST_POINTS as u64 {
            self.halve();
        }
        let place = (at_ms / self.step_ms) as usize;
        if self.points.len() <= place {
            self.points.resize(place + 1, Point::EMPTY);
        }
        self.points[place] = self.points[place].and(Point::of(sample));
    }

    fn halve(&mut self) {
        let pairs = self.points.chunks(2);
        let joined = pairs.map(|pair| pair.iter().copied().fold(Point::EMPTY, Point::and));
        self.points = joined.collect();
        self.step_ms *= 2;
    }
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The user was warned.
    Warn,
    /// The batch script got the signal of its policy.
    Signal,
    /// The job went back to the queue.
    Requeue,
    /// The job was cancelled.
    Cancel,
    /// The slice was used again after a warning.
    Clear,
    /// A due action was not carried out; the reason is in the detail.
    Refuse,
}

impl Decision {
    /// The word in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Warn => "warn",
            Decision::Signal => "signal",
            Decision::Requeue => "requeue",
            Decision::Cancel => "cancel",
            Decision::Clear => "clear",
            Decision::Refuse => "refuse",
        }
    }
}

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, after the record's beginning.
    pub at_ms: u64,
    /// What.
    pub decision: Decision,
    /// Whether it was only said, not done.
    pub dry_run: bool,
    /// How the slice was stalled.
    pub stall: Stall,
    /// For how long.
    pub stalled_ms: u64,
    /// The window of the policy.
    pub window_ms: u64,
    /// The rule; empty for the general policy.
    pub rule: String,
    /// Where the last sample came from.
    pub source: Source,
    /// The rest, for people.
    pub detail: String,
}

impl Record {
    /// An empty record of a lease.
    pub fn new(lease: &Lease, began_unix: u64, step: Duration) -> Record {
        Record {
            version: VERSION,
            job: lease.job_id,
            restart_count: lease.restart_count,
            user: lease.user.clone(),
            uid: lease.user_id,
            account: lease.account.clone(),
            partition: lease.partition.clone(),
            node: lease.node.clone(),
            pool: lease.pool.clone(),
            fraction: lease.fraction.to_string(),
            profile: lease.kind(),
            device: lease.slice.cuda_device().unwrap_or("-").to_owned(),
            memory_mib: lease.slice.memory_mib.0,
            wish: lease.idle_wish,
            created_unix: lease.created_unix,
            began_unix,
            series: Series::new(step),
            events: Vec::new(),
            ended_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(activity: Activity) -> Sample {
        Sample {
            activity,
            ..Sample::missing("")
        }
    }

    #[test]
    fn a_long_life_keeps_its_peaks_in_few_points() {
        let mut series = Series::new(Duration::from_secs(1));
        for second in 0..100_000 {
            let activity = match second {
                54_321 => Activity::Busy,
                _ => Activity::Idle,
            };
            series.add(Duration::from_secs(second), &sample(activity));
        }
        assert!(series.points.len() <= MOST_POINTS);
        let samples: u32 = series.points.iter().map(|point| point.samples).sum();
        assert_eq!(samples, 100_000);
        let place = 54_321_000 / series.step_ms;
        for (at, point) in (0..).zip(&series.points) {
            assert_eq!(point.busy, u32::from(at == place), "{at}");
        }
    }

    #[test]
    fn a_gap_has_no_samples() {
        let mut series = Series::new(Duration::from_secs(1));
        for second in [0, 1, 9] {
            series.add(Duration::from_secs(second), &sample(Activity::Idle));
        }
        let counts: Vec<u32> = series.points.iter().map(|point| point.samples).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
