//! Folders with their own small file system, so that writing to them fills no other file system.

use nix::fcntl::AtFlags;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{fstat, fstatat};

use super::{FileError, RootDir};

/// More files than such a folder ever has.
const INODES: u32 = 64;

impl RootDir {
    /// Creates the folder `name` and mounts a file system in memory on it, with room for `bytes`. Keeps both if they
    /// exist. Errors: the folder cannot be created, or the file system cannot be mounted.
    pub fn confine(&self, name: &str, bytes: u64, mode: u32) -> Result<RootDir, FileError> {
        let path = self.at(name);
        RootDir::create(&path, mode)?;
        if !self.is_confined(name)? {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            let options = format!("size={bytes},nr_inodes={INODES},mode={mode:04o}");
            let place = self.place(name);
            let kind = Some("tmpfs");
            mount(Some("gpufrac"), &place, kind, flags, Some(options.as_str()))
                .map_err(|e| FileError::io("mounting a tmpfs on", &path, e))?;
        }
        RootDir::open(&path)
    }

    /// Unmounts the file system of [`RootDir::confine`], with its content. A process with an open file there keeps
    /// the file. A missing mount is no error. Errors: the file system cannot be unmounted.
    pub fn unconfine(&self, name: &str) -> Result<(), FileError> {
        while self.is_confined(name)? {
            let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
            umount2(&self.place(name), flags)
                .map_err(|e| FileError::io("unmounting", &self.at(name), e))?;
        }
        Ok(())
    }

    /// Whether a file system is mounted on a folder; false if the folder does not exist.
    fn is_confined(&self, name: &str) -> Result<bool, FileError> {
        let io = |error| FileError::io("reading the attributes of", &self.at(name), error);
        let own = fstat(&self.fd).map_err(io)?;
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(inside) => Ok(inside.st_dev != own.st_dev),
            Err(nix::errno::Errno::ENOENT) => Ok(false),
            Err(error) => Err(io(error)),
        }
    }
}
