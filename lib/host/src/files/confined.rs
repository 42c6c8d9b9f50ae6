//! Folders with a file system of their own: writing there fills no other file system.

use nix::fcntl::AtFlags;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{fstat, fstatat};

use super::{FileError, RootDir};

/// As many files as a folder of ours has, and some more.
const INODES: u32 = 64;

impl RootDir {
    /// The folder `name` with a file system in memory of its own, which holds `bytes` and no more; both are made unless
    /// they are there.
    ///
    /// # Errors
    /// The folder cannot be made, or nothing can be mounted on it.
    pub fn confine(&self, name: &str, bytes: u64, mode: u32) -> Result<RootDir, FileError> {
        let path = self.at(name);
        RootDir::create(&path, mode)?;
        if !self.is_confined(name)? {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            let options = format!("size={bytes},nr_inodes={INODES},mode={mode:04o}");
            let place = self.place(name);
            let kind = Some("tmpfs");
            mount(Some("gpufrac"), &place, kind, flags, Some(options.as_str()))
                .map_err(|e| FileError::io("mount a tmpfs on", &path, e))?;
        }
        RootDir::open(&path)
    }

    /// Takes the file system of [`RootDir::confine`] off again, with all that is in it. Whoever has a file open there
    /// keeps it. None is no error.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn unconfine(&self, name: &str) -> Result<(), FileError> {
        while self.is_confined(name)? {
            let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
            umount2(&self.place(name), flags)
                .map_err(|e| FileError::io("unmount", &self.at(name), e))?;
        }
        Ok(())
    }

    /// Whether a folder has a file system of its own; false if there is none.
    fn is_confined(&self, name: &str) -> Result<bool, FileError> {
        let io = |error| FileError::io("stat", &self.at(name), error);
        let own = fstat(&self.fd).map_err(io)?;
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(inside) => Ok(inside.st_dev != own.st_dev),
            Err(nix::errno::Errno::ENOENT) => Ok(false),
            Err(error) => Err(io(error)),
        }
    }
}
