//! Which run of which job a lease is of, and which of its slices.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use serde::{Deserialize, Serialize};

/// Which run of which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Slurm's id of the job.
    pub job_id: JobId,
    /// How often it was requeued.
    pub restart_count: u32,
    /// When the lease was written: ids start over where Slurm lost its state.
    pub created_unix: u64,
}

impl Key {
    /// Of a lease.
    pub fn of(lease: &Lease) -> Key {
        Key {
            job_id: lease.job_id,
            restart_count: lease.restart_count,
            created_unix: lease.created_unix,
        }
    }
}

/// Which slice of which job on this node: a job with a slice for each task has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId {
    /// Slurm's id of the job.
    pub job_id: JobId,
    /// Which of its slices here, from 0.
    pub number: u32,
}

impl SliceId {
    /// Of a lease.
    pub fn of(lease: &Lease) -> SliceId {
        SliceId {
            job_id: lease.job_id,
            number: lease.number,
        }
    }
}
