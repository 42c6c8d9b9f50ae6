//! Settings of a GPU that change for its jobs, other than its instances.

pub mod capability_files;
pub mod compute_mode;
pub mod holders;
pub mod instance_files;
pub mod locked;
pub mod memory_limit;
pub mod nvidia_smi;
pub mod strangers;
