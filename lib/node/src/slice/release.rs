//! The epilog's work: the slices of a job go, whatever state they are in. Slurm may run an epilog
//! twice, and for a job that the prolog gave back.

use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};

use crate::cause::{Cause, Caused};
use crate::gpu::locked::LockedGpu;
use crate::node::{Node, class_of_file};
use crate::slice::failpoint::reached;
use crate::slice::reconcile::place;
use crate::slice::remains::{self, Effort};
use crate::slice::teardown::{self, Found, TeardownError};
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::locks::LockError;
use crate::state::without;
use gpufrac_host::exit::Exit;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_host::pause::Pause;
use gpufrac_nvml::{ErrorClass, NvmlError};

/// How long dying processes are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Why a slice could not be released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The lease cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The locks cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The GPU cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// NVML cannot be started.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The instance cannot be taken down.
    #[error(transparent)]
    Teardown(#[from] TeardownError),
}

impl ReleaseError {
    /// Whether processes do not die: then the GPU is ill, and no next job mends it.
    pub fn is_undead(&self) -> bool {
        matches!(self, ReleaseError::Teardown(TeardownError::Share(error)) if error.is_undead())
    }

    /// Whether an admin has to look at the node.
    pub fn drains(&self) -> bool {
        let is_ill = self.class() == ErrorClass::Broken || self.is_undead();
        is_ill && self.cause() != Cause::User
    }

    /// Whether waiting may help. What a user can bring about is waited for, as it is not the node's fault.
    pub fn class(&self) -> ErrorClass {
        if self.cause() == Cause::User {
            return ErrorClass::Transient;
        }
        match self {
            ReleaseError::Store(error) => error.class(),
            ReleaseError::File(error) => class_of_file(error),
            ReleaseError::Lock(error) => error.class(),
            ReleaseError::Nvml(error) => error.class(),
            ReleaseError::Teardown(error) => error.class(),
        }
    }
}

impl Caused for ReleaseError {
    fn cause(&self) -> Cause {
        match self {
            ReleaseError::Store(error) => error.cause(),
            ReleaseError::File(error) => error.cause(),
            ReleaseError::Lock(error) => error.cause(),
            ReleaseError::Nvml(error) => error.cause(),
            ReleaseError::Teardown(error) => error.cause(),
        }
    }
}

/// Releases all slices of a job, the last one first, with patience for processes that are dying, once for all. One
/// that cannot go, or whose lease cannot be read, does not keep the others; of several errors it is the one that calls
/// for the most.
pub fn release(node: &Node, job_id: JobId, log: &JobLog) -> Result<(), ReleaseError> {
    let store = node.leases()?;
    without::forget(&node.run, job_id)?;
    let (leases, damaged) = store.readable_of_job(job_id)?;
    // All of them before any is waited for: nobody but us knows that the job is over, and we may be killed.
    mark(&store, &leases, log);
    remains::end_group(node, job_id, log);
    for lease in &leases {
        // They would keep an instance in use, and the search takes its time, which others are not to wait for.
        remains::end_holders(node, lease, Effort::Thorough, log);
    }
    let start = Instant::now();
    let released = leases.iter().rev();
    let released = released.map(|lease| release_one(node, lease, start, log));
    let failed = released.filter_map(Result::err);
    let errors = damaged.into_iter().map(ReleaseError::from).chain(failed);
    match errors.reduce(|first, next| worse(first, next, log)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Marks the slices of a job that must not run, and waits for nothing: its epilog releases them.
pub fn mark_all(node: &Node, job_id: JobId, log: &JobLog) -> Result<(), StoreError> {
    let store = node.leases()?;
    let (leases, _) = store.readable_of_job(job_id)?;
    mark(&store, &leases, log);
    Ok(())
}

/// The mark needs no lock: whoever reads it may end the lease, as he should. One that is half-made is ended by anybody as it
/// is.
fn mark(store: &LeaseStore, leases: &[Lease], log: &JobLog) {
    for lease in leases.iter().rev() {
        if lease.state != LeaseState::Active {
            continue;
        }
        match store.mark_releasing_without_lock(lease) {
            Ok(()) => reached("release.releasing_written"),
            Err(error) => log.warning(format!("{} is not marked: {error}", place(lease))),
        }
    }
}

/// The error that drains the node, if one of them does; the other one is logged.
fn worse(first: ReleaseError, next: ReleaseError, log: &JobLog) -> ReleaseError {
    let (kept, other) = match next.drains() && !first.drains() {
        true => (next, first),
        false => (first, next),
    };
    log.error(format!("one of the slices cannot be released: {other}"));
    kept
}

fn release_one(
    node: &Node,
    lease: &Lease,
    start: Instant,
    log: &JobLog,
) -> Result<(), ReleaseError> {
    let store = node.leases()?;
    let locks = node.locks()?;
    let mut pause = Pause::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let left = PATIENCE.saturating_sub(start.elapsed());
        let once = || -> Result<(), ReleaseError> {
            // Held for one try only: others carve on this GPU while we wait.
            let patience = node.lock_patience.saturating_sub(start.elapsed());
            let lock = locks.gpu(lease.slice.gpu_index, patience)?;
            reached("release.locked");
            // A prolog's repair may have been here meanwhile.
            let Some(mut lease) = store.again(lease)? else {
                return Ok(());
            };
            let retried = teardown::begin(&store, &lock, &mut lease)?;
            let session = node.nvml()?;
            let gpu = teardown::gpu_of(&session, &lease)?;
            let mut locked = LockedGpu::new(lock, node, &store, gpu, log);
            let found = teardown::end(&mut locked, &mut lease, retried)?;
            let what = match found {
                Found::Ours => "released",
                Found::Nothing => "released; its instance was gone already:",
                Found::Foreign => {
                    "released; its instance was gone, another stands in its place and stays:"
                }
            };
            log.info(format!("{what} {}", place(&lease)));
            Ok(())
        };
        match once() {
            // Waited for long enough.
            Err(error @ ReleaseError::Lock(_)) => return Err(error),
            Err(error) if error.class() == ErrorClass::Transient && !left.is_zero() => {
                pause.sleep(left);
            }
            other => return other,
        }
    }
}

/// Releases and turns the result into what Slurm is told.
pub fn epilog(node: &Node, job_id: JobId, log: &JobLog) -> Exit {
    match release(node, job_id, log) {
        Ok(()) => Exit::Done,
        // Never set up: then nothing was carved here either.
        Err(ReleaseError::Store(StoreError::Absent { .. })) => Exit::Done,
        Err(error) if !error.drains() => {
            // Not the node's fault. The lease says what is to be done, its place stays taken, and
            // the next prolog on this GPU tries again.
            log.error(format!("the slice cannot be released yet: {error}"));
            Exit::Done
        }
        Err(error) => {
            log.error(format!("the slice cannot be released: {error}"));
            Exit::Broken
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::ids::GpuIndex;
    use gpufrac_core::lease::LeaseError;

    fn locked() -> ReleaseError {
        ReleaseError::Lock(LockError::Timeout {
            gpu_index: GpuIndex(0),
            path: "gpu0".into(),
            waited: Duration::from_secs(20),
        })
    }

    fn damaged() -> ReleaseError {
        ReleaseError::Store(StoreError::Lease {
            path: "7.1".into(),
            source: LeaseError::Checksum,
        })
    }

    #[test]
    fn what_drains_the_node_is_not_hidden_by_what_passes() {
        let log = JobLog::new(JobId(7));
        assert!(damaged().drains() && !locked().drains());
        assert!(worse(locked(), damaged(), &log).drains());
        assert!(worse(damaged(), locked(), &log).drains());
        assert!(!worse(locked(), locked(), &log).drains());
    }
}
