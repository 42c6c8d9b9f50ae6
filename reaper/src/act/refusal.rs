//! The reasons why a due action was not taken.

use crate::judge::breaker::BreakerScope;

/// The reason why a due action was not taken. The record of the job has its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The circuit breaker is open, so the job is spared.
    /// Cure: See the message of the circuit breaker.
    #[error("the breaker of the {} is open", .0.name())]
    Breaker(BreakerScope),
    // There is a shared folder, but it cannot be read.
    /// The files of other nodes cannot be read.
    /// Cure: Correct `[paths] shared`.
    #[error("the slices of the cluster cannot be counted")]
    UncountedCluster,
    /// The job runs on several nodes, and the state of its other parts is not known.
    #[error("{0}")]
    Peers(String),
    // The job is a component of a heterogeneous job; gpufrac cannot judge all components together.
    /// Components of a heterogeneous job are never ended.
    /// Cure: Nothing.
    #[error("it is part of a het job, whose parts are not judged together")]
    HetJob,
    // The warning reached the user neither in the job's output nor by mail.
    /// A user who cannot be told is not reclaimed.
    /// Cure: Follow the text.
    #[error("informing its user failed: {0}")]
    NotWarned(String),
    /// `reaps_per_hour` is reached.
    /// Cure: Nothing, or raise the limit.
    #[error("this node ended {0} jobs in the last hour")]
    HourlyLimit(u32),
    /// slurmctld did not answer after the request.
    /// Cure: Nothing: the daemon asks again.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// The text is Slurm's.
    /// Cure: Follow the text.
    #[error("Slurm refused: {0}")]
    Slurm(String),
}
