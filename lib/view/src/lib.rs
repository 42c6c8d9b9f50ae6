//! What people see of the GPUs of a node: the file that the reaper writes after each round, and that `gpufrac status`,
//! `top` and `web` read.
//!
//! The file of a node lies in the node's own folder (`<run>/reaper/status.json`) and, where nodes share a folder, at
//! `<shared>/status/NODE.json`. It is one JSON object, [`NodeStatus`]. The keys and their meanings are stable within a
//! version ([`VERSION`]): a later build may add keys, and a reader ignores keys that it does not know.
#![forbid(unsafe_code)]

use gpufrac_core::ids::{GpuIndex, JobId, UserId};
use serde::{Deserialize, Serialize};

pub mod bar;
pub mod cluster;
mod of_pool;
mod read;
pub mod slurm;
pub mod stuck;
mod sums;
pub mod why;

pub use of_pool::Seen;
pub use read::ViewError;
pub use stuck::Stuck;
pub use sums::{Sums, Use};

/// The version of the file that this build writes.
pub const VERSION: u32 = 1;

/// A node with pools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// [`VERSION`] of the build that wrote the file.
    pub version: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// When the file was written, by the wall clock: seconds since 1970.
    pub written: u64,
    /// Seconds between two writings; a file that is older than three of them is stale.
    pub interval: u32,
    /// `gpufrac --version` of the writer.
    pub build: String,
    /// The checksum of the writer's configuration (`Config::sum`), which files of the same build alone have in common;
    /// None in files of earlier builds, and where no daemon wrote the view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_sum: Option<String>,
    /// The places that are stuck.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<Stuck>,
    /// The GPUs of pools, by index.
    pub gpus: Vec<GpuStatus>,
}

/// A GPU of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// NVML's index.
    pub index: GpuIndex,
    /// `GPU-...`
    pub uuid: String,
    /// The model in the configuration: `H100-80`.
    pub model: String,
    pub pool: String,
    /// The mechanism of the pool: `mig`, `mps`, `mig+mps`, `timeslice`, `hami`.
    pub mechanism: String,
    /// The partitions of the pool.
    pub partitions: Vec<String>,
    /// Memory slices of the GPU; 0 where slices have no position.
    pub memory_slices: u8,
    /// Whether the GPU is in MIG mode, where the mode changes for jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// Why the GPU cannot be used; None where it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// For each size of the pool's menu, largest first: how many jobs of this size have room now, if no other job
    /// starts.
    pub room: Vec<Room>,
    /// The slices, by position, then by job.
    pub slices: Vec<Slice>,
    /// MIG instances that no lease names, as `start:size`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unleased: Vec<Place>,
}

/// Room on a GPU for jobs of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Room {
    /// The size as users write it: `0.25`.
    pub fraction: String,
    /// Units that Slurm counts for a job; 100 are a GPU.
    pub units: u32,
    /// Jobs of this size that have room.
    pub jobs: u32,
}

/// A position on a GPU, in memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The first memory slice.
    pub start: u8,
    /// The number of memory slices.
    pub size: u8,
}

/// A slice that a job holds, or that is kept for its user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The job and its user; None where Slurm's PrivateData hides them from the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Part of the GPU as users write it: `0.25`.
    pub fraction: String,
    /// Units that Slurm counts.
    pub units: u32,
    /// The MIG profile, or the mechanism where there is none, as `gpufrac status` prints it.
    pub kind: String,
    /// The position; None where slices have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// State of the lease: `preparing`, `active`, `releasing`, `kept`.
    pub state: String,
    /// When the lease was written, by the wall clock: seconds since 1970.
    pub since: u64,
    /// Memory that the job may use, in MiB.
    pub memory_limit_mib: u64,
    /// Use of the slice; None where no sample was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl Slice {
    /// Whether no job holds it: it waits for the next job of its user.
    pub fn is_kept(&self) -> bool {
        self.state == "kept"
    }
}

/// The owner of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Slurm's id of the job.
    pub job: JobId,
    /// Number of the slice among the slices of the job on this node, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slice: u32,
    /// Name of the user.
    pub user: String,
    pub uid: UserId,
    /// The account; None without accounting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The partition of the job.
    pub partition: String,
}

/// How a slice was used at the last sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Busy part of the time, 0 to 1; None where the source cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<f64>,
    /// Memory in use, in MiB; None where the source cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The source of the sample, as in the metrics: `gpm`, `dcgm`, `processes` and so on.
    pub source: String,
    /// Seconds since the slice was last active, or may have been.
    pub idle: u64,
    /// Seconds of idleness after which the policy ends the job; None where it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Warnings that the job has had.
    pub warnings: u32,
    /// When the policy will end the job if it stays idle, by the wall clock: seconds since 1970; None where no warning
    /// was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
