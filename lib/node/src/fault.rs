//! The cause of an error: a user, root or the hardware. The rule: after an error that a user can cause, the job waits,
//! is held or is refused; a node is drained only for errors that only root or hardware can cause. Each error of this
//! package states its cause beside its definition; those of other packages do so here.

use std::io;

use gpufrac_core::lease::LeaseError;
use gpufrac_host::files::FileError;
use gpufrac_host::shortage::is_shortage;
use gpufrac_nvml::{ErrorClass, NvmlError};
use serde::{Deserialize, Serialize};

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A user who may submit jobs: by a request, by processes, by using up resources that all users share.
    User,
    /// Only root: files, settings, versions.
    Root,
    /// A GPU or its driver.
    Hardware,
}

/// The cause of an error, whether a retry can help, and the cure for an admin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The user, if users are among several.
    pub cause: Cause,
    pub class: ErrorClass,
    pub cure: Option<&'static str>,
}

impl Facts {
    /// An error that may pass.
    pub fn passes(cause: Cause) -> Facts {
        Facts {
            cause,
            class: ErrorClass::Transient,
            cure: None,
        }
    }

    /// An error that lasts.
    pub fn lasts(cause: Cause) -> Facts {
        Facts {
            class: ErrorClass::Broken,
            ..Facts::passes(cause)
        }
    }

    pub fn cure(mut self, cure: &'static str) -> Facts {
        self.cure = Some(cure);
        self
    }
}

/// An error of prolog or epilog.
pub trait Caused {
    /// The table of the error. What users can cause passes.
    fn facts(&self) -> Facts;

    fn cause(&self) -> Cause {
        self.facts().cause
    }

    fn class(&self) -> ErrorClass {
        self.facts().class
    }
}

/// Users can fill memory, disks and tables that they share with root, and free them.
pub fn of_system_call(error: &io::Error) -> Facts {
    if is_shortage(error) {
        Facts::passes(Cause::User)
    } else {
        Facts::lasts(Cause::Root)
    }
}

impl Caused for FileError {
    fn facts(&self) -> Facts {
        match self {
            FileError::Io { source, .. } => of_system_call(source),
            FileError::Link { .. }
            | FileError::Untrusted { .. }
            | FileError::NotPrivate { .. }
            | FileError::Foreign { .. }
            | FileError::Relative { .. }
            | FileError::NotText { .. } => Facts::lasts(Cause::Root),
        }
    }
}

impl Caused for LeaseError {
    fn facts(&self) -> Facts {
        // Only root writes leases, and always complete files.
        Facts::lasts(Cause::Root)
    }
}

impl Caused for NvmlError {
    fn facts(&self) -> Facts {
        match (NvmlError::class(self), self) {
            // Users' processes can keep instances in use, fill memory and keep the driver busy.
            (ErrorClass::Transient, _) => Facts::passes(Cause::User),
            (ErrorClass::Broken, NvmlError::Call { .. }) => Facts::lasts(Cause::Hardware),
            (ErrorClass::Broken, NvmlError::Start { .. } | NvmlError::Missing { .. }) => {
                Facts::lasts(Cause::Root)
            }
        }
    }
}

#[cfg(test)]
mod tests;
