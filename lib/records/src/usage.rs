//! Usage records: which slice a job held, for how long, and how the slice was used.
//!
//! A node appends one line of JSON for each event to `usage.jsonl` ([`Line`]). Records of version 1, which say nothing
//! about use, are read as records without [`Used`].

use serde::{Deserialize, Serialize};

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;

mod line;
mod tally;

pub use line::{Line, LineError};
pub use tally::{Elapsed, Filled, Kind, Tallies, Tally, apportion};

/// The version of the lines that this build writes.
pub const VERSION: u32 = 2;
/// The folder of usage records in the folder that nodes share, with a folder for each [`day`], and in that of a user.
pub const FOLDER: &str = "usage";
const SECONDS_OF_A_DAY: u64 = 24 * 3600;

/// A slice that a job held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// [`VERSION`] when the line was written.
    pub version: u32,
    /// Slurm's id of the job.
    pub job: JobId,
    /// Number of the slice among the slices of the job on this node, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slice: u32,
    /// Number of times that Slurm had requeued the job before.
    pub restart_count: u32,
    /// Name of the job's user.
    pub user: String,
    /// Id of the job's user.
    pub uid: UserId,
    /// The account charged; None without accounting.
    pub account: Option<String>,
    /// The partition of the job.
    pub partition: String,
    pub node: String,
    pub pool: String,
    /// Part of a GPU, as a decimal.
    pub fraction: String,
    /// Units that Slurm counted; 100 are a GPU.
    pub units: u32,
    /// The MIG profile, or the mechanism where there is no profile.
    pub profile: String,
    pub gpu_uuid: String,
    /// Slurm's index of the device, which may be a half of the GPU. Not in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// When the lease was written, by the wall clock: seconds since 1970.
    pub start: u64,
    /// When the lease ended, by the wall clock: seconds since 1970.
    pub end: u64,
    /// Length of the lease in seconds, by a clock that nobody sets: a step of the wall clock changes `end - start`, not
    /// this.
    pub seconds: u64,
    /// The same times by the clock of a boot, which nobody sets. Not in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootSpan>,
    /// Memory of the slice in MiB. Not in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Use of the slice, as measured by gpufrac-reaperd; None if no sample was taken: then nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
    /// Seconds of the job's time limit that were left when the reaper ended the job; None where it did not, or where
    /// the job had no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<u64>,
    /// Why the slice ended, where that was known when the record was written; else a line [`Line::End`] follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// A span of the clock of one boot (`CLOCK_BOOTTIME`): whole seconds since the boot, so that spans that follow each
/// other do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSpan {
    /// Names the boot (`/proc/sys/kernel/random/boot_id`).
    pub id: String,
    /// The first second.
    pub from: u64,
    /// The second after the last one.
    pub until: u64,
}

/// When something ends, by both clocks.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Seconds since 1970.
    pub unix: u64,
    /// Milliseconds since the node was booted.
    pub boot_ms: u64,
    /// Names the boot.
    pub boot_id: &'a str,
}

/// How a slice was used. The four times add up to [`UsageRecord::seconds`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Seconds with activity above `busy_above`.
    pub busy: u64,
    /// Seconds without.
    pub idle: u64,
    /// Seconds without a sample that could tell.
    pub unknown: u64,
    /// Seconds in which Slurm had suspended the job.
    pub suspended: u64,
    /// Mean activity of the slice, 0 to 1, over the time for which the source has a figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<f64>,
    /// Greatest memory that a sample saw, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_mib: Option<u64>,
    /// Mean memory in MiB, over the time for which it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_memory_mib: Option<u64>,
    /// Source of the last sample that could tell (`gpm`, `dcgm`, ...).
    pub source: String,
    /// Warnings of the reaper.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warnings: u32,
    /// Energy of the whole GPU in that time, in joules (`nvmlDeviceGetTotalEnergyConsumption`); None where NVML has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_energy_j: Option<u64>,
    /// The part of it by the activity of the slice among all slices of the GPU, in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<u64>,
}

/// A failed job that had filled its slice: the framework's own words are "out of memory".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Full {
    /// Greatest memory of the samples before the end that found the slice full, in MiB.
    pub used_mib: u64,
    /// The next larger size of the pool; None where there is none, or where the pool is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub larger: Option<Larger>,
}

/// The next larger size of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Larger {
    /// The request as users write it: `gpufrac:0.5`.
    pub request: String,
    /// Whether a place for it was free on the node, as the job ended.
    pub is_free: bool,
}

impl Full {
    /// The words for the user. `memory_mib`: of the slice.
    pub fn told(&self, memory_mib: u64, node: &str) -> String {
        let [used, all] = [self.used_mib, memory_mib].map(|mib| mib as f64 / 1024.0);
        let next = match &self.larger {
            None => "the pool has no larger size".to_owned(),
            Some(Larger { request, is_free }) => {
                let count = if *is_free { "one" } else { "none" };
                format!("the next larger size is {request} ({count} was free on {node} then)")
            }
        };
        format!("used {used:.1} of {all:.1} GiB of its slice; {next}")
    }
}

/// Why a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The job ended: completed, failed, was cancelled or reached its time limit.
    Done,
    /// The reaper ended the job, as its slice was idle.
    Reclaimed,
    /// Slurm preempted the job.
    Preempted,
    /// The node failed, or was booted.
    NodeFailure,
}

impl Ended {
    /// The word in records and reports.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Done => "done",
            Ended::Reclaimed => "reclaimed",
            Ended::Preempted => "preempted",
            Ended::NodeFailure => "node-failure",
        }
    }
}

/// Names one slice of one run of a job among all records of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceKey {
    /// Slurm's id of the job.
    pub job: JobId,
    /// Number of the slice on the node.
    #[serde(default)]
    pub slice: u32,
    /// Number of requeues before.
    pub restart_count: u32,
    /// When the lease was written: seconds since 1970. Job ids begin again where Slurm lost its state.
    pub start: u64,
    pub node: String,
}

/// A GPU of a pool was there and could serve jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTime {
    pub node: String,
    pub gpu_uuid: String,
    /// The pool of the GPU.
    pub pool: String,
    /// From when, by the wall clock: seconds since 1970.
    pub from: u64,
    /// Until when.
    pub until: u64,
    /// The same times by the clock of a boot.
    pub boot: BootSpan,
    /// Slurm's index and the units of each device of the GPU.
    pub devices: Vec<(u32, u32)>,
    /// Units of each size that the pool lends, in ascending order.
    pub menu: Vec<u32>,
}

/// `2026-11-23`, of a time in seconds since 1970, in UTC.
pub fn day(unix: u64) -> String {
    let midnight = std::time::UNIX_EPOCH
        + std::time::Duration::from_secs(unix / SECONDS_OF_A_DAY * SECONDS_OF_A_DAY);
    let text = humantime::format_rfc3339_seconds(midnight).to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl UsageRecord {
    /// The record of a lease. `tally`: what the reaper measured of the slice.
    pub fn of(lease: &Lease, end: End<'_>, tally: Option<&Tally>) -> UsageRecord {
        let boot = lease.created_boot_ms.map(|created| BootSpan {
            id: end.boot_id.to_owned(),
            from: created / 1000,
            until: end.boot_ms.max(created) / 1000,
        });
        let seconds = match &boot {
            Some(span) => span.until - span.from,
            None => end.unix.saturating_sub(lease.created_unix),
        };
        let length_ms = match lease.created_boot_ms {
            Some(created) => end.boot_ms.saturating_sub(created),
            None => seconds * 1000,
        };
        UsageRecord {
            version: VERSION,
            job: lease.job_id,
            slice: lease.number,
            restart_count: lease.restart_count,
            user: lease.user.clone(),
            uid: lease.user_id,
            account: lease.account.clone(),
            partition: lease.partition.clone(),
            node: lease.node.clone(),
            pool: lease.pool.clone(),
            fraction: lease.fraction.to_string(),
            units: lease.units.0,
            profile: lease.kind(),
            gpu_uuid: lease.slice.gpu_uuid.clone(),
            device: Some(lease.slice.device_index.0),
            start: lease.created_unix,
            end: end.unix,
            seconds,
            boot,
            memory_mib: Some(lease.slice.memory_mib.0),
            used: tally
                .filter(|tally| tally.has_samples())
                .map(|tally| tally.used(length_ms, seconds)),
            returned: tally.and_then(|tally| tally.returned),
            ended: tally.and_then(|tally| tally.ended),
        }
    }

    /// Which slice it is.
    pub fn key(&self) -> SliceKey {
        SliceKey {
            job: self.job,
            slice: self.slice,
            restart_count: self.restart_count,
            start: self.start,
            node: self.node.clone(),
        }
    }
}

impl SliceKey {
    pub fn of(lease: &Lease) -> SliceKey {
        SliceKey {
            job: lease.job_id,
            slice: lease.number,
            restart_count: lease.restart_count,
            start: lease.created_unix,
            node: lease.node.clone(),
        }
    }
}
