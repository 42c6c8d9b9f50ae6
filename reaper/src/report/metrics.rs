//! What Prometheus reads.
#![expect(
    clippy::disallowed_methods,
    reason = "the server waits for its clients, beside the rounds"
)]

use gpufrac_core::policy::{Action, Stall};

use crate::measure::sample::Source;

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
    pub slices: Vec<Slice>,
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
}

/// A slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The job.
    pub job: u32,
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
    pub activity: Option<f64>,
    /// Memory held, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that may be held.
    pub memory_limit_bytes: u64,
    /// Seconds since it was last used (or may have been).
    pub idle_seconds: f64,
    /// Where the last sample came from.
    pub source: Source,
}

/// Counters; they only grow, also over restarts of the daemon.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Rounds of samples.
    pub rounds: u64,
    /// Seconds of slices that reaped jobs would have held until their time limits.
    pub reclaimed_slice_seconds: f64,
    /// Warnings by stall, in the order of [`Stall::ALL`].
    pub warnings: [u64; Stall::ALL.len()],
    /// Signals for a checkpoint.
    pub signals: u64,
    /// Jobs put back in the queue.
    pub requeued: u64,
    /// Jobs cancelled.
    pub cancelled: u64,
    /// Reaps that were due and not done: the limit of an hour.
    pub refused_rate: u64,
    /// Reaps that were due and not done: a breaker was open.
    pub refused_breaker: u64,
    /// What would have been done in dry-run: warnings, signals and ends.
    pub dry_run: u64,
    /// Samples that could not tell whether the slice was used.
    pub unknown_samples: u64,
    /// Errors of the driver while sampling.
    pub driver_errors: u64,
    /// Calls to Slurm that failed.
    pub slurm_errors: u64,
    /// Mails that could not be sent.
    pub mail_errors: u64,
}

impl Totals {
    /// Counts the end of a job.
    pub fn reaped(&mut self, action: Action, slice_seconds: f64) {
        match action {
            Action::Requeue | Action::RequeueHold => self.requeued += 1,
            Action::Cancel => self.cancelled += 1,
        }
        self.reclaimed_slice_seconds += slice_seconds;
    }
}
