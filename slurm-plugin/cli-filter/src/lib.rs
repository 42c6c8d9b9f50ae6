//! `cli_filter_gpufrac.so`: runs in sbatch, salloc and srun before they submit.
//!
//! It rewrites requests as job_submit does, and is the only plugin that sees the steps of srun. Nothing here matters
//! for safety: it runs with the user's rights, and job_submit checks its result again.

#![allow(unsafe_code)]

mod beside;
mod edge;
mod error;
mod options;

slurm_sys::slurm_plugin!("gpufrac: fractional GPUs", "cli_filter/gpufrac", any release);
