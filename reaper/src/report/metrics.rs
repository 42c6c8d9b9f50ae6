//! The metrics for Prometheus.
#![expect(
    clippy::disallowed_methods,
    reason = "the server waits for its clients, beside the rounds"
)]

use std::collections::BTreeMap;

use crate::keep::totals::Totals;
use crate::measure::sample::Source;
use gpufrac_core::ids::JobId;
use gpufrac_view::Gpu;

mod answer;
mod client;
mod server;
mod text;

pub use server::{Server, ServerError};
pub use text::render;

/// The metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The leases of this node.
    pub slices: Vec<SliceMetrics>,
    /// The counters since the daemon's state began.
    pub totals: Totals,
    /// Whether the breaker of the node is open.
    pub node_breaker: bool,
    /// Whether the breaker of the cluster is open, as this node sees it.
    pub cluster_breaker: bool,
    /// Instances without a lease on GPUs of the pools.
    pub unleased_instances: u32,
    /// Leases, in any state, whose job has ended.
    pub overdue_leases: u32,
    /// Processes that compute although their job has no lease.
    pub strangers: u32,
    /// The pools of this node.
    pub pools: Vec<PoolMetrics>,
    /// Whether the labels of jobs are hidden, as Slurm's `PrivateData` has `jobs`.
    pub hides_jobs: bool,
}

/// The metrics of a pool on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolMetrics {
    /// The pool.
    pub pool: String,
    /// GPUs that node-setup found.
    pub gpus: u32,
    /// Of these, GPUs that cannot be used.
    pub faulty: u32,
    /// For each size of the menu, as users write it, the jobs of this size that have room.
    pub room: BTreeMap<String, u32>,
}

impl PoolMetrics {
    /// The pools of these GPUs.
    pub(crate) fn of(gpus: &[Gpu]) -> Vec<PoolMetrics> {
        let mut pools: BTreeMap<&str, PoolMetrics> = BTreeMap::new();
        for gpu in gpus {
            let pool = pools.entry(&gpu.pool).or_insert_with(|| PoolMetrics {
                pool: gpu.pool.clone(),
                ..PoolMetrics::default()
            });
            pool.gpus += 1;
            pool.faulty += u32::from(gpu.fault.is_some());
            for room in &gpu.room {
                *pool.room.entry(room.fraction.clone()).or_default() += room.jobs;
            }
        }
        pools.into_values().collect()
    }
}

/// The metrics of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceMetrics {
    /// Slurm's id of the job.
    pub job: JobId,
    /// The user name.
    pub user: String,
    /// The account; empty if there is none.
    pub account: String,
    /// The partition.
    pub partition: String,
    /// The pool.
    pub pool: String,
    /// The UUID of the GPU.
    pub gpu: String,
    /// The UUID of the MIG device, otherwise that of the GPU.
    pub device: String,
    /// The fraction of the GPU, 0 to 1.
    pub fraction: f64,
    /// The busy part of the time in the last sample, 0 to 1.
    pub busy_share: Option<f64>,
    /// Memory in use, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that the job may use, in bytes.
    pub memory_limit_bytes: u64,
    /// Seconds since the slice was last active, or may have been.
    pub idle_seconds: f64,
    /// The source of the last sample.
    pub source: Source,
}
