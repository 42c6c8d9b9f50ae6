//! The open sessions of the node, and the turns on each GPU, across all processes. Both are locks on bytes of files
//! in `state`, which the kernel releases when their process ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The file in which each session locks its own byte.
pub(crate) const SESSIONS: &str = "sessions";
/// The file in which a process that changes a GPU locks the byte with its index.
pub(crate) const TURNS: &str = "turns";

/// Bytes that sessions may hold.
const END: i64 = i64::MAX;

/// A counted session, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat(File);

/// A GPU that no other process changes until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held, not read")] File);

fn open(root: &Path, name: &str) -> io::Result<File> {
    let path = root.join("state").join(name);
    OpenOptions::new().read(true).write(true).open(path)
}

/// Uses the kernel's locks of open file descriptions, so that two sessions of one process count as two.
fn lock(file: &File, command: i32, start: i64, length: i64) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    loop {
        // SAFETY: a plain system call on a descriptor that is open, with a struct that is ours.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } == 0 {
            return Ok(lock);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Seat {
    /// Locks a byte at or after `wanted`; None if the files of the node cannot be written.
    pub fn take(root: &Path, wanted: u64) -> Option<Seat> {
        let file = open(root, SESSIONS).ok()?;
        let first = (wanted & 0xffff_ffff) as i64;
        let taken = (first..first + 64).any(|byte| lock(&file, libc::F_OFD_SETLK, byte, 1).is_ok());
        taken.then_some(Seat(file))
    }

    /// The number of other open sessions.
    pub fn others(&self) -> u64 {
        others(&self.0, 0, END)
    }
}

/// The number of open sessions, for a caller without a session.
pub(crate) fn all(root: &Path) -> u64 {
    open(root, SESSIONS).map_or(0, |file| others(&file, 0, END))
}

/// The kernel reports one lock in a range, and not always the first; the others are on both sides of it.
fn others(file: &File, from: i64, to: i64) -> u64 {
    if from >= to {
        return 0;
    }
    match lock(file, libc::F_OFD_GETLK, from, to - from) {
        Ok(found) if found.l_type != libc::F_UNLCK as i16 => {
            let behind = found.l_start.saturating_add(found.l_len.max(1));
            1 + others(file, from, found.l_start) + others(file, behind, to)
        }
        _ => 0,
    }
}

impl Turn {
    /// Waits for the turn on a GPU; None if the files of the node cannot be written.
    pub fn wait(root: &Path, gpu: usize) -> Option<Turn> {
        let file = open(root, TURNS).ok()?;
        lock(&file, libc::F_OFD_SETLKW, gpu as i64, 1).ok()?;
        Some(Turn(file))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn node() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("state")).unwrap();
        for name in [SESSIONS, TURNS] {
            File::create(folder.path().join("state").join(name)).unwrap();
        }
        folder
    }

    #[test]
    fn every_session_counts_the_others() {
        let folder = node();
        let root = folder.path();
        assert_eq!(all(root), 0);
        // In no order; two want the same byte.
        let wanted = [9, 4, u64::MAX, 4, 0];
        let mut seats: Vec<Seat> = wanted.map(|at| Seat::take(root, at).unwrap()).into();
        assert_eq!(all(root), 5);
        assert!(seats.iter().all(|seat| seat.others() == 4));
        seats.remove(1);
        assert!(seats.iter().all(|seat| seat.others() == 3));
        drop(seats);
        assert_eq!(all(root), 0);
    }

    #[test]
    fn turns_are_of_one_gpu() {
        let folder = node();
        let held = Turn::wait(folder.path(), 0).unwrap();
        // The turn on another GPU does not matter.
        let _other = Turn::wait(folder.path(), 1).unwrap();
        let root = folder.path().to_owned();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let turn = Turn::wait(&root, 0);
            let _ = tell.send(turn.is_some());
        });
        let early = told.recv_timeout(std::time::Duration::from_millis(50));
        assert!(early.is_err(), "two have the turn");
        drop(held);
        assert!(told.recv().unwrap());
    }
}
