//! MIG instances without a lease: created by an admin or by another program, or left after `<run>` was removed.
//! gpufrac destroys none of them without an admin's command, and makes no slice in their place.

use std::fmt;

use gpufrac_core::geometry::Geometry;
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_nvml::{Gpu, Instance, MigMode, NvmlError, Session};

use crate::gpu::capability_files::CapsError;
use crate::gpu::instance_files::InstanceFiles;
use crate::gpu::locked::LockedGpu;
use crate::node::Node;
use crate::state::leases::{LeaseStore, StoreError};

/// The cure for such an instance.
pub const FIX: &str = "`gpufrac clean` shows it and destroys it if nothing uses it; no slice is made in its place until then";

/// An instance without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unleased {
    pub gpu_index: GpuIndex,
    pub instance: Instance,
    /// The name of its profile, such as `3g.40gb`.
    pub profile: String,
    /// The processes on it, as far as this user can see them.
    pub pids: Vec<u32>,
}

impl fmt::Display for Unleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unleased {
            gpu_index,
            instance,
            profile,
            pids,
        } = self;
        write!(
            f,
            "GPU {gpu_index}: MIG instance {} ({profile} at {}:{}) has no lease",
            instance.gi_id, instance.placement.start, instance.placement.size
        )?;
        if !pids.is_empty() {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            write!(f, ", and process {} runs on it", pids.join(", "))?;
        }
        Ok(())
    }
}

/// The reasons why an instance was not destroyed, or was not searched for.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The leases cannot be read, so instances without a lease are not known.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// A process runs on the instance.
    /// Cure: End the process, then run `gpufrac clean` again.
    #[error("{0}: end it first")]
    InUse(Unleased),
    /// The driver said that the instance is gone, and lists it.
    /// Cure: Run it again; if the instance stays, end DCGM and other monitoring, or reset the GPU when no job uses it.
    #[error(
        "{0} and still stands, although the driver reported its end; run `gpufrac clean` again"
    )]
    Stands(Unleased),
}

/// The instances without a lease on all GPUs of the node's pools. Errors: as [`find`].
pub fn of_node(node: &Node, session: &Session) -> Result<Vec<Unleased>, CleanError> {
    let gpus = session.gpus_that_answer()?;
    let devices = node
        .config
        .devices_of_node(&node.name, session.gpu_count()?);
    let store = node.leases()?;
    let mut found = Vec::new();
    for gpu in &gpus {
        let uses_mig = devices
            .iter()
            .any(|it| it.gpu_index == gpu.index && it.pool.mechanism.uses_mig());
        if uses_mig && gpu.mig_mode()? == MigMode::On {
            found.extend(find(gpu, &gpu.geometry()?, &store)?);
        }
    }
    Ok(found)
}

/// The instances of a GPU without a lease. The GPU need not be locked: instances that a prolog or an epilog is
/// creating or destroying are recognised by a second reading.
/// Errors: the driver does not answer, or a lease cannot be read.
pub fn find(
    gpu: &Gpu<'_>,
    geometry: &Geometry,
    store: &LeaseStore,
) -> Result<Vec<Unleased>, CleanError> {
    let seen = without_lease(gpu, gpu.instances(geometry)?, store)?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    // An instance whose lease has just been removed was being released.
    let still = gpu.instances(geometry)?;
    let both = seen.into_iter().filter(|it| still.contains(it)).collect();
    let left = without_lease(gpu, both, store)?;
    let processes = gpu.processes()?;
    let described = left.into_iter().map(|instance| {
        let profile = geometry
            .profiles
            .iter()
            .find(|it| it.id == instance.profile_id);
        let on_it = processes
            .iter()
            .filter(|it| it.gi_id == Some(instance.gi_id));
        Unleased {
            gpu_index: gpu.index,
            profile: profile.map_or_else(|| "unknown".into(), |it| it.name.clone()),
            pids: on_it.map(|process| process.pid).collect(),
            instance,
        }
    });
    Ok(described.collect())
}

fn without_lease(
    gpu: &Gpu<'_>,
    mut instances: Vec<Instance>,
    store: &LeaseStore,
) -> Result<Vec<Instance>, StoreError> {
    let leases = store.of_gpu(&gpu.uuid)?;
    instances.retain(|instance| !leases.iter().any(|lease| names(lease, instance)));
    Ok(instances)
}

/// Whether an instance is that of a lease, or is at the place of a lease without an instance.
fn names(lease: &Lease, instance: &Instance) -> bool {
    lease.slice.mig().is_some_and(|mig| {
        let same_place =
            (mig.profile_id, mig.placement) == (instance.profile_id, instance.placement);
        let known = mig.instance.as_ref();
        same_place && known.is_none_or(|known| known.gi_id == instance.gi_id)
    })
}

/// The active leases of a GPU whose instance does not exist any more: another program than gpufrac destroyed it under
/// its job. The GPU need not be locked: leases that an epilog is ending are recognised by a second reading.
/// Errors: the driver does not answer, or a lease cannot be read.
pub fn lost(
    gpu: &Gpu<'_>,
    geometry: &Geometry,
    store: &LeaseStore,
) -> Result<Vec<Lease>, CleanError> {
    let mut active = store.of_gpu(&gpu.uuid)?;
    active.retain(|lease| lease.state == LeaseState::Active && lease.slice.mig().is_some());
    if active.is_empty() {
        return Ok(Vec::new());
    }
    let instances = gpu.instances(geometry)?;
    let mut lost = Vec::new();
    for lease in active {
        let is_there = instances.iter().any(|instance| names(&lease, instance));
        if !is_there && store.again(&lease)?.as_ref() == Some(&lease) {
            lost.push(lease);
        }
    }
    Ok(lost)
}

/// Destroys an instance without a lease that no process uses. Returns whether it still existed.
/// Errors: it is in use, a lease cannot be read, or the driver refuses; the instance then stays.
pub fn destroy(locked: &LockedGpu<'_>, wanted: &Unleased) -> Result<bool, CleanError> {
    let gpu = &locked.gpu;
    let mut standing = find(gpu, &gpu.geometry()?, locked.store)?.into_iter();
    let Some(found) = standing.find(|it| it.instance == wanted.instance) else {
        return Ok(false);
    };
    if !found.pids.is_empty() {
        return Err(CleanError::InUse(found));
    }
    let gi_id = found.instance.gi_id;
    let Some(standing) = gpu.standing(gi_id)? else {
        return Ok(false);
    };
    for ci_id in standing.compute_instances()? {
        // The next job with these files must not find them open.
        let files = InstanceFiles::of(locked);
        files.revoke(files.claim(gi_id, ci_id)?)?;
        standing.destroy_compute_instance(ci_id)?;
    }
    standing.destroy()?;
    if locked.stands(gi_id)? { Err(CleanError::Stands(found)) } else { Ok(true) }
}
