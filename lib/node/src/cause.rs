//! The cause of an error: a user, root or the hardware. The rule: after an error that a user can cause, the job waits,
//! is held or is refused; a node is drained only for errors that only root or hardware can cause.

use std::io;

use gpufrac_core::lease::LeaseError;
use gpufrac_host::files::FileError;
use gpufrac_host::shortage::is_shortage;
use gpufrac_nvml::{ErrorClass, NvmlError};

use crate::gpu::capability_files::CapsError;
use crate::gpu::compute_mode::ModeError;
use crate::mps::error::MpsError;
use crate::mps::tenants::ShareError;
use crate::state::leases::StoreError;
use crate::state::locks::LockError;
use crate::state::record::RecordError;

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
fn of_system_call(error: &io::Error) -> Cause {
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

impl Caused for StoreError {
    fn cause(&self) -> Cause {
        match self {
            StoreError::File(error) => error.cause(),
            StoreError::Lease { source, .. } => source.cause(),
            StoreError::Absent { .. } | StoreError::WrongJob { .. } => Cause::Root,
        }
    }
}

impl Caused for RecordError {
    fn cause(&self) -> Cause {
        match self {
            RecordError::File(error) => error.cause(),
            RecordError::BootId(error) => of_system_call(error),
            RecordError::Absent { .. } | RecordError::Text { .. } | RecordError::Stale { .. } => {
                Cause::Root
            }
        }
    }
}

impl Caused for LockError {
    fn cause(&self) -> Cause {
        match self {
            LockError::File(error) => error.cause(),
            LockError::Flock { source, .. } => of_system_call(&io::Error::from(*source)),
            // Jobs of other users start and end under the same lock.
            LockError::Timeout { .. } => Cause::User,
        }
    }
}

impl Caused for CapsError {
    fn cause(&self) -> Cause {
        match self {
            CapsError::File(error) => error.cause(),
            CapsError::Unreadable { .. } => Cause::Root,
        }
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

impl Caused for ModeError {
    fn cause(&self) -> Cause {
        match self {
            ModeError::File(error) => error.cause(),
            ModeError::Nvml(error) => error.cause(),
        }
    }
}

impl Caused for MpsError {
    fn cause(&self) -> Cause {
        match self {
            MpsError::File(error) => error.cause(),
            MpsError::Run { source, .. } => of_system_call(source),
            MpsError::Start { .. } | MpsError::Limit { .. } => Cause::Root,
            MpsError::Silent { .. }
            | MpsError::Absent { .. }
            | MpsError::Partition { .. }
            | MpsError::Occupied { .. } => Cause::User,
            // These are root's processes; only the kernel can keep them from ending.
            MpsError::Undead { .. } => Cause::Hardware,
        }
    }
}

impl Caused for ShareError {
    fn cause(&self) -> Cause {
        match self {
            ShareError::Mps(error) => error.cause(),
            ShareError::Store(error) => error.cause(),
        }
    }
}

#[cfg(test)]
mod tests;
