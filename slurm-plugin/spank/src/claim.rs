//! Assigns slices to the tasks of a step, in a job with a slice for each task.
//!
//! In a job with four tasks two steps of two tasks each may run at the same time, and in both the tasks have the
//! numbers 0 and 1. Therefore a step takes slices that no other step has. It locks them; slurmstepd holds the locks,
//! and the kernel releases them when slurmstepd ends.

use std::sync::{Mutex, PoisonError};

use gpufrac_core::lease::Lease;
use gpufrac_node::state::locks::{LockError, Locks, SliceLock};

/// The slices of one step's tasks.
pub struct Claims {
    /// The index of the lease for task 0, 1, ...; further tasks start again at the first.
    slices: Vec<usize>,
    locks: Mutex<Vec<Option<SliceLock>>>,
    tasks: usize,
}

impl Claims {
    /// Takes slices for `tasks` tasks: free ones; if there are too few (`--overlap`), also slices that are in use.
    /// Errors: a lock could not be requested.
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

    /// The index of a task's slice among the job's leases. `task` is its number in this step on this node.
    pub fn slice_of(&self, task: usize) -> usize {
        let slices = &self.slices;
        slices.get(task % slices.len().max(1)).copied().unwrap_or(0)
    }

    /// The leases of all tasks, in the job's order.
    pub fn of_step(&self, leases: &[Lease]) -> Vec<Lease> {
        let all = leases.iter().enumerate();
        let own = all.filter(|(position, _)| self.slices.contains(position));
        own.map(|(_, lease)| lease.clone()).collect()
    }

    /// Releases the slice of a task that ended, unless another task has it, too. Slurm may start the next step before
    /// this slurmstepd ends.
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
