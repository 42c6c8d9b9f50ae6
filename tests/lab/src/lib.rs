//! A real Slurm cluster in a temporary folder: munged, slurmctld and any number of slurmd on
//! one machine, with gpufrac's plugins and simulated GPUs, or plain.
//!
//! ```no_run
//! use gpufrac_lab::{Lab, LabError};
//!
//! # fn main() -> Result<(), LabError> {
//! let lab = Lab::builder().nodes(1).gpus("H100-80", 2).start()?;
//! let job = lab.sbatch(&lab.users()[0], &["--gres=gpufrac:0.25", "--wrap=env | grep CUDA"])?;
//! lab.wait_for_end(job)?;
//! # Ok(())
//! # }
//! ```
//!
//! Every process is started by the lab, recorded by pid and start time, and stopped by it. Outside
//! of the lab's folder only control groups are written (`slurm_<node>`), and they are removed. A program that is killed
//! leaves no lab behind: `lab-keeper` notices its end.

#![forbid(unsafe_code)]

mod accounting;
mod artifacts;
mod builder;
mod cgroups;
mod claims;
mod clients;
mod conf;
mod daemons;
mod ending;
mod error;
mod folder;
mod gpus;
mod install;
mod jobs;
mod keeper;
mod lab;
mod leftovers;
mod list;
mod mps;
mod namespace;
mod patience;
mod process;
mod reconfigure;
mod slices;
mod slurm;
mod start;
mod times;
mod users;

pub use builder::LabBuilder;
pub use cgroups::CgroupVersion;
pub use clients::{Outcome, Running, SlurmCommand};
pub use ending::stop_folder;
pub use error::LabError;
pub use folder::Folder;
pub use gpus::{ComputeMode, Instance};
pub use install::install;
pub use jobs::{Job, JobId, NodeView};
pub use keeper::keep;
pub use lab::Lab;
pub use list::{Listed, list};
pub use mps::MpsProcess;
pub use process::is_running;
pub use slices::HeldSlice;
pub use slurm::{Release, Slurm};
pub use users::User;
