//! `job_submit_gpufrac.so`: runs in slurmctld for every job that is submitted or changed.
//!
//! It rewrites a fraction into counts of Slurm, rounds it to the pool's menu, refuses requests that cannot be met, and
//! writes the trusted entry for Prolog and Epilog. The decision is `gpufrac_core::submit`; here is only its edge to
//! Slurm.
//!
//! Slurm holds its locks around these calls: no RPC, no file, no waiting for a lock. The configuration is read
//! elsewhere, see `settings`.

#![allow(unsafe_code)]

mod edge;
mod error;
mod job_environment;
mod limits;
mod login_environment;
mod settings;
mod texts;

slurm_sys::slurm_plugin!("gpufrac: fractional GPUs", "job_submit/gpufrac", any release);
