//! Switches on the MIG mode of a GPU without jobs: in node-setup, and in a prolog that finds MIG mode off. So a GPU
//! that was in use during node-setup becomes usable with the next job, without an admin.

use gpufrac_core::lease::LeaseState;

use crate::gpu::locked::LockedGpu;
use crate::gpu::mig_mode::{SwitchError, switch};
use crate::slice::{keep, reconcile};

/// Switches MIG on where that needs no reset and nobody has the GPU; leases that dead runs left, and kept ones, go
/// before. Says whether it was off. Errors: MIG stays off.
pub fn switch_on(locked: &mut LockedGpu<'_>) -> Result<bool, SwitchError> {
    for mut lease in reconcile::repair(locked, None)? {
        if lease.state == LeaseState::Kept {
            // One that stays keeps the mode as it is.
            keep::end(locked, &mut lease);
        }
    }
    switch(locked, true, None)
}
