//! Why a job is refused.

use std::sync::Arc;

use gpufrac_core::pools_sum::PoolsSum;
use gpufrac_core::submit::Refusal;
use gpufrac_core::submit::idle::IdleRefusal;

use crate::limits::TooLong;
use crate::settings::NoConfig;

/// What the user is told of a job that is refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It brings more text than slurmctld, Prolog and Epilog can have.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// Its request for a fraction cannot be met.
    #[error(transparent)]
    Request(#[from] Box<Refusal>),
    /// It may not have what it says with `--gpufrac-idle`.
    #[error(transparent)]
    Idle(#[from] IdleRefusal),
    /// It names a fraction, and the configuration is wrong or cannot be read.
    #[error("gpufrac: fractions are not available now: {0}")]
    NoConfig(Arc<NoConfig>),
    /// It names a fraction, and the configuration was not read yet.
    #[error("gpufrac: fractions are not available now: no configuration was read")]
    NotRead,
    /// It is no job: `gpufrac check` asks for the pools.
    #[error("{}", .0.answer())]
    Question(PoolsSum),
    /// The plugin panicked.
    #[error("gpufrac: internal error, the job is refused; the controller's log has the reason")]
    Panicked,
}
