//! Why nothing was done although it was due.

use crate::judge::breaker::BreakerScope;

/// Why nothing was done although it was due. The text is in the record of the job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Too many slices look stalled at once.
    #[error("the breaker of the {} is open", .0.name())]
    Breaker(BreakerScope),
    /// There is a shared folder, and it cannot be read.
    #[error("the slices of the cluster cannot be counted")]
    UncountedCluster,
    /// The job runs on several nodes, and what they say is not known.
    #[error("{0}")]
    Peers(String),
    /// Parts of a het job are not judged together.
    #[error("it is part of a het job, whose parts are not judged together")]
    HetJob,
    /// A warning could be given neither in the job's output nor by mail.
    #[error("its user could not be told: {0}")]
    NotWarned(String),
    /// The limit of an hour.
    #[error("this node ended {0} jobs in the last hour")]
    HourlyLimit(u32),
    /// Slurm did not report the outcome of the end.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// Slurm did not end the job.
    #[error("Slurm refused: {0}")]
    Slurm(String),
}
