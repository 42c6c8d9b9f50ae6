//! `spank_gpufrac.so`: runs in slurmstepd for every step of every job on a node.
//!
//! It reads the lease of the prolog, sets the environment of the job's slice, and closes every other GPU and
//! capability of the pools to the job. It makes no slices and asks no other program: no NVML, no RPC. Two exceptions:
//! if a batch job must not start, because its lease is missing or does not match Slurm's allocation, it asks
//! slurmctld to requeue the job; and a task that fails with a full slice is told to the user in the job's comment.
//!
//! In srun, sbatch and salloc it adds the options `--gpufrac-idle`, `--gpufrac-burst` and `--gpufrac-visible`, and
//! before Slurm 23.02 an option that refuses `--tres-per-task` with the reason.
//!
//! Only the hooks that are needed are exported: with a prolog or epilog hook slurmd would start a helper process for
//! every job. `init`, which registers the option, never fails, because a failure would drain the node.

#![allow(unsafe_code)]

mod claim;
mod edge;
mod environment;
mod failed;
mod given;
mod reach;
mod slice;

slurm_sys::slurm_plugin!("gpufrac", "spank");
