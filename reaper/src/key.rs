//! Identifiers of a run of a job, and of one of its slices.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use serde::{Deserialize, Serialize};

/// Identifies a run of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub job_id: JobId,
    /// How often the job was requeued before.
    pub restart_count: u32,
    /// When the lease was written, in seconds since 1970: job ids start again if Slurm lost its state.
    pub created_unix: u64,
}

impl Key {
    pub fn of(lease: &Lease) -> Key {
        Key {
            job_id: lease.job_id,
            restart_count: lease.restart_count,
            created_unix: lease.created_unix,
        }
    }
}

/// Identifies a slice of a job on this node; a job with a slice for each task or with several GPUs has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId {
    pub job_id: JobId,
    /// The number of the slice among those of the job on this node, from 0.
    pub number: u32,
}

impl SliceId {
    pub fn of(lease: &Lease) -> SliceId {
        SliceId {
            job_id: lease.job_id,
            number: lease.number,
        }
    }
}
