//! The release of the Slurm daemon that started this program.
//!
//! Used if Slurm does not answer: after an upgrade an old libslurm may still be on the disk, and slurmctld's answer
//! to it looks like any other failure.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Release, stock};

/// The library that Slurm's own programs have mapped, linked or through their plugins.
const LIBRARY: &str = "libslurmfull.so";
/// The most generations above this program in which slurmd is looked for; sites put their own scripts between.
const GENERATIONS: usize = 8;

/// The release of the nearest ancestor process that is Slurm's, read from the plugins on its disk. None if there is
/// none, or it cannot be determined.
pub fn release_of_parent() -> Option<Release> {
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..GENERATIONS {
        if let Some(library) = library_of(pid) {
            return stock::beside(library.parent()?);
        }
        pid = parent_of(pid).filter(|pid| *pid > 1)?;
    }
    None
}

/// The path of Slurm's library in a process.
fn library_of(pid: u32) -> Option<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    library_in(&maps).map(Path::to_path_buf)
}

/// The path of Slurm's library in the text of `/proc/PID/maps`. If the file was replaced, the path there has `
/// (deleted)` behind it, and the file that lies there now says nothing about the running process.
fn library_in(maps: &str) -> Option<&Path> {
    let mut paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .map(Path::new);
    paths.find(|path| path.file_name().is_some_and(|name| name == LIBRARY))
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_library_is_found_among_what_is_mapped() {
        let maps = "\
55d0c0a00000-55d0c0a2e000 r--p 00000000 fe:00 1 /usr/sbin/slurmd\n\
7f1200000000-7f1200001000 rw-p 00000000 00:00 0 \n\
7f1207000000-7f1207030000 r--p 00000000 fe:00 2 /opt/my slurm/lib/slurm/libslurmfull.so\n\
7f1207100000-7f1207130000 r--p 00000000 fe:00 3 /usr/lib/libc.so.6\n";
        let expected = Path::new("/opt/my slurm/lib/slurm/libslurmfull.so");
        assert_eq!(library_in(maps), Some(expected));
        let without: Vec<_> = maps.lines().filter(|line| !line.contains("full")).collect();
        assert_eq!(library_in(&without.join("\n")), None);
        let replaced = maps.replace("full.so", "full.so (deleted)");
        assert_eq!(library_in(&replaced), None);
    }

    #[test]
    fn the_process_above_is_known() {
        let parent = std::os::unix::process::parent_id();
        assert_eq!(parent_of(std::process::id()), Some(parent));
    }
}
