//! Whether files can be written to a folder of root.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

/// Less room than this does not hold the files of a node's jobs for long.
const FEWEST_BYTES: u64 = 1 << 20;
const FEWEST_FILES: u64 = 64;

/// The reasons why nothing can be written to a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// It was mounted so, or the kernel saw an error of the disk.
    /// Cure: `dmesg`; `mount -o remount,rw`.
    #[error("its file system is read-only")]
    ReadOnly,
    /// No space is left.
    /// Cure: `df -h`.
    #[error("its file system is full ({0} KiB are free)")]
    Full(u64),
    /// Too many files.
    /// Cure: `df -i`.
    #[error("its file system has no inodes left ({0} are free)")]
    NoInodes(u64),
}

/// Why nothing can be written to this folder; None if there is room, or if the folder cannot be looked at.
pub fn shortage(folder: &Path) -> Option<NoSpace> {
    let found = statvfs(folder).ok()?;
    if found.flags().contains(FsFlags::ST_RDONLY) {
        return Some(NoSpace::ReadOnly);
    }
    let bytes = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    // File systems without a fixed number of inodes report 0 of 0.
    let files = (found.files() > 0).then(|| found.files_available());
    too_little(bytes, files)
}

fn too_little(bytes: u64, files: Option<u64>) -> Option<NoSpace> {
    match files {
        _ if bytes < FEWEST_BYTES => Some(NoSpace::Full(bytes / 1024)),
        Some(files) if files < FEWEST_FILES => Some(NoSpace::NoInodes(files)),
        _ => None,
    }
}

/// The error of opening an existing file to append to it; None for a missing file. Nothing is written.
pub fn not_appendable(path: &Path) -> Option<io::Error> {
    let mut options = OpenOptions::new();
    let opened = options
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    opened
        .err()
        .filter(|error| error.kind() != io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (admins): `gpufrac check` names folders to which nothing can be written.
    #[test]
    fn a_folder_with_room_has_no_shortage() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(shortage(folder.path()), None);
        assert_eq!(shortage(Path::new("/nowhere")), None);
        assert_eq!(too_little(512 << 10, Some(1000)), Some(NoSpace::Full(512)));
        assert_eq!(too_little(1 << 30, Some(3)), Some(NoSpace::NoInodes(3)));
        assert_eq!(too_little(1 << 30, None), None);
        let file = folder.path().join("file");
        assert!(not_appendable(&file).is_none());
        std::fs::write(&file, "").unwrap();
        assert!(not_appendable(&file).is_none());
        assert!(
            not_appendable(folder.path()).is_some(),
            "a folder is no file"
        );
    }
}
