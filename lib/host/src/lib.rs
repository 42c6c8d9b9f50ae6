//! Access of root's programs to the host: files that only root can change, control groups, external programs with a
//! deadline, pauses, the log, the exit codes.

mod acl;
pub mod cgroup;
pub mod cores;
mod device;
pub mod exit;
pub mod files;
pub mod log;
pub mod pause;
pub mod replace;
pub mod shortage;
pub mod sight;
pub mod space;
pub mod subprocess;
pub mod syscalls;
pub mod trust;
