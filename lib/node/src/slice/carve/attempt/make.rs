//! Creates the slice of a lease, and undoes it.

use std::collections::BTreeSet;

use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::Occupied;
use gpufrac_core::lease::{Held, Instance, Lease, LeaseState, MigSlice};
use gpufrac_nvml::{Gpu, NvmlError};

use super::{Attempt, Cut};
use crate::gpu::compute_mode;
use crate::gpu::holders::HeldCaps;
use crate::gpu::instance_files::InstanceFiles;
use crate::gpu::locked::LockedGpu;
use crate::gpu::mig_mode;
use crate::gpu::strangers;
use crate::mps::daemon::Start;
use crate::mps::tenants::{self, Tenants};
use crate::slice::carve::error::CarveError;
use crate::slice::failpoint::reached;
use crate::slice::teardown;

impl Attempt<'_> {
    pub(super) fn make(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        lease: &mut Lease,
    ) -> Result<(), CarveError> {
        let mut is_new = false;
        self.switch(locked, cut, lease)?;
        if let (Cut::Instances { geometry, held }, Some(mig)) = (cut, lease.slice.mig_mut())
            && mig.instance.is_none()
        {
            is_new = true;
            mig.instance = Some(self.make_instance(locked, geometry, held, mig)?);
            locked.write(lease)?;
            reached("carve.instance_recorded");
        }
        self.equip(locked, lease)?;
        self.expect_no_strangers(locked, lease, is_new)?;
        lease.advance(LeaseState::Active)?;
        locked.write(lease)?;
        reached("carve.active");
        Ok(())
    }

    /// Puts the GPU in the mode that the slice needs. The lease is written: a later run finds it half-made, and ends it
    /// whatever the mode is.
    fn switch(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        lease: &Lease,
    ) -> Result<(), CarveError> {
        let on = match cut {
            Cut::Bare => false,
            // An instance that was kept stands.
            Cut::Instances { .. } if self.device.pool.switches_mig() => {
                match lease.slice.instance() {
                    None => true,
                    Some(_) => return Ok(()),
                }
            }
            Cut::Instances { .. } | Cut::Shares { .. } => return Ok(()),
        };
        if mig_mode::switch(locked, on, Some(lease))? {
            reached("carve.mig_switched");
        }
        if !on {
            mig_mode::wait_for_fabric(locked)?;
        }
        Ok(())
    }

    pub(super) fn make_instance(
        &self,
        locked: &LockedGpu<'_>,
        geometry: &Geometry,
        held: &HeldCaps,
        mig: &MigSlice,
    ) -> Result<Instance, CarveError> {
        let profile = geometry
            .profile(mig.profile_id)
            .ok_or(CarveError::NoProfile(mig.profile_id))?;
        let before = self.node.caps().gpu_instances(locked.gpu.minor);
        let is_first = before.as_ref().is_some_and(BTreeSet::is_empty);
        let made = locked.gpu.create_gpu_instance(profile.id, mig.placement);
        let made = made.map_err(|error| match error {
            error if error.is_refusal() => CarveError::Nvml(error),
            error if is_first && error.may_be_busy() => CarveError::NotIdle {
                gpu: locked.gpu.to_string(),
                users: mig_mode::users_of(locked).unwrap_or_default(),
                error,
            },
            error => CarveError::NotMade { error, before },
        })?;
        let gi_id = made.gi_id;
        reached("carve.gpu_instance_made");
        let gpufrac_nvml::ComputeInstance { ci_id, mig_uuid } =
            made.create_compute_instance(profile.compute_slices)?;
        reached("carve.compute_instance_made");
        let minors = InstanceFiles::of(locked).claim(gi_id, ci_id)?;
        if let Some(holder) = held.by_others([minors.gi, minors.ci], self.job.user_id) {
            return Err(CarveError::Held {
                holder: holder.to_string(),
                place: Occupied {
                    profile_id: mig.profile_id,
                    placement: mig.placement,
                },
            });
        }
        Ok(Instance {
            gi_id,
            ci_id,
            mig_uuid,
            gi_cap_minor: minors.gi,
            ci_cap_minor: minors.ci,
        })
    }

    /// Sets up what the job needs besides the device: access, compute mode, daemon, cache. It can be repeated.
    pub(super) fn equip(
        &self,
        locked: &mut LockedGpu<'_>,
        lease: &mut Lease,
    ) -> Result<(), CarveError> {
        if let Some(instance) = lease.slice.instance() {
            let files = InstanceFiles::of(locked);
            let minors = files.claim(instance.gi_id, instance.ci_id)?;
            match lease.slice.mps() {
                None => files.grant(minors, lease.user_id)?,
                Some(_) => {
                    let mut users = tenants::users_of_instance(&self.others(locked)?, instance);
                    if users.is_empty() {
                        files.revoke(minors)?;
                    }
                    users.push(lease.user_id);
                    files.share(minors, &users)?;
                }
            }
            reached("carve.caps_granted");
        } else if let Some(mode) = compute_mode::of_share(lease) {
            let first = self.others(locked)?.is_empty();
            compute_mode::hold(locked, mode, first)?;
            reached("carve.mode_held");
        }
        self.enter_daemon(locked, lease)?;
        if lease.slice.hami().is_some() {
            self.node.make_hami_cache(lease)?;
            reached("carve.cache_made");
        }
        Ok(())
    }

    pub(super) fn enter_daemon(
        &self,
        locked: &LockedGpu<'_>,
        lease: &mut Lease,
    ) -> Result<(), CarveError> {
        let options = &self.device.pool.options;
        let partition = {
            let tenants = Tenants::of(locked, lease)?;
            let (Some(mps), Some(tenancy)) = (lease.slice.mps(), tenants) else {
                return Ok(());
            };
            let device = lease.slice.cuda_device().unwrap_or_default();
            tenancy.enter(Start {
                device,
                multi_user: !mps.private,
                partitions: options.sm_chunks.is_some(),
                group: mps.private.then_some(lease.group_id),
            })?;
            reached("carve.daemon_entered");
            match (options.sm_chunks, &mps.sm_partition) {
                (Some(all), None) => {
                    let capacity = self.device.pool.layout.capacity.0;
                    let chunks = (all * lease.units.0 / capacity).max(1);
                    Some(tenancy.add_partition(device, chunks)?)
                }
                _ => None,
            }
        };
        if let (Some(name), Some(mps)) = (partition, lease.slice.mps_mut()) {
            mps.sm_partition = Some(name);
            locked.write(lease)?;
        }
        Ok(())
    }

    /// Checks that the driver shows no process on the job's instance except those of jobs that have it. `is_new`: it
    /// was created for this job, so that no MPS server for others can be on it.
    fn expect_no_strangers(
        &self,
        locked: &LockedGpu<'_>,
        lease: &Lease,
        is_new: bool,
    ) -> Result<(), CarveError> {
        let pids = match (&lease.slice.held, lease.slice.instance()) {
            // One that was taken over without a session.
            (Held::Mig(mig), Some(_)) if !locked.gpu.is_started() => {
                let found = locked.instance_use(mig)?;
                found.map_or_else(Vec::new, |found| found.pids)
            }
            (_, Some(instance)) => processes_at(&locked.gpu, Some(instance.gi_id), is_new)?,
            (Held::Bare, None) => processes_at(&locked.gpu, None, is_new)?,
            (_, None) => return Ok(()),
        };
        let leases = locked.leases()?;
        let gi_id = lease.slice.instance().map(|instance| instance.gi_id);
        let leases = strangers::leases_at(&leases, gi_id);
        let mut pids = pids.into_iter();
        match pids.find(|pid| strangers::is_stranger(*pid, &leases)) {
            None => Ok(()),
            Some(pid) => Err(CarveError::Stranger { pid }),
        }
    }

    /// Removes what a failed attempt created. If that fails, too, the lease stays as the record of it.
    pub(super) fn unmake(
        &self,
        locked: &mut LockedGpu<'_>,
        lease: &Lease,
        error: CarveError,
    ) -> CarveError {
        let none = Some(BTreeSet::new());
        let cleanup = match &error {
            CarveError::NotMade { before, .. } => teardown::take_back(locked, lease, before),
            CarveError::NotIdle { .. } => teardown::take_back(locked, lease, &none),
            // Nothing was created. An instance at the place is not gpufrac's.
            error if is_refused(error) => Ok(()),
            _ => teardown::dismantle(locked, lease).map(|_| ()),
        };
        let cleanup = cleanup.and_then(|()| teardown::drop_lease(locked, lease));
        match cleanup {
            Ok(()) => error,
            Err(cleanup) => CarveError::Unfinished {
                error: Box::new(error),
                cleanup,
            },
        }
    }
}

/// The processes on a GPU instance, or on a GPU without MIG. `is_new`: no client of MPS can be on it.
fn processes_at(gpu: &Gpu<'_>, gi_id: Option<u32>, is_new: bool) -> Result<Vec<u32>, NvmlError> {
    let processes = if is_new { gpu.processes_but_clients()? } else { gpu.processes()? };
    let on_it = processes.into_iter().filter(|it| it.gi_id == gi_id);
    Ok(on_it.map(|it| it.pid).collect())
}

/// Whether the driver refused to create the instance.
pub(super) fn is_refused(error: &CarveError) -> bool {
    matches!(error, CarveError::Nvml(error) if error.is_refusal())
}
