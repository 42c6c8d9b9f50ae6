//! Which slices the tasks of a step have, of a job with a slice for each task.
//!
//! Slurm counts: of a job with four tasks two steps of two tasks each may run side by side, and to both of them their
//! tasks are numbers 0 and 1. So a step takes slices that no other step has, by locks which slurmstepd holds and the
//! kernel drops with it.

use std::sync::{Mutex, PoisonError};

use gpufrac_core::lease::Lease;
use gpufrac_node::state::locks::{LockError, Locks, SliceLock};

/// The slices of one step's tasks.
pub struct Claims {
    /// Positions among the job's leases, for task 0, 1, ...; tasks beyond start again at the first.
    slices: Vec<usize>,
    locks: Mutex<Vec<Option<SliceLock>>>,
    tasks: usize,
}

impl Claims {
    /// Takes slices for `tasks` tasks: free ones, and if there are too few (`--overlap`), with others that are in use.
    ///
    /// # Errors
    /// When a lock cannot be asked for.
    pub fn take(locks: &Locks, leases: &[Lease], tasks: usize) -> Result<Claims, LockError> {
        let wanted = tasks.clamp(1, leases.len().max(1));
        let (mut slices, mut held, mut busy) = (Vec::new(), Vec::new(), Vec::new());
        for (position, lease) in leases.iter().enumerate() {
            if slices.len() == wanted {
                break;
            }
            match locks.slice(lease)? {
                Some(lock) => {
                    slices.push(position);
                    held.push(Some(lock));
                }
                None => busy.push(position),
            }
        }
        slices.extend(busy.into_iter().take(wanted - slices.len()));
        Ok(Claims {
            slices,
            locks: Mutex::new(held),
            tasks,
        })
    }

    /// The position of a task's slice among the job's leases. `task`: its number in this step on this node.
    pub fn slice_of(&self, task: usize) -> usize {
        let slices = &self.slices;
        slices.get(task % slices.len().max(1)).copied().unwrap_or(0)
    }

    /// A task ended: its slice is free for the next step, unless another task has it too. Slurm may start
    /// that step before this slurmstepd is gone.
    pub fn give_back(&self, task: usize) {
        if self.tasks > self.slices.len() {
            return;
        }
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get_mut(task) {
            *lock = None;
        }
    }
}
