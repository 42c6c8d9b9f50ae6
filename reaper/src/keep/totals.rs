//! The counters of the daemon.

use gpufrac_core::policy::{Action, Stall};
use serde::{Deserialize, Serialize};

use super::hooks::HookTotals;

/// Counters. They only grow, also over restarts of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Rounds of samples.
    pub rounds: u64,
    /// Seconds of slices that reclaimed jobs would have held until their time limits.
    pub reclaimed_slice_seconds: f64,
    /// Warnings by stall, in the order of [`Stall::ALL`].
    pub warnings: [u64; Stall::ALL.len()],
    /// Signals for a checkpoint.
    pub signals: u64,
    pub requeued: u64,
    pub cancelled: u64,
    /// Due reclaims that were not done because of the hourly limit.
    pub refused_rate: u64,
    /// Due reclaims that were not done because a breaker was open.
    pub refused_breaker: u64,
    /// Steps in dry-run mode: warnings, signals and ends.
    pub dry_run: u64,
    /// Samples with unknown activity.
    pub unknown_samples: u64,
    /// Errors of the driver while sampling.
    pub driver_errors: u64,
    /// Calls to Slurm that failed.
    pub slurm_errors: u64,
    /// Mail messages that could not be sent.
    pub mail_errors: u64,
    /// Jobs that the node gave back to Slurm.
    #[serde(default, skip_serializing_if = "is_none")]
    pub jobs_put_back: u64,
    /// Prologs and epilogs.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hooks: HookTotals,
}

fn is_none<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}

impl Totals {
    pub fn warned(&mut self, stall: Stall) {
        for (count, of) in self.warnings.iter_mut().zip(Stall::ALL) {
            *count += u64::from(of == stall);
        }
    }

    pub fn reaped(&mut self, action: Action, slice_seconds: f64) {
        match action {
            Action::Requeue | Action::RequeueHold => self.requeued += 1,
            Action::Cancel => self.cancelled += 1,
        }
        self.reclaimed_slice_seconds += slice_seconds;
    }
}
