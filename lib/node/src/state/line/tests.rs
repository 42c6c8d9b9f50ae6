//! The order of the queue, and the remains of programs that never get their turn. `lib/node/tests/line.rs` has tests
//! with processes.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::{scope, sleep};

use super::*;

const GPU: GpuIndex = GpuIndex(0);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

struct Folder {
    _keep: tempfile::TempDir,
    locks: Locks,
    line: PathBuf,
}

fn folder() -> Folder {
    let keep = tempfile::tempdir().unwrap();
    let run = keep.path().canonicalize().unwrap();
    RootDir::create(&run.join("locks"), 0o700).unwrap();
    Folder {
        _keep: keep,
        locks: Locks::open(&run).unwrap(),
        line: run.join("locks/gpu0.line"),
    }
}

impl Folder {
    fn tickets(&self) -> usize {
        std::fs::read_dir(&self.line).map_or(0, Iterator::count)
    }

    /// Waits until this many tickets have their visible names, with that of the program that has the GPU: nobody waits
    /// for a ticket before.
    fn wait_for(&self, tickets: usize) {
        let start = Instant::now();
        let visible = || {
            let names = std::fs::read_dir(&self.line)
                .into_iter()
                .flatten()
                .flatten();
            names
                .filter(|name| !name.file_name().as_encoded_bytes().starts_with(b"."))
                .count()
        };
        while visible() != tickets {
            assert!(start.elapsed() < LONG, "{} tickets", self.tickets());
            sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn waiters_have_their_turn_in_order_of_arrival() {
    let folder = folder();
    let gone = Mutex::new(Vec::new());
    let held = folder.locks.gpu(GPU, LONG).unwrap();
    scope(|scope| {
        for number in 0..8 {
            let (folder, gone) = (&folder, &gone);
            scope.spawn(move || {
                let _lock = folder.locks.gpu(GPU, LONG).unwrap();
                gone.lock().unwrap().push(number);
            });
            folder.wait_for(number + 2);
        }
        drop(held);
    });
    assert_eq!(*gone.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(folder.tickets(), 0);
}

#[test]
fn tickets_of_killed_processes_are_removed() {
    let folder = folder();
    let mut line = folder.locks.line(GPU).unwrap();
    for left in [
        "00000000000000000001.7.1",
        "00000000000000000002.8.1",
        ".00000000000000000003.9.1",
    ] {
        std::fs::write(folder.line.join(left), "").unwrap();
    }
    let lock = line.turn(|_| false).unwrap();
    folder.wait_for(1);
    drop(lock);
    assert_eq!(folder.tickets(), 0);
}

#[test]
fn an_epilog_is_seen_while_it_is_at_work_and_nobody_waits_for_its_note() {
    let folder = folder();
    let seen = || -> Vec<u32> {
        let jobs = folder.locks.epilogs(GPU).unwrap();
        jobs.into_iter().map(|job| job.0).collect()
    };
    assert_eq!(seen(), [0; 0]);
    let first = folder.locks.note_epilog(GPU, JobId(7)).unwrap();
    let second = folder.locks.note_epilog(GPU, JobId(4711)).unwrap();
    assert_eq!(seen(), [7, 4711]);
    drop(folder.locks.gpu(GPU, Duration::ZERO).unwrap());
    drop(first);
    assert_eq!(seen(), [4711]);
    drop(second);
    // The note of a killed process.
    std::fs::write(folder.line.join("epilog8.1.1"), "").unwrap();
    assert_eq!(seen(), [0; 0]);
    assert_eq!(folder.tickets(), 0);
}

#[test]
fn a_pausing_waiter_blocks_nobody_and_keeps_its_place() {
    let folder = folder();
    let mut first = folder.locks.line(GPU).unwrap();
    drop(first.turn(|_| false).unwrap());
    // The pause between two turns.
    let second = folder.locks.gpu(GPU, Duration::ZERO).unwrap();
    let gone = Mutex::new(Vec::new());
    scope(|scope| {
        scope.spawn(|| {
            let _lock = folder.locks.gpu(GPU, LONG).unwrap();
            gone.lock().unwrap().push("third");
        });
        folder.wait_for(2);
        scope.spawn(|| {
            let _lock = first.turn(|wait| wait.still < LONG).unwrap();
            gone.lock().unwrap().push("first");
        });
        folder.wait_for(3);
        drop(second);
    });
    assert_eq!(*gone.lock().unwrap(), ["first", "third"]);
}

#[test]
fn a_line_that_moves_is_waited_for() {
    let folder = folder();
    let patience = Duration::from_millis(300);
    let held = folder.locks.gpu(GPU, LONG).unwrap();
    scope(|scope| {
        let waiter = scope.spawn(|| {
            let start = Instant::now();
            let lock = folder.locks.gpu(GPU, patience);
            lock.map(|_| start.elapsed())
        });
        // Several steps within the patience, in total longer than it.
        let start = Instant::now();
        while start.elapsed() < 3 * patience {
            held.step();
            sleep(patience / 30);
        }
        drop(held);
        assert!(waiter.join().unwrap().unwrap() >= 2 * patience);
    });
    let held = folder.locks.gpu(GPU, LONG).unwrap();
    let error = folder.locks.gpu(GPU, patience).unwrap_err();
    assert!(matches!(error, LockError::Timeout { still, .. } if still >= patience));
    drop(held);
}

#[test]
fn a_waiter_sees_the_waiters_before_it() {
    let folder = folder();
    let held = folder.locks.gpu(GPU, LONG).unwrap();
    let mut line = folder.locks.line(GPU).unwrap();
    let mut seen = None;
    let error = line.turn(|wait| {
        seen = Some(*wait);
        false
    });
    assert!(matches!(error, Err(LockError::Timeout { .. })));
    assert_eq!(seen.unwrap().ahead, 1);
    // It left the queue.
    assert_eq!(folder.tickets(), 1);
    drop(held);
    drop(line.turn(|_| false).unwrap());
}

#[test]
fn only_root_can_reach_the_tickets() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let _lock = folder.locks.gpu(GPU, LONG).unwrap();
    let mode = std::fs::metadata(&folder.line)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o700);
}
