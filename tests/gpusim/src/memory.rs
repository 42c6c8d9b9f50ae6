//! Where simulated nodes live: in memory if possible, as `/run` of a real node does.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

/// What a file system in memory must have free, in bytes: each node has a copy of the library.
const ROOM: u64 = 1 << 30;

/// The folder for the folders of nodes: one in memory where device nodes and programs work there, else the one for
/// temporary files. State files that are replaced hundreds of times take seconds on a disk.
#[must_use]
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let unusable = FsFlags::ST_NODEV | FsFlags::ST_NOEXEC | FsFlags::ST_RDONLY;
    match statvfs(memory) {
        Ok(about)
            if !about.flags().intersects(unusable)
                && about.blocks_available() * about.fragment_size() >= ROOM =>
        {
            memory.into()
        }
        _ => std::env::temp_dir(),
    }
}
