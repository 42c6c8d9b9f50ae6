//! What root's programs have of the host: files that only root can change, control groups, programs of others with a
//! deadline, pauses, the log, the exit codes.

mod acl;
pub mod cgroup;
mod device;
pub mod exit;
pub mod files;
pub mod log;
pub mod pause;
pub mod replace;
pub mod shortage;
pub mod subprocess;
pub mod syscalls;
pub mod trust;
