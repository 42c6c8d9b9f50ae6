//! What root's programs have of the host: files that only root can change, programs of others with a deadline, the log,
//! the exit codes.

mod acl;
mod device;
pub mod exit;
pub mod files;
pub mod log;
pub mod subprocess;
pub mod syscalls;
