//! The content of a lease before anything is created.

use gpufrac_core::config::Tenancy;
use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Occupied, Side};
use gpufrac_core::lease::{self, HamiSlice, Held, Lease, LeaseState, MigSlice, MpsSlice, Slice};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_nvml::Gpu;

use super::Attempt;
use super::place::{ChosenPlace, InstanceQuery};
use crate::gpu::holders::HeldCaps;
use crate::gpu::locked::LockedGpu;
use crate::node::{now_boot_ms, now_unix};
use crate::slice::carve::error::CarveError;
use crate::slice::keep;

impl Attempt<'_> {
    /// The part of a job in an instance: one of its own, or with MPS inside a share of one; with the lease of the
    /// kept instance if it becomes the job's. `avoided`: places that are not chosen.
    pub(super) fn instance_slice(
        &self,
        locked: &mut LockedGpu<'_>,
        geometry: &Geometry,
        held: &HeldCaps,
        avoided: &[Occupied],
        query: InstanceQuery,
    ) -> Result<(Slice, Option<Lease>), CarveError> {
        let shared = self.device.pool.mechanism == Mechanism::MigMps;
        if self.device.pool.switches_mig() {
            // A whole GPU has no place that could be in the way.
            self.make_room(locked)?;
        }
        let joined = if shared {
            self.make_room(locked)?;
            self.joined(locked)?
        } else {
            None
        };
        let mut taken_over = None;
        let mig = match joined {
            Some(mig) => mig,
            None => {
                let ChosenPlace { candidate, kept } =
                    self.candidate(locked, geometry, held, avoided, query)?;
                let instance = kept
                    .as_ref()
                    .and_then(|kept| kept.slice.instance())
                    .cloned();
                taken_over = kept;
                let profile = geometry
                    .profile(candidate.profile_id)
                    .ok_or(CarveError::NoProfile(candidate.profile_id))?;
                MigSlice {
                    profile_id: profile.id,
                    profile_name: profile.name.clone(),
                    placement: candidate.placement,
                    instance,
                }
            }
        };
        let memory = geometry
            .profile(mig.profile_id)
            .ok_or(CarveError::NoProfile(mig.profile_id))?
            .memory;
        let (memory, parts) = if shared {
            let (percentage, memory) = self.share_of(memory);
            let ceiling = self.ceiling();
            let side = match self.device.side {
                Side::Left => "l",
                Side::Right => "r",
                Side::Whole => "",
            };
            let folder = format!("gpu{}{side}", locked.gpu.index);
            let mps = self.mps_slice(&folder, percentage, ceiling, memory);
            (memory, Held::MigMps { mig, mps })
        } else {
            (memory, Held::Mig(mig))
        };
        Ok((self.slice_of(&locked.gpu, memory, parts), taken_over))
    }

    /// The GPU itself, in a pool of MIG. Instances that were kept on it go; no other lease may be there.
    pub(super) fn bare_slice(&self, locked: &mut LockedGpu<'_>) -> Result<Slice, CarveError> {
        self.make_room(locked)?;
        let leases = locked.leases()?.into_iter();
        for mut kept in leases.filter(|lease| lease.state == LeaseState::Kept) {
            // One that stays keeps the mode as it is.
            keep::end(locked, &mut kept);
        }
        let memory = self.device.pool.gpu_memory;
        Ok(self.slice_of(&locked.gpu, memory, Held::Bare))
    }

    /// A share of a GPU without MIG, or the whole GPU.
    pub(super) fn share_slice(
        &self,
        gpu: &Gpu<'_>,
        gpu_memory: MemoryMib,
        group_limit: bool,
    ) -> Slice {
        let pool = self.device.pool;
        let (percentage, memory) = self.share_of(gpu_memory);
        // A whole GPU belongs to one job, so nothing is limited.
        let whole = percentage >= 100;
        let ceiling = self.ceiling();
        let memory = if whole { gpu_memory } else { memory };
        let mps = || {
            let folder = match pool.options.tenancy {
                Tenancy::Shared => format!("gpu{}", gpu.index),
                Tenancy::Private => format!("job{}", self.name()),
            };
            self.mps_slice(&folder, percentage, ceiling, memory)
        };
        let hami = |library: &String| HamiSlice {
            library: library.clone(),
            cache: self.node.hami_cache(&self.name()),
            sm_limit: percentage,
            burst: ceiling.is_some(),
        };
        let held = match pool.mechanism {
            Mechanism::Mps => Held::Mps((!whole).then(mps)),
            Mechanism::Hami => {
                let library = pool.options.library.as_ref();
                Held::Hami(library.filter(|_| !whole).map(hami))
            }
            // Pools with MIG have instances (`instance_slice`).
            Mechanism::Timeslice | Mechanism::Mig | Mechanism::MigMps => Held::Timeslice,
        };
        Slice {
            group_limit: group_limit && !whole,
            ..self.slice_of(gpu, memory, held)
        }
    }

    /// The job's units of its device: percent, and memory rounded down.
    pub(super) fn share_of(&self, device_memory: MemoryMib) -> (u32, MemoryMib) {
        let (units, capacity) = (self.menu.units, self.device.pool.layout.capacity);
        let memory = device_memory.part(units, capacity);
        (self.percent_of_device(units), memory)
    }

    /// The job's ceiling of compute, as the pool lends it now; None where it is its share.
    fn ceiling(&self) -> Option<Units> {
        let (pool, asked) = (self.device.pool, self.job.burst());
        let ceiling = pool.ceiling(self.menu.units, asked);
        let given = ceiling.unwrap_or(self.menu.units);
        if let Some(asked) = asked.filter(|asked| *asked > given) {
            let [asked, given] = [asked, given].map(Units::fraction);
            // `burst_max` was lowered after the job was submitted. Cure: Nothing: the job runs with the lower ceiling,
            // which is `GPUFRAC_BURST` in it.
            self.log.warning(format!(
                "--gpufrac-burst={asked} is more than pool {pool} lends now; the job has {given}"
            ));
        }
        ceiling
    }

    fn percent_of_device(&self, units: Units) -> u32 {
        units.0 * 100 / self.device.pool.layout.capacity.0
    }

    pub(super) fn mps_slice(
        &self,
        folder: &str,
        percentage: u32,
        ceiling: Option<Units>,
        memory: MemoryMib,
    ) -> MpsSlice {
        let options = &self.device.pool.options;
        MpsSlice {
            folder: self.node.mps_folder(folder),
            private: options.tenancy == Tenancy::Private,
            thread_percentage: percentage,
            burst_percentage: ceiling.map(|units| self.percent_of_device(units)),
            memory_limit_mib: memory,
            sm_partition: None,
        }
    }

    pub(super) fn slice_of(&self, gpu: &Gpu<'_>, memory: MemoryMib, held: Held) -> Slice {
        Slice {
            device_index: self.device.index,
            side: self.device.side,
            gpu_uuid: gpu.uuid.clone(),
            gpu_index: gpu.index,
            gpu_minor: gpu.minor,
            memory_mib: memory,
            hints: self.device.pool.options.framework_hints,
            group_limit: false,
            held,
        }
    }

    /// The name of the future lease.
    pub(super) fn name(&self) -> String {
        lease::name(self.job.job_id, self.number)
    }

    pub(super) fn intent(&self, slice: Slice) -> Lease {
        Lease {
            version: lease::VERSION,
            state: LeaseState::Carving,
            job_id: self.job.job_id,
            number: self.number,
            restart_count: self.job.restart_count,
            sluid: self.job.sluid.clone(),
            user_id: self.job.user_id,
            group_id: self.job.group_id,
            user: self.job.user.clone(),
            account: self.job.account.clone(),
            partition: self.job.partition.clone(),
            node: self.node.name.clone(),
            pool: self.device.pool.name.clone(),
            units: self.menu.units,
            fraction: self.menu.fraction,
            confirmed: self.confirmed,
            whole_device: self.whole_device,
            idle_wish: self.job.idle_wish(),
            created_unix: now_unix(),
            created_boot_ms: Some(now_boot_ms()),
            kept_unix: None,
            slice,
        }
    }
}
