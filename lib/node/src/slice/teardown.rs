//! Removes the slice of a lease, and nothing else. An earlier run that died may have done each step before.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufrac_core::config::Pool;
use gpufrac_core::lease::{Instance, Lease, LeaseError, LeaseState, MigSlice};
use gpufrac_core::mechanism::Mechanism;

use crate::cdi;
use crate::fault::{Cause, Caused, Facts};
use crate::gpu::capability_files::{CapsError, Claimed};
use crate::gpu::compute_mode::{self, ModeError};
use crate::gpu::instance_files::{InstanceCaps, InstanceFiles};
use crate::gpu::locked::LockedGpu;
use crate::gpu::shared_session;
use crate::mps::tenants::{self, ShareError, Tenants};
use crate::node::{Node, now_boot_ms, now_unix};
use crate::slice::failpoint::reached;
use crate::slice::remains::{self, Effort};
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::line::GpuLock;
use crate::state::record::boot_id;
use crate::state::stuck::{self, Lost};
use crate::state::usage;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{ErrorClass, Gpu, NvmlError, Session, Standing};
use gpufrac_records::usage::{End, SliceKey, UsageRecord};

/// The reasons why a slice could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    /// NVML refused, or did not report the instances on the GPU.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    // The GPU of the lease is missing, so nothing is known about its instance.
    /// The GPU fell off the bus or was removed.
    /// Cure: Look for Xid errors in the kernel's log; `gpufrac lease drop` removes the lease.
    #[error("the GPU {uuid} of the lease is no longer on this node")]
    NoGpu { uuid: String },
    /// The driver says that the instance is gone, and lists it. The lease and its place stay.
    /// Cure: It is tried again. If it stays, end DCGM and other monitoring, or reset the GPU when no job uses it.
    #[error("GPU instance {gi_id} of {gpu} still stands, although the driver reported its end")]
    Stands {
        gpu: String,
        /// The id of the GPU instance.
        gi_id: u32,
    },
    #[error(transparent)]
    Caps(#[from] CapsError),
    #[error(transparent)]
    Mode(#[from] ModeError),
    #[error(transparent)]
    Share(#[from] ShareError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl TeardownError {
    /// Whether the GPU is not there any more, with all that stood on it.
    pub fn is_without_gpu(&self) -> bool {
        match self {
            TeardownError::Nvml(error) => error.is_lost(),
            TeardownError::NoGpu { .. } => true,
            _ => false,
        }
    }

    /// Whether processes still use the slice.
    pub fn is_in_use(&self) -> bool {
        match self {
            TeardownError::Nvml(error) => error.is_in_use(),
            TeardownError::Stands { .. } => true,
            _ => false,
        }
    }
}

impl Caused for TeardownError {
    fn facts(&self) -> Facts {
        match self {
            TeardownError::Nvml(error) => error.facts(),
            TeardownError::Caps(error) => error.facts(),
            TeardownError::Mode(error) => error.facts(),
            TeardownError::Share(error) => error.facts(),
            TeardownError::File(error) => error.facts(),
            TeardownError::Store(error) => error.facts(),
            TeardownError::Lease(error) => error.facts(),
            // As an instance in use.
            TeardownError::Stands { .. } => Facts::passes(Cause::User),
            TeardownError::NoGpu { .. } => Facts::lasts(Cause::Hardware),
        }
    }
}

/// The instance that a removal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The lease's instance, which is destroyed now.
    Ours,
    /// None; it was destroyed before.
    Nothing,
    /// Another instance with the same ids, which stays; the lease's is gone.
    Foreign,
}

/// Changes a lease to `releasing`. Returns whether it was in this state before: a killed program may then have done
/// any part of the following steps. `lock`: that of the lease's GPU.
pub fn begin(store: &LeaseStore, lock: &GpuLock, lease: &mut Lease) -> Result<bool, TeardownError> {
    if lease.state == LeaseState::Releasing {
        return Ok(true);
    }
    lease.advance(LeaseState::Releasing)?;
    match store.write(lock, lease) {
        // If users have used up all space, the mark is left out: the lease is ended now, which frees space.
        Err(error) if error.class() == ErrorClass::Transient => {}
        other => other?,
    }
    reached("release.releasing_written");
    Ok(false)
}

/// Ends a lease: destroys the instance, then writes the usage record, then removes the lease. After an error the
/// lease stays, and this can be called again. `retried`: from [`begin`].
pub fn end(
    locked: &mut LockedGpu<'_>,
    lease: &mut Lease,
    retried: bool,
) -> Result<Found, TeardownError> {
    let found = dismantle(locked, lease)?;
    reached("release.gpu_instance_gone");
    // No job had the instance since it was kept.
    if lease.kept_unix.is_none() {
        record_usage(locked.node, lease, retried, locked.log);
    }
    reached("release.usage_written");
    // No user can open the files of an instance any more. The fence closes a GPU that is shared without MIG.
    remains::end_holders(locked.node, lease, Effort::Quick, locked.log);
    forget_kept(locked, lease)?;
    drop_lease(locked, lease)?;
    Ok(found)
}

/// Writes the usage record of the job, until now. `retried`: a killed program may have written it.
pub(super) fn record_usage(node: &Node, lease: &Lease, retried: bool, log: &JobLog) {
    // An instance that was never created is no usage; a share belongs to the job from the first lease on.
    if lease.slice.cuda_device().is_none() {
        return;
    }
    // Without it the record says that nothing is known of the use; the allocation is recorded nevertheless.
    let tally = usage::measured(&node.run, &SliceKey::of(lease)).unwrap_or_else(|error| {
        // The sums of gpufrac-reaperd could not be read. The record says that the use is unknown. Cure: Follow the
        // text.
        log.warning(format!(
            "the use of {} is not in its usage record: {error}",
            lease.place()
        ));
        None
    });
    let record = UsageRecord::of(
        lease,
        End {
            unix: now_unix(),
            boot_ms: now_boot_ms(),
            // It is there since Linux 2.4: a record without it is still one.
            boot_id: &boot_id().unwrap_or_default(),
        },
        tally.as_ref(),
    );
    if let Err(error) = usage::record(&node.state, &record, retried) {
        // The slice must go back to the pool nevertheless; the line says what was lost.

        // The usage record could not be written; sacct is not affected. Cure: Free space, and correct the path in
        // `[paths]`.
        log.error(format!(
            "writing the usage record failed ({} s of {} lost): {error}",
            record.seconds, record.profile
        ));
    }
}

/// Removes the lease of a slice that is gone.
pub fn drop_lease(locked: &LockedGpu<'_>, lease: &Lease) -> Result<(), TeardownError> {
    // Its job has none any more.
    if lease.kept_unix.is_none() {
        cdi::withdraw(locked.node, lease, locked.log);
    }
    locked.node.locks()?.forget_slice(lease)?;
    locked.remove(lease)?;
    reached("release.lease_removed");
    // The slice and the lease are gone, whatever the state folder says.
    stuck::forget(locked.node, [Lost::Lease(lease.name())], locked.log);
    Ok(())
}

/// How long the pool of a lease keeps instances on this GPU; None if it does not.
pub(super) fn reuse_of(node: &Node, lease: &Lease) -> Option<Duration> {
    let pools = node.config.pools_of_node(&node.name);
    let has_gpu = |pool: &Pool| {
        let gpus = pool.gpus.as_ref();
        gpus.is_none_or(|gpus| gpus.contains(&lease.slice.gpu_index))
    };
    let same = |pool: &&&Pool| pool.name == lease.pool && pool.mechanism == Mechanism::Mig;
    let pool = pools.iter().find(same).filter(|pool| has_gpu(pool))?;
    pool.options.reuse
}

/// Removes the lease of a kept instance that another lease destroyed: the program that took the instance over died
/// before it removed this lease.
fn forget_kept(locked: &LockedGpu<'_>, gone: &Lease) -> Result<(), TeardownError> {
    let Some(instance) = gone.slice.instance() else {
        return Ok(());
    };
    if reuse_of(locked.node, gone).is_none() {
        return Ok(());
    }
    // A lease that cannot be read does not keep another one from being removed.
    for other in locked.leases().unwrap_or_default() {
        let is_it = !other.is_same(gone) && other.slice.instance() == Some(instance);
        if is_it && other.state == LeaseState::Kept {
            drop_lease(locked, &other)?;
        }
    }
    Ok(())
}

/// Removes everything of a lease that still exists and that no other lease shares.
pub fn dismantle(locked: &mut LockedGpu<'_>, lease: &Lease) -> Result<Found, TeardownError> {
    if locked.gpu.uuid != lease.slice.gpu_uuid {
        let uuid = lease.slice.gpu_uuid.clone();
        return Err(TeardownError::NoGpu { uuid });
    }
    if lease.slice.hami().is_some() {
        locked.node.remove_hami_cache(lease)?;
        reached("release.cache_removed");
    }
    // Clients end before the daemon and device that they use.
    if let Some(tenants) = Tenants::of(locked, lease)? {
        tenants.leave()?;
        reached("release.daemon_left");
    }
    let slice = &lease.slice;
    if let Some(mig) = slice.mig()
        && let Some(instance) = &mig.instance
        && lease.mechanism() == Mechanism::Mig
    {
        // Other leases are not read, because a damaged one must not prevent the removal.
        return dismantle_known(locked, mig, instance);
    }
    let others = locked.store.others_of_gpu(lease)?;
    match slice.mig() {
        Some(mig) => dismantle_instance(locked, lease, mig, &others),
        None => {
            if others.is_empty() {
                compute_mode::restore(locked)?;
                reached("release.mode_restored");
            }
            Ok(Found::Ours)
        }
    }
}

/// Destroys the instance of a lease, if it exists and no other job has it. `others`: the other leases on the GPU.
fn dismantle_instance(
    locked: &mut LockedGpu<'_>,
    lease: &Lease,
    mig: &MigSlice,
    others: &[Lease],
) -> Result<Found, TeardownError> {
    let Some(instance) = &mig.instance else {
        return dismantle_intended(locked, mig, others);
    };
    let users = tenants::users_of_instance(others, instance);
    if users.is_empty() {
        // MPS has released its clients. Those that are left keep the instance in use.
        remains::end_holders(locked.node, lease, Effort::Quick, locked.log);
        return dismantle_known(locked, mig, instance);
    }
    let caps = InstanceCaps::of(instance);
    InstanceFiles::of(locked).share(caps, &users)?;
    Ok(Found::Ours)
}

/// Destroys the instance of a lease, if it still stands: the instance with its ids, which gpufrac claimed, and with the
/// lease's profile and place on the lease's GPU. Its MIG UUID proves nothing, because an instance that is made again at
/// the same place may have it again.
fn dismantle_known(
    locked: &mut LockedGpu<'_>,
    mig: &MigSlice,
    instance: &Instance,
) -> Result<Found, TeardownError> {
    let (files, caps) = (InstanceFiles::of(locked), InstanceCaps::of(instance));
    let inside: &[u32] = match locked.node.caps().claimed(locked.gpu.minor, instance)? {
        Claimed::Nothing => {
            // No job has these files now; the next job with this id must not find them open.
            files.revoke(caps)?;
            return Ok(Found::Nothing);
        }
        Claimed::Foreign => return Ok(Found::Foreign),
        // Left by a removal that died in between.
        Claimed::Hollow(_) => &[],
        Claimed::Ours(_) => &[instance.ci_id],
    };
    let Some(standing) = locked.gpu.standing(instance.gi_id)? else {
        return Err(stands(locked, instance.gi_id));
    };
    if !standing.instance.is_at(mig) {
        return Ok(Found::Foreign);
    }
    files.revoke(caps)?;
    reached("release.caps_revoked");
    destroy(locked, &standing, inside)?;
    Ok(Found::Ours)
}

/// Destroys a GPU instance with these compute instances, and looks whether it is gone.
fn destroy(
    locked: &LockedGpu<'_>,
    standing: &Standing<'_>,
    inside: &[u32],
) -> Result<(), TeardownError> {
    let mut inside = inside.iter();
    let emptied = inside.try_for_each(|ci_id| standing.destroy_compute_instance(*ci_id));
    let destroyed = emptied.and_then(|()| {
        reached("release.compute_instance_gone");
        standing.destroy()
    });
    if destroyed.as_ref().is_err_and(NvmlError::is_in_use) {
        shared_session::end(&locked.node.run);
    }
    destroyed?;
    // A driver reported success for an instance that it went on listing (NVIDIA/go-nvml issue 146).
    let gi_id = standing.instance.gi_id;
    if locked.stands(gi_id)? { Err(stands(locked, gi_id)) } else { Ok(()) }
}

fn stands(locked: &LockedGpu<'_>, gi_id: u32) -> TeardownError {
    TeardownError::Stands {
        gpu: locked.gpu.to_string(),
        gi_id,
    }
}

/// A lease without an instance: its program died between the first lease and the record of the instance. When the
/// lease was written its place was empty, so an instance at exactly this place, with this profile and in no other
/// lease, was created for it.
fn dismantle_intended(
    locked: &LockedGpu<'_>,
    mig: &MigSlice,
    others: &[Lease],
) -> Result<Found, TeardownError> {
    let gpu = &locked.gpu;
    let taken = |gi_id: u32| {
        let mut theirs = others.iter().filter_map(|other| other.slice.instance());
        theirs.any(|instance| instance.gi_id == gi_id)
    };
    let standing = gpu.instances_of(mig.profile_id)?;
    let Some(instance) = standing
        .iter()
        .find(|instance| instance.is_at(mig) && !taken(instance.gi_id))
    else {
        return Ok(Found::Nothing);
    };
    let Some(standing) = gpu.standing(instance.gi_id)? else {
        return Ok(Found::Nothing);
    };
    destroy(locked, &standing, &standing.compute_instances()?)?;
    Ok(Found::Ours)
}

/// Destroys the GPU instance that the driver may have made for a lease, although it reported a failure: one at the
/// lease's place that did not stand before the call, and has no compute instance. An instance that an admin made at
/// that moment stays. `before`: the ids of the GPU instances before the call.
pub(super) fn take_back(
    locked: &LockedGpu<'_>,
    lease: &Lease,
    before: &Option<BTreeSet<u32>>,
) -> Result<(), TeardownError> {
    let Some(mig) = lease.slice.mig() else {
        return Ok(());
    };
    let is_new = |gi_id| {
        before
            .as_ref()
            .is_none_or(|before| !before.contains(&gi_id))
    };
    let found = locked.gpu.instances_of(mig.profile_id)?.into_iter();
    for instance in found.filter(|found| found.is_at(mig) && is_new(found.gi_id)) {
        let Some(standing) = locked.gpu.standing(instance.gi_id)? else {
            continue;
        };
        if standing.compute_instances()?.is_empty() {
            destroy(locked, &standing, &[])?;
        }
    }
    Ok(())
}

/// The GPU of a lease, whatever its index is now.
pub fn gpu_of<'s>(
    node: &Node,
    session: &'s Session,
    lease: &Lease,
) -> Result<Gpu<'s>, TeardownError> {
    let (slice, uuid) = (&lease.slice, &lease.slice.gpu_uuid);
    let (index, minor) = (slice.gpu_index, slice.gpu_minor);
    // The driver's file tells without a call which GPU is at the address.
    let found = match node.caps().pci_of(uuid) {
        Some(pci) => session.gpu_at(&pci, index, uuid, minor)?,
        None => session.known_gpu(index, uuid, minor)?,
    };
    match found {
        Some(gpu) => Ok(gpu),
        None => session
            .gpu_with_uuid(uuid)?
            .ok_or_else(|| TeardownError::NoGpu { uuid: uuid.clone() }),
    }
}
