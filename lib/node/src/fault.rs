//! The cause of an error: a user, root or the hardware. The rule: after an error that a user can cause, the job waits,
//! is held or is refused; a node is drained only for errors that only root or hardware can cause. Each error of this
//! package states its cause beside its definition; those of other packages do so here.

use std::io;

use gpufrac_core::lease::LeaseError;
use gpufrac_host::files::FileError;
use gpufrac_host::shortage::is_shortage;
use gpufrac_nvml::{ErrorClass, NvmlError};

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A user who may submit jobs: by a request, by processes, by using up resources that all users share.
    User,
    /// Only root: files, settings, versions.
    Root,
    /// A GPU or its driver.
    Hardware,
}

/// An error with a known cause.
pub trait Caused {
    /// The cause; the user, if users are among several.
    fn cause(&self) -> Cause;
}

/// Users can fill memory, disks and tables that they share with root.
pub fn of_system_call(error: &io::Error) -> Cause {
    if is_shortage(error) { Cause::User } else { Cause::Root }
}

impl Caused for FileError {
    fn cause(&self) -> Cause {
        match self {
            FileError::Io { source, .. } => of_system_call(source),
            FileError::Link { .. }
            | FileError::Untrusted { .. }
            | FileError::NotPrivate { .. }
            | FileError::Foreign { .. }
            | FileError::Relative { .. }
            | FileError::NotText { .. } => Cause::Root,
        }
    }
}

impl Caused for LeaseError {
    fn cause(&self) -> Cause {
        // Only root writes leases, and always complete files.
        Cause::Root
    }
}

impl Caused for NvmlError {
    fn cause(&self) -> Cause {
        match (self.class(), self) {
            // Users' processes can keep instances in use, fill memory and keep the driver busy.
            (ErrorClass::Transient, _) => Cause::User,
            (ErrorClass::Broken, NvmlError::Call { .. }) => Cause::Hardware,
            (ErrorClass::Broken, NvmlError::Start { .. } | NvmlError::Missing { .. }) => {
                Cause::Root
            }
        }
    }
}

/// Whether a retry can help with a file error: users can use up the space that root needs, and free it.
pub fn class_of_file(error: &FileError) -> ErrorClass {
    if error.is_shortage() { ErrorClass::Transient } else { ErrorClass::Broken }
}

#[cfg(test)]
mod tests;
