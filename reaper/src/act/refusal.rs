//! The reasons why a due action was not taken.

use crate::judge::breaker::BreakerScope;

/// The reason why a due action was not taken. The record of the job has its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A circuit breaker is open.
    #[error("the breaker of the {} is open", .0.name())]
    Breaker(BreakerScope),
    /// There is a shared folder, but it cannot be read.
    #[error("the slices of the cluster cannot be counted")]
    UncountedCluster,
    /// The job runs on several nodes, and the state of its other parts is not known.
    #[error("{0}")]
    Peers(String),
    /// The job is a component of a heterogeneous job; gpufrac cannot judge all components together.
    #[error("it is part of a het job, whose parts are not judged together")]
    HetJob,
    /// The warning reached the user neither in the job's output nor by mail.
    #[error("informing its user failed: {0}")]
    NotWarned(String),
    /// The hourly limit of reclaims is reached.
    #[error("this node ended {0} jobs in the last hour")]
    HourlyLimit(u32),
    /// Slurm did not report whether the job was ended.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// Slurm refused to end the job.
    #[error("Slurm refused: {0}")]
    Slurm(String),
}
