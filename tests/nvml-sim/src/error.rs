//! Errors of the folder of a simulated node.

use std::io;
use std::path::{Path, PathBuf};

use crate::code::Code;

/// Errors of the folder of a simulated node.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file has wrong content.
    #[error("{}: {reason}; make the node again with `gpusim init`", path.display())]
    Content { path: PathBuf, reason: String },
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io { path, source }
    }

    /// NVML's code for this error.
    pub fn code(&self) -> Code {
        match self {
            StoreError::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => Code::NO_PERMISSION,
                io::ErrorKind::NotFound => Code::DRIVER_NOT_LOADED,
                _ => Code::OPERATING_SYSTEM,
            },
            StoreError::Content { .. } => Code::LIB_RM_VERSION_MISMATCH,
        }
    }
}
