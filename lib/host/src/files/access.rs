//! Who may use a directory: modes and access lists, and whether root may write.

use std::os::fd::AsFd;

use gpufrac_core::ids::UserId;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat, fstat};
use nix::unistd::{AccessFlags, faccessat};

use super::{FileError, RootDir};
use crate::acl;

/// Read for the group and for others.
const LISTED: u32 = 0o044;

impl RootDir {
    /// The permissions of the directory. Errors: they cannot be read.
    pub fn mode(&self) -> Result<u32, FileError> {
        let stat = fstat(&self.fd)
            .map_err(|e| FileError::io("reading the attributes of", &self.path, e))?;
        Ok(stat.st_mode & 0o7777)
    }

    /// Sets the permissions of the directory. Errors: they cannot be set.
    pub fn set_mode(&self, mode: u32) -> Result<(), FileError> {
        fchmod(&self.fd, Mode::from_bits_truncate(mode))
            .map_err(|e| FileError::io("setting the mode of", &self.path, e))
    }

    /// Sets the permissions of a file in the directory. A missing file is no error. Errors: they cannot be set.
    pub fn set_file_mode(&self, name: &str, mode: u32) -> Result<(), FileError> {
        let (mode, flags) = (
            Mode::from_bits_truncate(mode),
            FchmodatFlags::NoFollowSymlink,
        );
        match fchmodat(self.fd.as_fd(), name, mode, flags) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(FileError::io("setting the mode of", &self.at(name), error)),
        }
    }

    /// Checks that files can be written in the directory. A server of files may deny that to root: NFS does unless the
    /// export has no_root_squash (exports(5)). Errors: they cannot be written.
    pub fn must_be_writable(&self) -> Result<(), FileError> {
        faccessat(
            &self.fd,
            ".",
            AccessFlags::W_OK | AccessFlags::X_OK,
            AtFlags::empty(),
        )
        .map_err(|e| FileError::io("writing to", &self.path, e))
    }

    /// Whether nobody but root can list the directory. Errors: the permissions cannot be read.
    pub fn is_closed(&self) -> Result<bool, FileError> {
        Ok(self.mode()? & LISTED == 0)
    }

    /// Lets these users, and no others but root, list this directory and open files in it, as the modes of the files
    /// allow. Errors: the file system keeps no access lists.
    pub fn let_list(&self, users: &[UserId]) -> Result<(), FileError> {
        acl::set(&self.place("."), 7, 5, users)
            .map_err(|e| FileError::io("setting the access list of", &self.path, e))
    }

    /// Whether the file system keeps access lists (acl(5)).
    pub fn keeps_lists(&self) -> bool {
        acl::are_kept(&self.place("."))
    }

    /// Lets these users, and no others but root, pass through this directory: they can open files whose name they
    /// know, if the mode of the file allows it.
    pub fn let_pass(&self, users: &[UserId]) -> Result<(), FileError> {
        acl::set(&self.place("."), 7, 1, users)
            .map_err(|e| FileError::io("setting the access list of", &self.path, e))
    }

    /// Whether others than root can pass through, by [`RootDir::let_pass`].
    pub fn is_passable(&self) -> Result<bool, FileError> {
        let stat = fstat(&self.fd)
            .map_err(|e| FileError::io("reading the attributes of", &self.path, e))?;
        Ok(stat.st_mode & 0o011 != 0)
    }

    /// Lets these users, and no others but root, read the file or device `name`.
    pub fn let_read(&self, name: &str, users: &[UserId]) -> Result<(), FileError> {
        acl::set(&self.place(name), 4, 4, users)
            .map_err(|e| FileError::io("setting the access list of", &self.at(name), e))
    }
}
