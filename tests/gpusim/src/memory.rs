//! The folder of simulated nodes: in memory if possible, as `/run` of a real node is.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

/// The free bytes that a file system in memory must have; each node has a copy of the library.
const ROOM: u64 = 1 << 30;

/// The folder for simulated nodes: one in memory if device nodes and programs work there, otherwise that for
/// temporary files. On a disk, state files that are replaced hundreds of times take seconds.
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
