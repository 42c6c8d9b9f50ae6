//! Instances that are kept after their job for the next job of the same user: `reuse` of a pool. A kept instance
//! takes no place: a job that needs its place destroys it, and an instance that is not clean is never taken over.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::UserId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::log::JobLog;

use crate::cdi;
use crate::gpu::capability_files::Claimed;
use crate::gpu::instance_files::{InstanceCaps, InstanceFiles};
use crate::gpu::locked::LockedGpu;
use crate::node::{Node, now_unix};
use crate::slice::failpoint::reached;
use crate::slice::remains::{self, Effort};
use crate::slice::teardown::{self, TeardownError, reuse_of};
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::line::GpuLock;

/// The memory that a driver may report as used on an unused instance, in MiB: assumed, with a part of the memory of the
/// instance for what a driver lays out by its size. An instance with more memory in use is destroyed. Known are 3 MiB
/// on 1g of A100-40 (NVIDIA/libcudacxx issue 224), 13 MiB on 2g of A100-80 (nvitop PR 8), and 287 MiB of a whole RTX
/// PRO 6000 in MIG mode (cubecos issue 312).
const EMPTY: u64 = 64;
/// This part of the instance's memory may be in use besides.
const EMPTY_PART: u64 = 100;

/// Whether the pool of a kept lease still keeps instances, for any time.
pub(super) fn is_of_pool(node: &Node, lease: &Lease) -> bool {
    reuse_of(node, lease).is_some()
}

/// Whether the time of a kept lease is over, or its pool no longer keeps instances.
pub fn is_due(node: &Node, lease: &Lease) -> bool {
    let (Some(limit), Some(since)) = (reuse_of(node, lease), lease.kept_unix) else {
        return true;
    };
    // A clock that was set back does not prolong the time.
    let kept = now_unix().checked_sub(since);
    kept.is_none_or(|kept| kept >= limit.as_secs())
}

/// Whether a lease was marked because its job ended, and not because its time as a kept one is over, in a pool that
/// keeps instances.
pub(super) fn may_be_kept(node: &Node, lease: &Lease) -> bool {
    let has_just_ended = lease.state == LeaseState::Releasing && lease.kept_unix.is_none();
    // A whole GPU without MIG has nothing that could be kept.
    has_just_ended && lease.slice.instance().is_some() && is_of_pool(node, lease)
}

/// Keeps the instance of an ended job if its pool says so; only root has access from now on. Returns whether it is
/// kept; after any error it is destroyed instead. Needs no call of NVML: the instance is checked when it is taken
/// over. `lock`: that of its GPU.
pub(super) fn keep(
    node: &Node,
    store: &LeaseStore,
    lock: &GpuLock,
    lease: &Lease,
    log: &JobLog,
) -> bool {
    if !may_be_kept(node, lease) {
        return false;
    }
    match try_to_keep(node, store, lock, lease, log) {
        Ok(()) => true,
        Err(error) => {
            // The instance could not be kept for the next job; it is destroyed. Cure: Nothing, unless it repeats: then
            // follow the text.
            log.warning(format!("keeping {} failed: {error}", lease.place()));
            false
        }
    }
}

fn try_to_keep(
    node: &Node,
    store: &LeaseStore,
    lock: &GpuLock,
    lease: &Lease,
    log: &JobLog,
) -> Result<(), TeardownError> {
    let mut kept = lease.clone();
    kept.keep(now_unix())?;
    if let Some(instance) = lease.slice.instance() {
        InstanceFiles::beside(lease, node, lock).revoke(InstanceCaps::of(instance))?;
    }
    reached("release.caps_revoked");
    remains::end_holders(node, lease, Effort::Quick, log);
    teardown::record_usage(node, lease, true, log);
    reached("release.usage_written");
    cdi::withdraw(node, lease, log);
    store.write(lock, &kept)?;
    reached("release.kept");
    Ok(())
}

/// Whether a kept instance exists and is unused. The caller checks who holds its files.
pub(super) fn is_clean(locked: &LockedGpu<'_>, kept: &Lease) -> Result<bool, TeardownError> {
    let (Some(mig), Some(instance)) = (kept.slice.mig(), kept.slice.instance()) else {
        return Ok(false);
    };
    let claimed = locked.node.caps().claimed(locked.gpu.minor, instance)?;
    if !matches!(claimed, Claimed::Ours(_)) {
        return Ok(false);
    }
    let found = locked.instance_use(mig)?;
    let empty = MemoryMib(EMPTY + kept.slice.memory_mib.0 / EMPTY_PART);
    Ok(found.is_some_and(|found| found.memory <= empty && found.pids.is_empty()))
}

/// Whether an instance is kept that a job of this user may take over; `fits`: whether the job can use it.
pub(super) fn waits_for(
    node: &Node,
    store: &LeaseStore,
    user: UserId,
    fits: impl Fn(&Lease) -> bool,
) -> bool {
    let pools = node.config.pools_of_node(&node.name);
    if pools.iter().all(|pool| pool.options.reuse.is_none()) {
        return false;
    }
    let is_theirs = |lease: &Lease| lease.user_id == user && lease.state == LeaseState::Kept;
    let waits = |lease: &Lease| is_theirs(lease) && fits(lease) && !is_due(node, lease);
    store.list().is_ok_and(|leases| leases.iter().any(waits))
}

/// Destroys a kept instance and removes its lease. Returns whether it was destroyed.
pub(super) fn end(locked: &mut LockedGpu<'_>, kept: &mut Lease) -> bool {
    let ended = teardown::begin(locked.store, locked.lock(), kept)
        .and_then(|retried| teardown::end(locked, kept, retried));
    match &ended {
        // The kept instance was needed, or its time was over. Cure: Nothing.
        Ok(_) => locked.log.info(format!(
            "destroyed {}, which was kept for user {} after job {}",
            kept.place(),
            kept.user,
            kept.job_id
        )),
        // The driver or a process keeps the instance. Cure: It is tried again; `gpufrac clean` shows it.
        Err(error) => locked.log.warning(format!(
            "{}, which was kept after job {}, cannot be destroyed yet: {error}",
            kept.place(),
            kept.job_id
        )),
    }
    ended.is_ok()
}

/// Destroys the instances of a GPU whose time is over. Errors: the leases cannot be read.
pub fn end_due(locked: &mut LockedGpu<'_>) -> Result<(), StoreError> {
    let leases = locked.leases()?;
    let kept = leases
        .into_iter()
        .filter(|lease| lease.state == LeaseState::Kept);
    for mut lease in kept {
        if is_due(locked.node, &lease) {
            end(locked, &mut lease);
        }
    }
    Ok(())
}
