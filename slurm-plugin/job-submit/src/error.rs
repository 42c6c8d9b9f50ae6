//! The reasons why a job is refused.

use std::sync::Arc;

use gpufrac_core::pools_sum::PoolsSum;
use gpufrac_core::submit::Refusal;
use gpufrac_core::submit::burst::UnknownBurst;
use gpufrac_core::submit::idle::IdleRefusal;

use crate::limits::TooLong;
use crate::settings::NoConfig;

/// The message for the user of a refused job.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The job has more text than slurmctld, Prolog and Epilog can handle.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Request(#[from] Box<Refusal>),
    #[error(transparent)]
    Idle(#[from] IdleRefusal),
    #[error(transparent)]
    Burst(#[from] UnknownBurst),
    /// slurmctld has no valid gpufrac.toml or belongs to another series; the text says why.
    /// Cure: Admins: read slurmctld's log, correct the file, `scontrol reconfigure`.
    #[error("gpufrac: fractions are not available now: {0}")]
    NoConfig(Arc<NoConfig>),
    /// slurmctld started without a valid gpufrac.toml.
    /// Cure: Admins: correct the file (`gpufrac check --file-only`), then `scontrol reconfigure`.
    #[error("gpufrac: fractions are not available now: no configuration was read")]
    NotRead,
    /// The request is not a job, but a question of `gpufrac check`.
    #[error("{}", .0.answer(slurm_sys::release::BUILD))]
    Question(PoolsSum),
    /// The plugin failed. The job is refused and slurmctld goes on.
    /// Cure: Admins: report the lines of slurmctld's log.
    #[error("gpufrac: internal error, the job is refused; the controller's log has the reason")]
    Panicked,
}
