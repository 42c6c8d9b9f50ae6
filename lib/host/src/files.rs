//! Root's access to files. Each component of a path is opened without following links, and only root may be able to
//! change each directory on the way. So a user cannot exchange the files that root reads, writes, chowns or removes
//! here.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use gpufrac_core::ids::{GroupId, UserId};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, fchmod, fchmodat, fstat, fstatat, mkdirat, mknodat,
};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, fsync, geteuid, unlinkat};

mod access;
mod confined;
mod error;
#[cfg(test)]
mod tests;

pub use crate::device::{DeviceNumber, DeviceRule};
pub use error::FileError;
use error::MAX_TEXT_BYTES;

const USUAL_TEXT_BYTES: usize = 4096;

/// The outcome of [`RootDir::ensure_device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// The node existed and was right.
    Kept,
    /// The node was created.
    Created,
    /// A node with another number was replaced.
    Replaced,
}

/// An open directory that only root can change, and whose parents only root can change.
#[derive(Debug)]
pub struct RootDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl RootDir {
    /// Opens an existing directory.
    pub fn open(path: &Path) -> Result<RootDir, FileError> {
        Self::walk(path, None).map(|(dir, _)| dir)
    }

    /// As [`RootDir::open`]; None if the directory, or one on the way, does not exist.
    pub fn find(path: &Path) -> Result<Option<RootDir>, FileError> {
        if_present(Self::open(path))
    }

    /// Opens a directory; creates missing last components with `mode`. The bool says whether something was created.
    pub fn create(path: &Path, mode: u32) -> Result<(RootDir, bool), FileError> {
        Self::walk(path, Some(mode))
    }

    fn walk(path: &Path, create: Option<u32>) -> Result<(RootDir, bool), FileError> {
        if !path.is_absolute()
            || path
                .components()
                .any(|c| !matches!(c, Component::RootDir | Component::Normal(_)))
        {
            return Err(FileError::Relative {
                path: path.to_owned(),
            });
        }
        let mut reached = PathBuf::from("/");
        let mut fd = open_dir(AT_FDCWD, Path::new("/"), &reached)?;
        let mut made = false;
        for part in path.components().skip(1) {
            let name = Path::new(part.as_os_str());
            reached.push(name);
            fd = match open_dir(fd.as_fd(), name, &reached) {
                Err(error) if error.is_not_found() && create.is_some() => {
                    let mode = Mode::from_bits_truncate(create.unwrap_or(0o755));
                    match mkdirat(fd.as_fd(), name, mode) {
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(error) => return Err(FileError::io("making", &reached, error)),
                    }
                    let next = open_dir(fd.as_fd(), name, &reached)?;
                    // The mode must not depend on the umask of the calling program.
                    fchmodat(fd.as_fd(), name, mode, FchmodatFlags::FollowSymlink)
                        .map_err(|e| FileError::io("setting the mode of", &reached, e))?;
                    made = true;
                    next
                }
                other => other?,
            };
        }
        check_owner(
            &fstat(&fd).map_err(|e| FileError::io("reading the attributes of", path, e))?,
            path,
            false,
        )?;
        Ok((
            RootDir {
                fd,
                path: path.to_owned(),
            },
            made,
        ))
    }

    /// Opens a directory in this one.
    pub fn below(&self, name: &str) -> Result<RootDir, FileError> {
        let path = self.at(name);
        let fd = open_dir(self.fd.as_fd(), Path::new(name), &path)?;
        let stat = fstat(&fd).map_err(|e| FileError::io("reading the attributes of", &path, e))?;
        check_owner(&stat, &path, false)?;
        Ok(RootDir { fd, path })
    }

    /// The path by which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The names in the directory, without `.` and `..`, sorted.
    pub fn names(&self) -> Result<Vec<String>, FileError> {
        let list = |error: Errno| FileError::io("listing", &self.path, error);
        let fd = openat(
            self.fd.as_fd(),
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(list)?;
        let mut names = Vec::new();
        for entry in Dir::from_fd(fd).map_err(list)?.iter() {
            // gpufrac's names are UTF-8, so other names are skipped.
            if let Ok(name) = entry.map_err(list)?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// The text of a file; None if the file does not exist.
    pub fn read(&self, name: &str) -> Result<Option<String>, FileError> {
        let path = self.at(name);
        let Some(mut file) = self.open_existing(name, OFlag::O_RDONLY)? else {
            return Ok(None);
        };
        // As long as most texts: a file of /proc has no length, and is then read by one call and its end by another.
        let mut text = String::with_capacity(USUAL_TEXT_BYTES);
        match (&mut file)
            .take(MAX_TEXT_BYTES + 1)
            .read_to_string(&mut text)
        {
            Ok(length) if length as u64 <= MAX_TEXT_BYTES => Ok(Some(text)),
            Ok(_) => Err(FileError::NotText { path }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(FileError::NotText { path })
            }
            Err(error) => Err(FileError::io("reading", &path, error)),
        }
    }

    /// Whether the name exists, whatever its type.
    pub fn exists(&self, name: &str) -> Result<bool, FileError> {
        Ok(self.stat(name)?.is_some())
    }

    /// Whether the name is a regular file. It is an error if others than root could change the file.
    pub fn has_file(&self, name: &str) -> Result<bool, FileError> {
        Ok(self.open_existing(name, OFlag::O_RDONLY)?.is_some())
    }

    /// Writes a whole file: a reader sees the old text or the new one, even after a crash at any instruction.
    pub fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), FileError> {
        self.write_through(&Self::temporary(name), name, text, mode)
    }

    /// The temporary file of [`RootDir::write`].
    pub fn temporary(name: &str) -> String {
        format!(".{name}.tmp")
    }

    /// Whether a name is that of such a file: its writer may be at work.
    pub fn is_temporary(name: &str) -> bool {
        name.starts_with('.')
    }

    /// As [`RootDir::write`], through a temporary file of the given name. A killed writer leaves this file until the
    /// next writer uses the name; two writers with the same name must not run at once.
    pub fn write_through(
        &self,
        temporary: &str,
        name: &str,
        text: &str,
        mode: u32,
    ) -> Result<(), FileError> {
        self.remove(temporary)?;
        let written = self.write_new(temporary, text, mode).and_then(|()| {
            renameat(self.fd.as_fd(), temporary, self.fd.as_fd(), name)
                .map_err(|e| FileError::io("renaming", &self.at(temporary), e))
        });
        if written.is_err() {
            // An incomplete file would take up space that is already short.
            let _ = self.remove(temporary);
        }
        written?;
        self.sync()
    }

    fn write_new(&self, name: &str, text: &str, mode: u32) -> Result<(), FileError> {
        let path = self.at(name);
        let fd = openat(
            self.fd.as_fd(),
            name,
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::from_bits_truncate(0o600),
        )
        .map_err(|e| FileError::io("making", &path, e))?;
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())
            .map_err(|e| FileError::io("writing", &path, e))?;
        fchmod(&file, Mode::from_bits_truncate(mode))
            .map_err(|e| FileError::io("setting the mode of", &path, e))?;
        file.sync_all()
            .map_err(|e| FileError::io("syncing", &path, e))
    }

    /// Writes to a file of a pseudo file system such as /proc, where a text is a command to the kernel and a file
    /// cannot be renamed. In an ordinary file the text is appended.
    pub fn write_command(&self, name: &str, text: &str) -> Result<(), FileError> {
        let mut file = self.open_file(name, OFlag::O_WRONLY | OFlag::O_APPEND)?;
        file.write_all(text.as_bytes())
            .map_err(|e| FileError::io("writing", &self.at(name), e))
    }

    /// Opens a file for appending; creates it if it does not exist, readable for those who can list the directory.
    pub fn append(&self, name: &str) -> Result<File, FileError> {
        let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT;
        self.open_with(name, flags, self.mode()? & 0o644)
    }

    /// Appends a text by one call, so that texts of several programs do not mix; not to a file that has `most` bytes or
    /// more.
    pub fn append_text(&self, name: &str, text: &str, most: u64) -> Result<(), FileError> {
        let mut file = self.append(name)?;
        if file.metadata().is_ok_and(|data| data.len() >= most) {
            return Ok(());
        }
        file.write_all(text.as_bytes())
            .map_err(|e| FileError::io("writing", &self.at(name), e))
    }

    /// Opens a file for locking; creates it with mode 0600 if it does not exist.
    ///
    /// A process that can open a file, even only for reading, can hold its lock. Therefore only the owner may be able
    /// to enter the folder; the mode of the file alone would not stop processes that opened it earlier.
    pub fn lock_file(&self, name: &str) -> Result<File, FileError> {
        self.check_private()?;
        self.open_with(name, OFlag::O_RDWR | OFlag::O_CREAT, 0o600)
    }

    /// Checks that only the owner can enter the folder.
    pub fn check_private(&self) -> Result<(), FileError> {
        let stat = fstat(&self.fd)
            .map_err(|e| FileError::io("reading the attributes of", &self.path, e))?;
        let mode = stat.st_mode & 0o7777;
        match mode & 0o077 {
            0 => Ok(()),
            _ => Err(FileError::NotPrivate {
                path: self.path.clone(),
                mode,
            }),
        }
    }

    /// Opens a file for locking, if it exists.
    pub fn existing_lock_file(&self, name: &str) -> Result<Option<File>, FileError> {
        self.open_existing(name, OFlag::O_RDWR)
    }

    /// Renames a file in this directory, replacing a file of the new name. Returns whether the file existed.
    pub fn rename(&self, from: &str, to: &str) -> Result<bool, FileError> {
        match renameat(self.fd.as_fd(), from, self.fd.as_fd(), to) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(FileError::io("renaming", &self.at(from), error)),
        }
    }

    fn open_existing(&self, name: &str, flags: OFlag) -> Result<Option<File>, FileError> {
        if_present(self.open_file(name, flags))
    }

    fn open_file(&self, name: &str, flags: OFlag) -> Result<File, FileError> {
        self.open_with(name, flags, 0o644)
    }

    fn open_with(&self, name: &str, flags: OFlag, mode: u32) -> Result<File, FileError> {
        let path = self.at(name);
        let fd = openat(
            self.fd.as_fd(),
            name,
            flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK,
            Mode::from_bits_truncate(mode),
        )
        .map_err(|error| match error {
            Errno::ELOOP => FileError::Link { path: path.clone() },
            error => FileError::io("opening", &path, error),
        })?;
        let stat = fstat(&fd).map_err(|e| FileError::io("reading the attributes of", &path, e))?;
        if !is_of_type(&stat, SFlag::S_IFREG) {
            return Err(FileError::Foreign {
                path,
                expected: "a plain file",
            });
        }
        check_owner(&stat, &path, false)?;
        Ok(File::from(fd))
    }

    /// Removes a file. Returns whether it existed.
    pub fn remove(&self, name: &str) -> Result<bool, FileError> {
        match unlinkat(self.fd.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(FileError::io("removing", &self.at(name), error)),
        }
    }

    /// Makes renames and removals in the directory durable (fsync).
    pub fn sync(&self) -> Result<(), FileError> {
        fsync(self.fd.as_fd()).map_err(|e| FileError::io("syncing", &self.path, e))
    }

    fn stat(&self, name: &str) -> Result<Option<FileStat>, FileError> {
        match fstatat(self.fd.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(FileError::io(
                "reading the attributes of",
                &self.at(name),
                error,
            )),
        }
    }

    /// A path to `name` through the open descriptor, so that no other process can redirect it.
    fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Creates an empty file that only this user can read and write; replaces an existing file.
    pub fn make_for(&self, name: &str, user: UserId, group: GroupId) -> Result<(), FileError> {
        let path = self.at(name);
        self.remove(name)?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        let file = self.open_file(name, flags)?;
        fchown(
            &file,
            Some(Uid::from_raw(user.0)),
            Some(Gid::from_raw(group.0)),
        )
        .map_err(|e| FileError::io("setting the owner of", &path, e))?;
        fchmod(&file, Mode::from_bits_truncate(0o600))
            .map_err(|e| FileError::io("setting the mode of", &path, e))
    }

    /// A plain file of a user, to read and write, which is for programs that believe nothing in it; None if there is
    /// none of that user. The user can neither keep the opening nor put something else in its place.
    pub fn file_of(&self, name: &str, user: UserId) -> Result<Option<File>, FileError> {
        self.open_if(name, OFlag::O_RDWR, |stat| {
            is_of_type(stat, SFlag::S_IFREG) && stat.st_uid == user.0 && stat.st_nlink == 1
        })
    }

    /// Empties a file that is longer than `limit` bytes. Its writers must append.
    pub fn trim(&self, name: &str, limit: u64) -> Result<(), FileError> {
        let Some(file) = self.open_existing(name, OFlag::O_WRONLY)? else {
            return Ok(());
        };
        let long = file.metadata().is_ok_and(|data| data.len() > limit);
        if long {
            file.set_len(0)
                .map_err(|e| FileError::io("emptying", &self.at(name), e))
        } else {
            Ok(())
        }
    }

    /// Removes a file, or a directory with its content. Returns whether it existed. Links are not followed.
    pub fn remove_all(&self, name: &str) -> Result<bool, FileError> {
        match unlinkat(self.fd.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => return Ok(true),
            Err(Errno::ENOENT) => return Ok(false),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(FileError::io("removing", &self.at(name), error)),
        }
        let path = self.at(name);
        let inside = RootDir::open(&path)?;
        for file in inside.names()? {
            inside.remove_all(&file)?;
        }
        match unlinkat(self.fd.as_fd(), name, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(FileError::io("removing", &path, error)),
        }
    }

    /// Removes all permissions of a file but the owner's. A missing file is no error.
    pub fn close(&self, name: &str) -> Result<(), FileError> {
        self.set_file_mode(name, 0o600)
    }

    /// Opens a named pipe without waiting for writers; None if it does not exist.
    pub fn fifo(&self, name: &str) -> Result<Option<File>, FileError> {
        self.open_if(name, OFlag::O_RDONLY, |stat| {
            is_of_type(stat, SFlag::S_IFIFO)
        })
    }

    /// Opens a file of any owner; None if it does not exist, or is not what the caller expects.
    fn open_if(
        &self,
        name: &str,
        access: OFlag,
        is_expected: impl Fn(&FileStat) -> bool,
    ) -> Result<Option<File>, FileError> {
        // With O_NONBLOCK a pipe waits for no writer, and a user's lease (F_SETLEASE) refuses the opening instead of
        // holding it up.
        let flags = access | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = match openat(self.fd.as_fd(), name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(FileError::io("opening", &self.at(name), error)),
        };
        let stat = fstat(&fd)
            .map_err(|e| FileError::io("reading the attributes of", &self.at(name), e))?;
        Ok(is_expected(&stat).then(|| File::from(fd)))
    }

    /// The number of a character device; None if the name does not exist.
    pub fn device(&self, name: &str) -> Result<Option<DeviceNumber>, FileError> {
        match self.stat(name)? {
            None => Ok(None),
            Some(stat) => match DeviceNumber::of(&stat) {
                Some(number) => Ok(Some(number)),
                None => Err(FileError::Foreign {
                    path: self.at(name),
                    expected: "a character device",
                }),
            },
        }
    }

    /// Ensures that `name` is the character device `number` of `owner` and group root, with `mode`. A device node
    /// with another number is replaced, because major numbers may change when a driver is loaded again; any other
    /// file is refused.
    pub fn ensure_device(
        &self,
        name: &str,
        number: DeviceNumber,
        owner: UserId,
        mode: u32,
    ) -> Result<Made, FileError> {
        let path = self.at(name);
        let made = match self.device(name)? {
            Some(present) if present == number => Made::Kept,
            present => {
                if present.is_some() {
                    self.remove(name)?;
                }
                let made = mknodat(
                    self.fd.as_fd(),
                    name,
                    SFlag::S_IFCHR,
                    // Only root has access until the owner is set.
                    Mode::from_bits_truncate(mode & 0o600),
                    number.raw(),
                );
                match made {
                    Ok(()) => {}
                    // nvidia-modprobe created the node at the same time.
                    Err(Errno::EEXIST) if self.device(name)? == Some(number) => {}
                    Err(error) => return Err(FileError::io("making the device", &path, error)),
                }
                if present.is_some() { Made::Replaced } else { Made::Created }
            }
        };
        // The mode first: between both calls the old owner loses access, and no user gains any.
        fchmodat(
            self.fd.as_fd(),
            name,
            Mode::from_bits_truncate(mode),
            FchmodatFlags::NoFollowSymlink,
        )
        .map_err(|e| FileError::io("setting the mode of", &path, e))?;
        fchownat(
            self.fd.as_fd(),
            name,
            Some(Uid::from_raw(owner.0)),
            Some(Gid::from_raw(0)),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(|e| FileError::io("setting the owner of", &path, e))?;
        Ok(made)
    }
}

/// What was opened; None if it does not exist.
fn if_present<T>(opened: Result<T, FileError>) -> Result<Option<T>, FileError> {
    match opened {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &Path, path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = |how| openat(parent, name, flags | how, Mode::empty());
    let opened = match open(OFlag::O_RDONLY) {
        // A user may pass through a folder that only root can list.
        Err(Errno::EACCES) => open(OFlag::O_PATH),
        other => other,
    };
    let fd = opened.map_err(|error| match error {
        // Opening a link as a directory with O_NOFOLLOW gives ENOTDIR.
        Errno::ELOOP | Errno::ENOTDIR if is_link(parent, name) => FileError::Link {
            path: path.to_owned(),
        },
        Errno::ENOTDIR => FileError::Foreign {
            path: path.to_owned(),
            expected: "a directory",
        },
        error => FileError::io("opening", path, error),
    })?;
    let stat = fstat(&fd).map_err(|e| FileError::io("reading the attributes of", path, e))?;
    check_owner(&stat, path, true)?;
    Ok(fd)
}

fn is_link(parent: BorrowedFd<'_>, name: &Path) -> bool {
    fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| is_of_type(&stat, SFlag::S_IFLNK))
}

fn is_of_type(stat: &FileStat, kind: SFlag) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == kind.bits()
}

/// Whether only root can change the file; if gpufrac runs without root, its own user. For a directory on the way a
/// sticky one is enough, because others cannot replace root's entries in it.
fn check_owner(stat: &FileStat, path: &Path, on_the_way: bool) -> Result<(), FileError> {
    let owner = stat.st_uid;
    let mode = stat.st_mode & 0o7777;
    let writable = mode & 0o022 != 0;
    let sticky = mode & 0o1000 != 0;
    if (owner == 0 || owner == geteuid().as_raw()) && (!writable || (on_the_way && sticky)) {
        return Ok(());
    }
    Err(FileError::Untrusted {
        path: path.to_owned(),
        owner,
        mode,
    })
}
