//! `cli_filter_gpufrac.so`: runs in sbatch, salloc and srun before they submit.
//!
//! It does the same rewrite as job_submit, and it is the only hook that sees the steps of srun. It decides nothing
//! that matters for safety: it runs with the user's rights, and job_submit checks its result again.

#![allow(unsafe_code)]

mod beside;
mod edge;
mod error;
mod options;

slurm_sys::slurm_plugin!("gpufrac: fractional GPUs", "cli_filter/gpufrac", any release);
