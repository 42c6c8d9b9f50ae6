//! The errors of [`super::RootDir`].

use std::io;
use std::path::{Path, PathBuf};

use crate::shortage;

/// The largest text file that is read; all files of gpufrac are much smaller.
pub(super) const MAX_TEXT_BYTES: u64 = 4 << 20;

/// A file or directory that could not be used, or must not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused the operation; the text is the kernel's.
    /// Cure: Follow the text: rights, space, or the path.
    #[error("{action} `{}` failed: {source}", path.display())]
    Io {
        /// The operation: "opening", "renaming", ...
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Root does not follow links, because a user could change them.
    /// Cure: Write the path that the link leads to.
    #[error("`{}` is a symbolic link: root's files are not looked up through links, write the path that it leads to", path.display())]
    Link { path: PathBuf },
    /// A user could change the file.
    /// Cure: `chown root:root`, and `chmod go-w` on the file and each folder above.
    #[error("`{}` belongs to uid {owner} with mode {mode:04o}: only root may be able to change it", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A user could open the lock and hold it.
    /// Cure: Run the `chmod` of the message.
    #[error("keeping a lock in `{}` failed: users can enter it (mode {mode:04o}) and could hold the lock; run `chmod 700 {}`", path.display(), path.display())]
    NotPrivate {
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something else has the name of gpufrac's file.
    /// Cure: Remove it, or name another folder in `[paths]`.
    #[error("`{}` is not {expected}: gpufrac does not overwrite files of others; remove it", path.display())]
    Foreign {
        path: PathBuf,
        /// The expected type.
        expected: &'static str,
    },
    /// A path is relative or has `..`.
    /// Cure: Write the whole path.
    #[error("`{}` is not an absolute path without `..`", path.display())]
    Relative { path: PathBuf },
    /// The file is too large or binary.
    /// Cure: Look at the file; gpufrac did not write it.
    #[error("`{}` is not UTF-8 text of less than {MAX_TEXT_BYTES} bytes", path.display())]
    NotText { path: PathBuf },
}

impl FileError {
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        FileError::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Whether the file or one of its directories does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the caller lacks the permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, FileError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The command that cures the error, if others than root can change the file or enter the folder.
    pub fn cure(&self) -> Option<String> {
        match self {
            FileError::Untrusted { path, .. } => {
                let path = path.display();
                Some(format!("`chown root:root {path}; chmod go-w {path}`"))
            }
            FileError::NotPrivate { path, .. } => Some(format!("`chmod 700 {}`", path.display())),
            _ => None,
        }
    }

    /// Whether the cause is a lack of a resource that users can use up, such as space; waiting may help.
    pub fn is_shortage(&self) -> bool {
        matches!(self, FileError::Io { source, .. } if shortage::is_shortage(source))
    }
}
