//! `job_submit_gpufrac.so`: runs in slurmctld for every job that is submitted or changed.
//!
//! It rewrites a fraction into counts of Slurm, rounds it to the pool's menu, refuses requests that cannot be
//! granted, and writes the trusted entry for Prolog and Epilog. `gpufrac_core::submit` makes the decision; this crate
//! connects it to Slurm.
//!
//! Slurm holds its locks during these calls: no RPC, no file access, no waiting for a lock. A thread reads the
//! configuration, see `settings`.

#![allow(unsafe_code)]

mod edge;
mod error;
mod job_environment;
mod limits;
mod login_environment;
mod settings;
mod share;
mod texts;

slurm_sys::slurm_plugin!("gpufrac: fractional GPUs", "job_submit/gpufrac", any release);
