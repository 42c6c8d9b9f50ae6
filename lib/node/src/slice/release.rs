//! The epilog's work: removes the slices of a job, in any state. Slurm may run an epilog twice, and for a job that
//! the prolog requeued.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_core::lease::{Lease, LeaseState};

use crate::fault::{Cause, Caused, Facts};
use crate::gpu::locked::LockedGpu;
use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::slice::drain::drain;
use crate::slice::failpoint::reached;
use crate::slice::hooks;
use crate::slice::keep;
use crate::slice::remains::{self, Effort};
use crate::slice::teardown::{self, Found, TeardownError};
use crate::slice::waiting::{Hook, Waiting};
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::line::{Epilog, Line};
use crate::state::locks::{LockError, Locks};
use crate::state::outcomes::{Ending, Outcome};
use crate::state::stuck::{self, Stuck};
use crate::state::without;
use gpufrac_host::exit::Exit;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_host::pause::Pause;
use gpufrac_nvml::{ErrorClass, NvmlError, Session};

/// How long processes that are ending are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// The reasons why a slice could not be released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error(transparent)]
    Teardown(#[from] TeardownError),
}

impl ReleaseError {
    /// Whether processes do not end: the GPU then has a fault, which the next job cannot correct.
    pub fn is_undead(&self) -> bool {
        matches!(self, ReleaseError::Teardown(TeardownError::Share(error)) if error.is_undead())
    }

    /// Whether an admin must look at the node.
    pub fn drains(&self) -> bool {
        let is_ill = self.class() == ErrorClass::Broken || self.is_undead();
        is_ill && self.cause() != Cause::User
    }
}

impl Caused for ReleaseError {
    fn facts(&self) -> Facts {
        match self {
            ReleaseError::Store(error) => error.facts(),
            ReleaseError::File(error) => error.facts(),
            ReleaseError::Lock(error) => error.facts(),
            ReleaseError::Nvml(error) => error.facts(),
            ReleaseError::Teardown(error) => error.facts(),
        }
    }
}

/// Whether instances are kept for the next job of the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    /// Instances of pools with `reuse` are kept.
    Keep,
    /// All instances are destroyed, because another run of the job begins.
    End,
}

/// Releases all slices of a job, the last one first, with one common time for processes that are ending. A slice that
/// cannot be removed, or whose lease cannot be read, does not keep the others. Of several errors the most serious one
/// is returned.
pub fn release(node: &Node, job_id: JobId, log: &JobLog) -> Result<(), ReleaseError> {
    let mut waiting = Waiting::new(Hook::Epilog, job_id, node, None, log);
    release_in_time(node, job_id, log, Reuse::End, &mut waiting).map(drop)
}

/// As [`release`]. Returns the number of the job's leases.
fn release_in_time(
    node: &Node,
    job_id: JobId,
    log: &JobLog,
    reuse: Reuse,
    waiting: &mut Waiting<'_>,
) -> Result<usize, ReleaseError> {
    let store = node.leases()?;
    without::forget(&node.run, job_id)?;
    let (mut leases, damaged) = store.readable_of_job(job_id)?;
    // Kept by an earlier epilog.
    leases.retain(|lease| reuse == Reuse::End || lease.state != LeaseState::Kept);
    let _at_work = note(node, &leases, log);
    // All leases before any wait: only this program knows that the job has ended, and it may be killed.
    mark(&store, &leases, log);
    remains::end_group(node, job_id, log);
    if let Some(lease) = leases.iter().find(|lease| !keeps(node, lease, reuse)) {
        hooks::before_destroy(node, lease, log);
    }
    let end_holders = |lease: &Lease| remains::end_holders(node, lease, Effort::Thorough, log);
    let has_neighbours = |lease: &&Lease| lease.slice.mps().is_some_and(|mps| !mps.private);
    let (of_daemon, others): (Vec<&Lease>, Vec<&Lease>) = leases.iter().partition(has_neighbours);
    // Such processes keep an instance in use. The search takes time, so it runs before others have to wait.
    others.into_iter().for_each(end_holders);
    let failed = if leases.is_empty() {
        Vec::new()
    } else {
        let locks = node.locks()?;
        let mut release = Release {
            node,
            log,
            store: &store,
            locks: &locks,
            lines: BTreeMap::new(),
            reuse,
            waiting,
            session: None,
        };
        let released = leases.iter().rev().map(|lease| release.one(lease));
        released.filter_map(Result::err).collect()
    };
    // A client that is killed at work may take those of other jobs with it: its daemon has released it first.
    of_daemon.into_iter().for_each(end_holders);
    let errors = damaged.into_iter().map(ReleaseError::from).chain(failed);
    match errors.reduce(|first, next| worse(first, next, log)) {
        Some(error) => Err(error),
        None => Ok(leases.len()),
    }
}

/// Notes this epilog, so that other programs do not repair its leases before its turn. Without a note they do, and
/// this epilog finds nothing to do.
fn note(node: &Node, leases: &[Lease], log: &JobLog) -> Vec<Epilog> {
    let gpu = |lease: &Lease| (lease.slice.gpu_index, lease.job_id);
    let gpus: BTreeSet<(GpuIndex, JobId)> = leases.iter().map(gpu).collect();
    let note = |(gpu, job)| Ok::<_, ReleaseError>(node.locks()?.note_epilog(gpu, job)?);
    let mut notes = Vec::new();
    for gpu in gpus {
        // Programs that wait for this GPU do not know that an epilog is coming. Cure: Follow the text: space and rights
        // of /run/gpufrac.
        match note(gpu) {
            Ok(note) => notes.push(note),
            Err(error) => log.warning(format!(
                "announcing this epilog to other programs failed: {error}"
            )),
        }
    }
    notes
}

/// Marks the slices of a job that must not run, without waiting: its epilog releases them.
pub fn mark_all(node: &Node, job_id: JobId, log: &JobLog) -> Result<(), StoreError> {
    let store = node.leases()?;
    let (leases, _) = store.readable_of_job(job_id)?;
    mark(&store, &leases, log);
    Ok(())
}

/// The mark needs no lock: every program that reads it may end the lease. An incomplete lease can be ended without a
/// mark.
fn mark(store: &LeaseStore, leases: &[Lease], log: &JobLog) {
    for lease in leases.iter().rev() {
        if lease.state != LeaseState::Active {
            continue;
        }
        // The lease could not be marked. Cure: Follow the text; the epilog goes on.
        match store.mark_releasing_without_lock(lease) {
            Ok(()) => reached("release.releasing_written"),
            Err(error) => log.warning(format!(
                "marking {} as releasing failed: {error}",
                lease.place()
            )),
        }
    }
}

/// The error that drains the node, if one of them does; the other one is logged.
fn worse(first: ReleaseError, next: ReleaseError, log: &JobLog) -> ReleaseError {
    let (kept, other) =
        if next.drains() && !first.drains() { (next, first) } else { (first, next) };
    // One of several slices of the job stays. Cure: Follow the text; it is tried again.
    log.error(format!("releasing one of the slices failed: {other}"));
    kept
}

/// The release of a job's slices.
struct Release<'a, 'w> {
    node: &'a Node,
    log: &'a JobLog,
    store: &'a LeaseStore,
    locks: &'a Locks,
    /// The job's place in the queue of each GPU, one for all of its slices there.
    lines: BTreeMap<GpuIndex, Line<'a>>,
    reuse: Reuse,
    waiting: &'a mut Waiting<'w>,
    /// One session for all slices, unless an error occurs.
    session: Option<Session>,
}

impl Release<'_, '_> {
    fn one(&mut self, lease: &Lease) -> Result<(), ReleaseError> {
        let mut pause = Pause::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut reuse = self.reuse;
        loop {
            let error = match self.try_once(lease, reuse) {
                Ok(Tried::Done) => return Ok(()),
                Ok(Tried::NotKept) => {
                    reuse = Reuse::End;
                    continue;
                }
                Err(error) if error.class() == ErrorClass::Transient => error,
                Err(error) => return Err(error),
            };
            let left = match error {
                // The wait was long enough.
                ReleaseError::Lock(LockError::Timeout { .. }) => Duration::ZERO,
                _ => self.waiting.heals_within(PATIENCE),
            };
            if left.is_zero() {
                count_failure(self.node, lease, &error, self.log);
                return Err(error);
            }
            pause.sleep(left);
        }
    }

    /// Holds the GPU for one attempt only: others make slices on it between two attempts.
    fn try_once(&mut self, lease: &Lease, reuse: Reuse) -> Result<Tried, ReleaseError> {
        // A prolog's repair may have ended it.
        let Some(now) = self.store.again(lease)? else {
            return Ok(Tried::Done);
        };
        // Starting the driver is slow: no program should wait for it, and a kept instance does not need it.
        let keeps = keeps(self.node, &now, reuse);
        let session = match (keeps, self.session.take()) {
            (true, session) => session,
            (false, Some(session)) => Some(session),
            (false, None) => Some(self.node.nvml()?),
        };
        let gpu_index = lease.slice.gpu_index;
        let line = match self.lines.entry(gpu_index) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(place) => place.insert(self.locks.line(gpu_index)?),
        };
        let lock = self.waiting.turn(line)?;
        reached("release.locked");
        let Some(mut lease) = self.store.again(lease)? else {
            self.session = session;
            return Ok(Tried::Done);
        };
        if keeps && keep::keep(self.node, self.store, &lock, &lease, self.log) {
            // `reuse` is set. The next job of the same user gets the instance at once. Cure: Nothing.
            self.log
                .info(format!("keeps {} for user {}", lease.place(), lease.user));
            self.session = session;
            return Ok(Tried::Done);
        }
        let Some(session) = session else {
            return Ok(Tried::NotKept);
        };
        let retried = teardown::begin(self.store, &lock, &mut lease)?;
        let gpu = teardown::gpu_of(self.node, &session, &lease)?;
        let mut locked = LockedGpu::new(lock, self.node, self.store, gpu, self.log);
        let found = teardown::end(&mut locked, &mut lease, retried)?;
        drop(locked);
        self.session = Some(session);
        let what = match found {
            Found::Ours => "released",
            Found::Nothing => "released; its instance was gone already:",
            Found::Foreign => {
                "released; its instance was gone, another stands in its place and stays:"
            }
        };
        self.log.info(format!("{what} {}", lease.place()));
        Ok(Tried::Done)
    }
}

/// Whether an instance stays for the next job.
fn keeps(node: &Node, lease: &Lease, reuse: Reuse) -> bool {
    reuse == Reuse::Keep && keep::may_be_kept(node, lease)
}

/// Counts a failure to remove the slice of a lease, which keeps its place.
pub fn count_failure(node: &Node, lease: &Lease, error: &dyn std::fmt::Display, log: &JobLog) {
    if let Err(error) = stuck::fail(node, Stuck::of_lease(lease, error.to_string())) {
        log.warning(format!("counting the failure failed: {error}"));
    }
}

/// The outcome of one attempt to release a slice.
enum Tried {
    /// The slice is removed or kept.
    Done,
    /// The instance cannot be kept. Its destruction needs a session, and the GPU is given to others while the session
    /// starts.
    NotKept,
}

/// Releases the slices, and converts the result into the exit status.
pub fn epilog(node: &Node, job_id: JobId, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    if !node.has_pools() && has_no_lease(node, job_id) {
        return Exit::Done;
    }
    let start = Instant::now();
    let mut waiting = Waiting::new(Hook::Epilog, job_id, node, Some(slurm), log);
    let released = release_in_time(node, job_id, log, Reuse::Keep, &mut waiting);
    let ending = match &released {
        // The job had no slice here, or the node was never set up.
        Ok(0) | Err(ReleaseError::Store(StoreError::Absent { .. })) => return Exit::Done,
        Ok(_) => Ending::Released,
        Err(error) => Ending::NotReleased(error.cause()),
    };
    Outcome::new(ending, start.elapsed(), waiting.waited()).count(node, log);
    match released {
        Ok(_) => Exit::Done,
        Err(error) if !error.drains() => {
            // Not a fault of the node. The lease records what must be done, its place stays taken, and the next
            // prolog on this GPU tries again.

            // The slice is still in use or the driver is busy. Cure: Nothing: the reaper, the next prolog or epilog try
            // again.
            log.error(format!("the slice cannot be released yet: {error}"));
            Exit::Done
        }
        Err(error) => {
            // The slice stays, and the node is drained. Cure: Follow the text; then `scontrol update NodeName=NODE
            // State=RESUME`.
            log.error(format!("the slice cannot be released: {error}"));
            let reason = format!("the slice of job {job_id} cannot be released: {error}");
            drain(node, slurm, &reason, log);
            Exit::Broken
        }
    }
}

/// Whether the job has no lease on a node without a pool; the node may have had a pool when the job started.
fn has_no_lease(node: &Node, job_id: JobId) -> bool {
    let leases = node
        .leases()
        .and_then(|store| store.readable_of_job(job_id));
    leases.map_or_else(
        |error| matches!(error, StoreError::Absent { .. }),
        |(leases, damaged)| leases.is_empty() && damaged.is_empty(),
    )
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
            still: Duration::from_secs(20),
        })
    }

    fn damaged() -> ReleaseError {
        ReleaseError::Store(StoreError::Lease {
            path: "7.1".into(),
            source: LeaseError::Checksum,
        })
    }

    #[test]
    fn a_draining_error_is_reported_before_a_passing_one() {
        let log = JobLog::new(JobId(7));
        assert!(damaged().drains() && !locked().drains());
        assert!(worse(locked(), damaged(), &log).drains());
        assert!(worse(damaged(), locked(), &log).drains());
        assert!(!worse(locked(), locked(), &log).drains());
    }
}
