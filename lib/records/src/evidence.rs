//! The record of a job: its samples, and the decisions with their reasons. The daemon writes it while the job runs
//! and keeps it for days if there was a decision; `gpufrac why` reads it.

use std::fmt;
use std::time::Duration;

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::{IdleWish, Stall};
use serde::{Deserialize, Serialize};

use crate::usage::Full;

/// The format version of a [`Record`].
pub const VERSION: u32 = 1;
/// The most points of a series; when it is full, neighbours are merged.
const MOST_POINTS: usize = 256;

/// The source of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// NVML's GPM for a GPU instance: Hopper and later.
    Gpm,
    /// `GR_ENGINE_ACTIVE` of a GPU instance, from dcgm-exporter.
    Dcgm,
    /// NVML's utilization of processes, on GPUs without MIG.
    ProcessUtilization,
    /// Clients of the job at its MPS servers, and the activity of these servers.
    MpsClients,
    /// Processes and memory on the slice, and CPU time of the job.
    Processes,
    /// No source answered.
    Missing,
}

impl Source {
    pub const ALL: [Source; 6] = [
        Source::Gpm,
        Source::Dcgm,
        Source::ProcessUtilization,
        Source::MpsClients,
        Source::Processes,
        Source::Missing,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Source::Gpm => "gpm",
            Source::Dcgm => "dcgm",
            Source::ProcessUtilization => "process-utilization",
            Source::MpsClients => "mps-clients",
            Source::Processes => "processes",
            Source::Missing => "missing",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The record of a job on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The format version, [`VERSION`].
    pub version: u32,
    /// Slurm's id of the job.
    pub job: JobId,
    /// How often Slurm requeued the job before this run.
    pub restart_count: u32,
    /// The user name.
    pub user: String,
    pub uid: UserId,
    /// The account of the job.
    pub account: Option<String>,
    pub partition: String,
    pub node: String,
    pub pool: String,
    /// The fraction of the GPU as a decimal.
    pub fraction: String,
    /// The MIG profile or the mechanism.
    pub profile: String,
    /// The UUID by which CUDA names the device.
    pub device: String,
    /// Memory that the job may use, in MiB.
    pub memory_mib: u64,
    /// The value of `--gpufrac-idle`.
    pub wish: IdleWish,
    /// When the lease was written, in seconds since 1970.
    pub created_unix: u64,
    /// When the first sample was taken, in seconds since 1970. Later times in the record count from here, by the boot
    /// clock.
    pub began_unix: u64,
    /// Activity and memory over time.
    pub series: Series,
    /// The decisions, oldest first.
    pub events: Vec<Event>,
    /// When the daemon saw that the lease was gone, in milliseconds.
    pub ended_ms: Option<u64>,
    /// That the job failed with a full slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<Full>,
}

/// Samples at equal distances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The time between two points, in milliseconds.
    pub step_ms: u64,
    /// The points; the first one is at the start of the record.
    pub points: Vec<Point>,
}

/// The summary of the samples of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The number of samples; 0 while the daemon did not run.
    pub samples: u32,
    /// The number of samples with unknown activity.
    pub unknown: u32,
    /// The number of samples with activity.
    pub busy: u32,
    /// The greatest activity, 0 to 1. If the source has no figure, 1 for activity and 0 for none.
    pub peak: f32,
    /// The greatest memory in MiB.
    pub memory_mib: u32,
    /// The source of the last sample.
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

    fn and(self, later: Point) -> Point {
        Point {
            samples: self.samples + later.samples,
            unknown: self.unknown + later.unknown,
            busy: self.busy + later.busy,
            peak: self.peak.max(later.peak),
            memory_mib: self.memory_mib.max(later.memory_mib),
            source: if later.samples > 0 { later.source } else { self.source },
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

    /// Adds a sample taken `at` after the start.
    pub fn add(&mut self, at: Duration, sample: Point) {
        let at_ms = at.as_millis() as u64;
        while at_ms / self.step_ms >= MOST_POINTS as u64 {
            self.halve();
        }
        let place = (at_ms / self.step_ms) as usize;
        if self.points.len() <= place {
            self.points.resize(place + 1, Point::EMPTY);
        }
        self.points[place] = self.points[place].and(sample);
    }

    fn halve(&mut self) {
        let pairs = self.points.chunks(2);
        let joined = pairs.map(|pair| pair.iter().copied().fold(Point::EMPTY, Point::and));
        self.points = joined.collect();
        self.step_ms *= 2;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The user was warned.
    Warn,
    /// The batch script got the signal of its policy.
    Signal,
    /// The job was requeued.
    Requeue,
    /// The job was cancelled.
    Cancel,
    /// The slice was active again after a warning.
    Clear,
    /// A due action was not taken; the detail has the reason.
    Refuse,
}

impl Decision {
    /// The name in logs and metrics.
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
    /// The time in milliseconds after the start of the record.
    pub at_ms: u64,
    pub decision: Decision,
    /// Whether it was only logged, and not carried out.
    pub dry_run: bool,
    /// The kind of stall.
    pub stall: Stall,
    /// The length of the stall in milliseconds.
    pub stalled_ms: u64,
    /// The window of the policy in milliseconds.
    pub window_ms: u64,
    /// The name of the rule; empty for the general policy.
    pub rule: String,
    /// The source of the last sample.
    pub source: Source,
    /// Further text for people.
    pub detail: String,
}

impl Record {
    /// An empty record for a lease.
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
            full: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(busy: bool) -> Point {
        Point {
            samples: 1,
            busy: u32::from(busy),
            ..Point::EMPTY
        }
    }

    #[test]
    fn a_long_life_keeps_its_peaks_in_few_points() {
        let mut series = Series::new(Duration::from_secs(1));
        for second in 0..100_000 {
            series.add(Duration::from_secs(second), sample(second == 54_321));
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
            series.add(Duration::from_secs(second), sample(false));
        }
        let counts: Vec<u32> = series.points.iter().map(|point| point.samples).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
