//! What Prometheus reads.
#![expect(
    clippy::disallowed_methods,
    reason = "the server waits for its clients, beside the rounds"
)]

use crate::keep::totals::Totals;
use crate::measure::sample::Source;
use gpufrac_core::ids::JobId;

mod answer;
mod client;
mod server;
mod text;

pub use server::{Server, ServerError};
pub use text::render;

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The leases of this node.
    pub slices: Vec<SliceMetrics>,
    /// Since the daemon's state began.
    pub totals: Totals,
    /// Whether the breaker of the node is open.
    pub node_breaker: bool,
    /// Whether that of the cluster is, as this node sees it.
    pub cluster_breaker: bool,
    /// Instances on GPUs of the pools that no lease names.
    pub unleased_instances: u32,
    /// Leases of jobs that are over, in any state.
    pub overdue_leases: u32,
    /// Processes that compute where their jobs have no lease.
    pub strangers: u32,
}

/// A slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceMetrics {
    /// Slurm's id of the job.
    pub job: JobId,
    /// Its user.
    pub user: String,
    /// Its account; empty without.
    pub account: String,
    /// Its partition.
    pub partition: String,
    /// Its pool.
    pub pool: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// MIG UUID, or the GPU's.
    pub device: String,
    /// Part of the GPU, 0 to 1.
    pub fraction: f64,
    /// Busy part of the time of the last sample, 0 to 1.
    pub busy_share: Option<f64>,
    /// Memory held, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that may be held.
    pub memory_limit_bytes: u64,
    /// Seconds since it was last used (or may have been).
    pub idle_seconds: f64,
    /// Where the last sample came from.
    pub source: Source,
}
