//! The states of a lease.

use serde::{Deserialize, Serialize};

/// Where a slice is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseState {
    /// Intent: written before the first change of the GPU. The instance may or may not exist.
    Carving,
    /// The instance exists and is the job's.
    Active,
    /// The job is over; the instance may or may not be gone already.
    Releasing,
    /// The job is over, and its instance stands for the next job of its user (`reuse` of the pool).
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
