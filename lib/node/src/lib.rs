//! What gpufrac does as root on a node: the prolog's carving, the epilog's release, the repair
//! of what died in between, the set-up at boot; and for all of these NVML, the lease store, the
//! capability files and the device cgroup.

mod acl;
pub mod caps;
pub mod carve;
pub mod check;
pub mod command;
pub mod compute_mode;
pub mod devcgroup;
pub mod exit;
pub mod failpoint;
pub mod files;
pub mod grant;
pub mod gres;
pub mod job_env;
pub mod lease_store;
pub mod lock;
pub mod log;
pub mod map;
pub mod memory_limit;
pub mod mps;
pub mod names;
pub mod node;
pub mod nvml;
pub mod reconcile;
pub mod record;
pub mod release;
pub mod settings;
pub mod setup;
pub mod share;
pub mod slurm;
pub mod start;
pub mod status;
pub mod tasks;
pub mod teardown;
#[cfg(test)]
mod testing;
pub mod usage;

pub use lease_store::LeaseStore;
