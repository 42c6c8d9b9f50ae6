//! One lock per GPU, one for each slice of a job with several slices, and one for the daemon of the node.
//!
//! A program that changes instances, capability files or leases of a GPU holds the GPU's lock. Programs wait for the
//! lock in a queue (line.rs). The kernel drops a lock when its holder dies, so a killed prolog never keeps it.
//! All locks are in one folder that only root can enter, because a user who can open a lock can hold it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::Lease;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use gpufrac_host::files::{FileError, RootDir};

use crate::fault::{Cause, Caused, Facts, of_system_call};

/// The mode of `<run>/locks`: only for root.
pub const FOLDER_MODE: u32 = 0o700;
/// The name of gpufrac-reaperd's lock.
const DAEMON: &str = "reaper";

/// The reasons why a GPU could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The lock's file could not be locked.
    /// Cure: Follow the text: rights and space of /run/gpufrac.
    #[error("locking `{}` failed: {source}", path.display())]
    Flock {
        /// The lock file.
        path: PathBuf,
        source: Errno,
    },
    /// Another prolog or epilog hangs in the driver.
    /// Cure: Look for Xid errors; the job is requeued.
    #[error(
        "GPU {gpu_index} stayed locked by another prolog or epilog for {:.1} s, the last {:.1} s without a step of theirs (`{}`)",
        waited.as_secs_f64(),
        still.as_secs_f64(),
        path.display()
    )]
    Timeout {
        gpu_index: GpuIndex,
        /// The lock file.
        path: PathBuf,
        /// The time of the wait.
        waited: Duration,
        /// How long nothing had changed.
        still: Duration,
    },
}

impl Caused for LockError {
    fn facts(&self) -> Facts {
        match self {
            LockError::File(error) => error.facts(),
            LockError::Flock { source, .. } => of_system_call(&(*source).into()),
            // Jobs of other users start and end under the same lock.
            LockError::Timeout { .. } => Facts::passes(Cause::User),
        }
    }
}

/// The folder with the lock files.
#[derive(Debug)]
pub struct Locks {
    dir: RootDir,
}

/// The lock of a slice against other steps of the job, until it is dropped.
#[derive(Debug)]
#[must_use = "the slice is free when this is dropped"]
pub struct SliceLock {
    _file: Flock<File>,
}

/// The lock of the node's daemon, until it is dropped.
#[derive(Debug)]
#[must_use = "another daemon may begin when this is dropped"]
pub struct DaemonLock {
    _file: Flock<File>,
}

impl Locks {
    /// Opens `<run>/locks`.
    pub fn open(run: &Path) -> Result<Locks, FileError> {
        Ok(Locks {
            dir: RootDir::open(&run.join("locks"))?,
        })
    }

    /// As [`Locks::open`]; creates the folder if it is missing.
    pub fn create(run: &Path) -> Result<Locks, FileError> {
        let (dir, _) = RootDir::create(&run.join("locks"), FOLDER_MODE)?;
        Ok(Locks { dir })
    }

    /// Checks that only root can enter the folder; in another one no program takes a lock.
    pub fn check_private(&self) -> Result<(), FileError> {
        self.dir.check_private()
    }

    /// Locks the slice of a lease for a step; None if another step has it.
    pub fn slice(&self, lease: &Lease) -> Result<Option<SliceLock>, LockError> {
        let locked = self.at_once(&slice_name(lease))?;
        Ok(locked.map(|file| SliceLock { _file: file }))
    }

    /// Takes the lock of the node's daemon; None if there is another daemon.
    pub fn daemon(&self) -> Result<Option<DaemonLock>, LockError> {
        let locked = self.at_once(DAEMON)?;
        Ok(locked.map(|file| DaemonLock { _file: file }))
    }

    /// Whether the node's daemon runs. Errors: the lock cannot be checked.
    pub fn daemon_runs(&self) -> Result<bool, LockError> {
        let Some(file) = self.dir.existing_lock_file(DAEMON)? else {
            return Ok(false);
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(_) => Ok(false),
            Err((_, Errno::EWOULDBLOCK)) => Ok(true),
            Err((_, source)) => Err(LockError::Flock {
                path: self.daemon_path(),
                source,
            }),
        }
    }

    pub fn daemon_path(&self) -> PathBuf {
        self.dir.path().join(DAEMON)
    }

    /// Locks a file without waiting; None if another program holds it.
    fn at_once(&self, name: &str) -> Result<Option<Flock<File>>, LockError> {
        let file = self.dir.lock_file(name)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => Ok(Some(locked)),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
            Err((_, source)) => Err(LockError::Flock {
                path: self.dir.path().join(name),
                source,
            }),
        }
    }

    /// Removes the lock file of a lease's slice after its job has ended.
    pub fn forget_slice(&self, lease: &Lease) -> Result<(), FileError> {
        self.dir.remove(&slice_name(lease)).map(|_| ())
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn gate(&self, gpu_index: GpuIndex) -> Result<(File, PathBuf), FileError> {
        let name = format!("gpu{gpu_index}");
        Ok((self.dir.lock_file(&name)?, self.dir.path().join(&name)))
    }
}

fn slice_name(lease: &Lease) -> String {
    format!("slice{}", lease.name())
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;
    use test_examples::lease;

    fn locks() -> (tempfile::TempDir, Locks) {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        let locks = Locks::create(&run).unwrap();
        (keep, locks)
    }

    #[test]
    fn one_holder_at_a_time_per_gpu() {
        let (_keep, locks) = locks();
        let held = locks.gpu(GpuIndex(0), Duration::ZERO).unwrap();
        let _other = locks.gpu(GpuIndex(1), Duration::ZERO).unwrap();
        let error = locks
            .gpu(GpuIndex(0), Duration::from_millis(30))
            .unwrap_err();
        assert!(
            matches!(error, LockError::Timeout { gpu_index: GpuIndex(0), still, .. } if still >= Duration::from_millis(30))
        );
        drop(held);
        assert_eq!(
            locks.gpu(GpuIndex(0), Duration::ZERO).unwrap().gpu_index(),
            GpuIndex(0)
        );
    }

    #[test]
    fn one_step_at_a_time_per_slice() {
        let (_keep, locks) = locks();
        let held = locks.slice(&lease(7)).unwrap();
        assert!(held.is_some());
        assert!(locks.slice(&lease(7)).unwrap().is_none());
        assert!(locks.slice(&lease(8)).unwrap().is_some());
        drop(held);
        assert!(locks.slice(&lease(7)).unwrap().is_some());
        locks.forget_slice(&lease(7)).unwrap();
        assert!(!locks.dir.path().join("slice7").exists());
        locks.forget_slice(&lease(7)).unwrap();
    }

    #[test]
    fn one_daemon_at_a_time() {
        let (_keep, locks) = locks();
        let held = locks.daemon().unwrap();
        assert!(held.is_some());
        assert!(locks.daemon().unwrap().is_none());
        drop(held);
        assert!(locks.daemon().unwrap().is_some());
    }

    #[test]
    fn a_folder_that_others_can_enter_has_no_locks() {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        RootDir::create(&run.join("locks"), 0o711).unwrap();
        let locks = Locks::create(&run).unwrap();
        let private =
            |error: LockError| matches!(error, LockError::File(FileError::NotPrivate { .. }));
        assert!(private(locks.gpu(GpuIndex(0), Duration::ZERO).unwrap_err()));
        assert!(private(locks.slice(&lease(7)).unwrap_err()));
        assert!(private(locks.daemon().unwrap_err()));
    }

    #[test]
    fn a_waiter_gets_it_when_it_is_dropped() {
        let (_keep, locks) = locks();
        let held = locks.gpu(GpuIndex(0), Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(40));
                drop(held);
            });
            let _got = locks.gpu(GpuIndex(0), Duration::from_secs(60)).unwrap();
        });
    }
}
