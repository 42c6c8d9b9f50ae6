//! The states of a lease.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseState {
    /// The lease is written before the first change of the GPU; the instance may or may not exist.
    Carving,
    /// The instance exists and belongs to the job.
    Active,
    /// The job has ended; the instance may or may not be destroyed already.
    Releasing,
    /// The job has ended, and its instance is kept for the next job of its user (`reuse` of the pool).
    Kept,
}

impl LeaseState {
    /// Whether a lease may go from this state to `to`.
    pub fn may_become(self, to: LeaseState) -> bool {
        matches!(
            (self, to),
            (
                LeaseState::Carving,
                LeaseState::Active | LeaseState::Releasing
            ) | (LeaseState::Active | LeaseState::Kept, LeaseState::Releasing)
                | (LeaseState::Releasing, LeaseState::Kept)
        )
    }
}

impl std::fmt::Display for LeaseState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LeaseState::Carving => "carving",
            LeaseState::Active => "active",
            LeaseState::Releasing => "releasing",
            LeaseState::Kept => "kept",
        })
    }
}
