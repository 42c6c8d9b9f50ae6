//! Settings of a GPU besides its instances that change for its jobs.

pub mod capability_files;
pub mod compute_mode;
pub mod dcgm;
pub mod holder_names;
pub mod holders;
pub mod instance_files;
pub mod instance_use;
pub mod locked;
mod mark;
pub mod memory_limit;
pub mod mig_mode;
pub mod nvidia_smi;
pub mod shared_session;
pub mod strangers;
