//! One attempt to carve, under the lock of the GPU.

use std::time::Duration;

use gpufrac_core::config::{Device, Tenancy};
use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Candidate, MenuEntry, Occupied, Side};
use gpufrac_core::lease::{
    self, HamiSlice, Instance, Lease, LeaseState, MigSlice, MpsSlice, Slice,
};
use gpufrac_core::mechanism::Mechanism;

use super::{CarveError, Carved};
use crate::gpu::compute_mode;
use crate::gpu::memory_limit;
use crate::job::environment::JobEnv;
use crate::job::slurmctld::Slurm;
use crate::mps::daemon::{MpsError, Start};
use crate::mps::tenants::{self, ShareError, Tenants};
use crate::node::{Node, now_unix};
use crate::setup::memory_fits;
use crate::slice::failpoint::reached;
use crate::slice::reconcile;
use crate::slice::teardown::Teardown;
use crate::state::leases::LeaseStore;
use crate::state::record::NodeRecord;
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{self, ComputeMode, Gpu, MigMode, Session};

/// All that an attempt needs to know.
pub(super) struct Attempt<'a> {
    pub job: &'a JobEnv,
    pub node: &'a Node,
    pub store: &'a LeaseStore,
    pub record: &'a NodeRecord,
    pub device: Device<'a>,
    pub menu: &'a MenuEntry,
    /// How many slices the job gets, each a menu entry.
    pub count: u32,
    /// Which of them is being made.
    pub number: u32,
    /// Whether Slurm itself said how much the job holds.
    pub confirmed: bool,
    pub slurm: &'a dyn Slurm,
    pub log: &'a JobLog,
}

impl Attempt<'_> {
    /// Tries once; waits for the lock no longer than `patience`.
    pub fn run(&self, session: &Session, patience: Duration) -> Result<Carved, CarveError> {
        // What does not change is asked before the lock is taken.
        let mut gpu = self.gpu(session)?;
        let geometry = match self.device.pool.mechanism.uses_mig() {
            true => Some(self.checked_geometry(&gpu)?),
            false => None,
        };
        let memory = match geometry {
            Some(_) => MemoryMib(0),
            None => self.checked_memory(&gpu)?,
        };
        let _lock = self.node.locks()?.gpu(self.device.gpu_index, patience)?;
        reached("carve.locked");
        if let Some(kept) = self.own_leases(session, &mut gpu)? {
            return Ok(Carved::Kept(kept));
        }
        reconcile::repair(
            self.node,
            self.store,
            session,
            &gpu.uuid,
            Some(self.job.job_id),
            self.log,
        )?;
        self.agrees(&gpu)?;
        let mut made = Vec::new();
        // One after the other, as a slice may share what the one before it made. Where this run dies in between the
        // job does not start, and its next prolog or its epilog ends what is there.
        for number in 0..self.count {
            let attempt = Attempt { number, ..*self };
            match attempt.slice(session, &mut gpu, geometry.as_ref(), memory) {
                Ok(lease) => made.push(lease),
                Err(error) => return Err(self.take_back(&mut gpu, made, error)),
            }
        }
        Ok(Carved::Made(made))
    }

    /// One slice, from its place to an active lease.
    fn slice(
        &self,
        session: &Session,
        gpu: &mut Gpu<'_>,
        geometry: Option<&Geometry>,
        memory: MemoryMib,
    ) -> Result<Lease, CarveError> {
        let slice = match geometry {
            Some(geometry) => self.instance_slice(session, gpu, geometry)?,
            None => {
                self.make_room(session, gpu)?;
                self.share_slice(gpu, memory, self.group_limit(session)?)
            }
        };
        let mut lease = self.intent(slice);
        self.store.write(&lease)?;
        reached("carve.lease_written");
        match self.make(gpu, geometry, &mut lease) {
            Ok(()) => Ok(lease),
            Err(error) => {
                let error = self.unmake(gpu, &lease, error);
                if let CarveError::Share(ShareError::Mps(MpsError::Occupied { .. })) = &error {
                    // Some of those may be over, their epilog never having come; then the next try succeeds.
                    self.evict(session, gpu)?;
                }
                Err(error)
            }
        }
    }

    /// A job has all of its slices or none: those that were made go again, the last one first.
    fn take_back(&self, gpu: &mut Gpu<'_>, made: Vec<Lease>, mut error: CarveError) -> CarveError {
        let teardown = Teardown::new(self.node, self.store);
        for mut lease in made.into_iter().rev() {
            // No usage record: the job never had it.
            error = match teardown.begin(&mut lease) {
                Ok(_) => self.unmake(gpu, &lease, error),
                Err(cleanup) => CarveError::Unfinished {
                    error: Box::new(error),
                    cleanup,
                },
            };
        }
        error
    }

    fn gpu<'s>(&self, session: &'s Session) -> Result<Gpu<'s>, CarveError> {
        let index = self.device.gpu_index;
        let gpu = session.gpu(index)?;
        let expected = self.record.gpus.get(index as usize);
        match expected {
            Some(expected) if expected.uuid == gpu.uuid => Ok(gpu),
            _ => Err(CarveError::OtherGpu {
                index,
                expected: expected.map_or_else(String::new, |gpu| gpu.uuid.clone()),
                found: gpu.uuid,
            }),
        }
    }

    fn checked_geometry(&self, gpu: &Gpu<'_>) -> Result<Geometry, CarveError> {
        let mode = gpu.mig_mode()?;
        if mode != MigMode::On {
            return Err(CarveError::MigOff {
                gpu: gpu.to_string(),
                mode,
            });
        }
        let geometry = gpu.geometry()?;
        let differences = self.device.pool.geometry.differences(&geometry);
        if differences.is_empty() {
            return Ok(geometry);
        }
        Err(CarveError::Geometry {
            gpu: gpu.to_string(),
            model: gpu.name.clone(),
            pool: self.device.pool.name.clone(),
            differences,
        })
    }

    /// A GPU that is shared without MIG, with what the pool says it has.
    fn checked_memory(&self, gpu: &Gpu<'_>) -> Result<MemoryMib, CarveError> {
        if gpu.mig_mode()? == MigMode::On {
            return Err(CarveError::MigOn {
                gpu: gpu.to_string(),
                mechanism: self.device.pool.mechanism,
            });
        }
        let (found, expected) = (gpu.memory()?, self.device.pool.gpu_memory);
        if memory_fits(found, expected) {
            return Ok(found);
        }
        Err(CarveError::Geometry {
            gpu: gpu.to_string(),
            model: gpu.name.clone(),
            pool: self.device.pool.name.clone(),
            differences: vec![format!("memory: expected {expected}, the GPU has {found}")],
        })
    }

    /// The job's own leases, if all of its slices stand: Slurm ran the prolog again. Leases of an
    /// earlier run of the job, or some that were left half-way, are ended.
    fn own_leases(
        &self,
        session: &Session,
        gpu: &mut Gpu<'_>,
    ) -> Result<Option<Vec<Lease>>, CarveError> {
        let mut leases = self.store.of_job(self.job.job_id)?;
        if leases.is_empty() {
            return Ok(None);
        }
        let mut kept = leases.len() == self.count as usize;
        for lease in &leases {
            kept = kept && self.is_of_this_run(gpu, lease) && self.stands(gpu, lease)?;
        }
        if kept {
            for lease in &mut leases {
                let number = lease.number;
                Attempt { number, ..*self }.equip(gpu, lease)?;
            }
            return Ok(Some(leases));
        }
        let teardown = Teardown::new(self.node, self.store);
        for lease in leases.iter_mut().rev() {
            let retried = teardown.begin(lease)?;
            teardown.end(session, lease, retried, self.log)?;
            self.log
                .warning("ended a lease that an earlier run of the job had left");
        }
        Ok(None)
    }

    fn is_of_this_run(&self, gpu: &Gpu<'_>, lease: &Lease) -> bool {
        lease.state == LeaseState::Active
            && self.job.is_run_of(lease)
            && lease.units == self.menu.units
            && lease.mechanism == self.device.pool.mechanism
            && lease.slice.gpu_uuid == gpu.uuid
            && lease.slice.device_index == self.device.index
    }

    /// Whether the instance of a lease is there; what needs none stands as long as its GPU does.
    fn stands(&self, gpu: &Gpu<'_>, lease: &Lease) -> Result<bool, CarveError> {
        let Some(mig) = &lease.slice.mig else {
            return Ok(true);
        };
        let Some(instance) = &mig.instance else {
            return Ok(false);
        };
        let standing = gpu.compute_instance(instance.gi_id, instance.ci_id)?;
        Ok(standing.is_some_and(|ci| ci.mig_uuid == instance.mig_uuid))
    }

    /// The other leases on the GPU: those of other jobs, and of the job's other slices.
    fn others(&self, gpu: &Gpu<'_>) -> Result<Vec<Lease>, CarveError> {
        let mut leases = self.store.of_gpu(&gpu.uuid)?;
        leases.retain(|lease| (lease.job_id, lease.number) != (self.job.job_id, self.number));
        Ok(leases)
    }

    /// Units of the device that are leased already.
    fn taken(&self, gpu: &Gpu<'_>) -> Result<u32, CarveError> {
        let others = self.others(gpu)?;
        let here = others
            .iter()
            .filter(|lease| lease.slice.side == self.device.side);
        Ok(here.map(|lease| lease.units.0).sum())
    }

    /// Jobs of an earlier configuration keep the GPU as it was for them: its compute mode, their daemon.
    fn agrees(&self, gpu: &Gpu<'_>) -> Result<(), CarveError> {
        let pool = self.device.pool;
        let private = pool.options.tenancy == Tenancy::Private;
        let differs = |other: &Lease| {
            let mps = other.slice.mps.as_ref();
            other.mechanism != pool.mechanism || mps.is_some_and(|mps| mps.private != private)
        };
        match self.others(gpu)?.into_iter().find(differs) {
            None => Ok(()),
            Some(other) => Err(CarveError::Earlier {
                gpu: gpu.to_string(),
                job_id: other.job_id,
                mechanism: other.mechanism,
            }),
        }
    }

    /// Slurm counts right, but an epilog may have failed: then the leases of ended jobs go.
    fn make_room(&self, session: &Session, gpu: &Gpu<'_>) -> Result<(), CarveError> {
        let capacity = self.device.pool.layout.capacity.0;
        let fits = |taken: u32| taken + self.menu.units.0 <= capacity;
        if fits(self.taken(gpu)?) || (self.evict(session, gpu)? > 0 && fits(self.taken(gpu)?)) {
            return Ok(());
        }
        Err(CarveError::NoRoom {
            units: self.menu.units,
            side: self.device.side,
            gpu_index: self.device.gpu_index,
            taken: self.taken(gpu)?,
            capacity,
        })
    }

    fn evict(&self, session: &Session, gpu: &Gpu<'_>) -> Result<usize, CarveError> {
        Ok(reconcile::evict_finished(
            self.node,
            self.store,
            session,
            &reconcile::Wanted {
                gpu_uuid: &gpu.uuid,
                side: self.device.side,
                job_id: self.job.job_id,
            },
            self.slurm,
            self.log,
        )?)
    }

    /// The instance that jobs on this half share already.
    fn joined(&self, gpu: &Gpu<'_>) -> Result<Option<MigSlice>, CarveError> {
        for lease in self.others(gpu)? {
            let here = lease.mechanism == Mechanism::MigMps && lease.slice.side == self.device.side;
            if here && self.stands(gpu, &lease)? {
                return Ok(lease.slice.mig);
            }
        }
        Ok(None)
    }

    fn candidate(
        &self,
        session: &Session,
        gpu: &Gpu<'_>,
        geometry: &Geometry,
    ) -> Result<Candidate, CarveError> {
        let layout = &self.device.pool.layout;
        let (side, units) = (self.device.side, self.menu.units);
        let mut view = self.view(gpu, geometry)?;
        if let Some(candidate) = layout.place(side, units, &view.occupied) {
            return Ok(candidate);
        }
        let evicted = self.evict(session, gpu)?;
        if evicted > 0 {
            view = self.view(gpu, geometry)?;
            if let Some(candidate) = layout.place(side, units, &view.occupied) {
                return Ok(candidate);
            }
        }
        Err(CarveError::NoPlace {
            profile: self.menu.profile_name.clone(),
            side,
            gpu_index: self.device.gpu_index,
            standing: view.standing,
        })
    }

    /// What is taken on the GPU: the places of all leases, made or not, and every instance that
    /// NVML shows, whoever made it.
    fn view(&self, gpu: &Gpu<'_>, geometry: &Geometry) -> Result<View, CarveError> {
        let mut occupied = Vec::new();
        let mut standing = Vec::new();
        for lease in self.store.of_gpu(&gpu.uuid)? {
            let Some(mig) = &lease.slice.mig else {
                continue;
            };
            let place = Occupied {
                profile_id: mig.profile_id,
                placement: mig.placement,
            };
            // Jobs may share an instance.
            if !occupied.contains(&place) {
                occupied.push(place);
            }
            let place = reconcile::place(&lease);
            standing.push(format!("{place} of job {} ({})", lease.name(), lease.state));
        }
        for instance in gpu.instances(geometry)? {
            let found = Occupied {
                profile_id: instance.profile_id,
                placement: instance.placement,
            };
            if !occupied.contains(&found) {
                occupied.push(found);
                standing.push(format!(
                    "GPU instance {} at {}:{} that gpufrac did not make",
                    instance.gi_id, instance.placement.start, instance.placement.size
                ));
            }
        }
        let standing = match standing.is_empty() {
            true => "nothing stands there".to_owned(),
            false => standing.join(", "),
        };
        Ok(View { occupied, standing })
    }

    /// An instance of the job's own, or, with MPS inside it, a part of one.
    fn instance_slice(
        &self,
        session: &Session,
        gpu: &Gpu<'_>,
        geometry: &Geometry,
    ) -> Result<Slice, CarveError> {
        let shared = self.device.pool.mechanism == Mechanism::MigMps;
        let joined = if shared {
            self.make_room(session, gpu)?;
            self.joined(gpu)?
        } else {
            None
        };
        let mig = match joined {
            Some(mig) => mig,
            None => {
                let candidate = self.candidate(session, gpu, geometry)?;
                let profile = geometry
                    .profile(candidate.profile_id)
                    .ok_or(CarveError::NoProfile(candidate.profile_id))?;
                MigSlice {
                    profile_id: profile.id,
                    profile_name: profile.name.clone(),
                    placement: candidate.placement,
                    instance: None,
                }
            }
        };
        let memory = geometry
            .profile(mig.profile_id)
            .ok_or(CarveError::NoProfile(mig.profile_id))?
            .memory;
        let (memory, mps) = match shared {
            true => {
                let (percentage, memory) = self.share_of(memory);
                let side = match self.device.side {
                    Side::Left => "l",
                    Side::Right => "r",
                    Side::Whole => "",
                };
                let folder = format!("gpu{}{side}", gpu.index);
                (memory, Some(self.mps_slice(&folder, percentage, memory)))
            }
            false => (memory, None),
        };
        Ok(Slice {
            memory_mib: memory,
            mig: Some(mig),
            mps,
            ..self.bare_slice(gpu)
        })
    }

    /// A share of a GPU without MIG, or all of it.
    fn share_slice(&self, gpu: &Gpu<'_>, gpu_memory: MemoryMib, group_limit: bool) -> Slice {
        let (pool, bare) = (self.device.pool, self.bare_slice(gpu));
        let (percentage, memory) = self.share_of(gpu_memory);
        // The whole GPU is the job's alone: nothing is shared, nothing limited.
        if percentage >= 100 {
            return Slice {
                memory_mib: gpu_memory,
                ..bare
            };
        }
        let mps = (pool.mechanism == Mechanism::Mps).then(|| {
            let folder = match pool.options.tenancy {
                Tenancy::Shared => format!("gpu{}", gpu.index),
                Tenancy::Private => format!("job{}", self.name()),
            };
            self.mps_slice(&folder, percentage, memory)
        });
        let hami = pool.options.library.as_ref().map(|library| HamiSlice {
            library: library.clone(),
            cache: self.node.hami_cache(&self.name()),
            sm_limit: percentage,
        });
        Slice {
            memory_mib: memory,
            hints: pool.options.framework_hints,
            group_limit,
            mps,
            hami,
            ..bare
        }
    }

    /// Whether the driver is to limit the job's memory. Where it can not, the pool's other limits are all
    /// there is; `gpufrac check` says so.
    fn group_limit(&self, session: &Session) -> Result<bool, CarveError> {
        if !self.device.pool.options.memory_limits {
            return Ok(false);
        }
        let missing = memory_limit::missing(&session.driver_version()?);
        if let Some(why) = &missing {
            self.log.warning(format!(
                "no memory limit for the job's control group: {why}"
            ));
        }
        Ok(missing.is_none())
    }

    /// What the job's units are of its device: percent, and memory rounded down.
    fn share_of(&self, device_memory: MemoryMib) -> (u32, MemoryMib) {
        let (units, capacity) = (self.menu.units, self.device.pool.layout.capacity);
        let memory = device_memory.part(units, capacity);
        (units.0 * 100 / capacity.0, memory)
    }

    fn mps_slice(&self, folder: &str, percentage: u32, memory: MemoryMib) -> MpsSlice {
        let options = &self.device.pool.options;
        MpsSlice {
            folder: self.node.mps_folder(folder),
            private: options.tenancy == Tenancy::Private,
            thread_percentage: percentage,
            memory_limit_mib: memory,
            sm_partition: None,
        }
    }

    fn bare_slice(&self, gpu: &Gpu<'_>) -> Slice {
        Slice {
            device_index: self.device.index,
            side: self.device.side,
            gpu_uuid: gpu.uuid.clone(),
            gpu_index: gpu.index,
            gpu_minor: gpu.minor,
            memory_mib: MemoryMib(0),
            hints: self.device.pool.options.framework_hints,
            group_limit: false,
            mig: None,
            mps: None,
            hami: None,
        }
    }

    /// That of the lease to be.
    fn name(&self) -> String {
        lease::name(self.job.job_id, self.number)
    }

    fn intent(&self, slice: Slice) -> Lease {
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
            mechanism: self.device.pool.mechanism,
            units: self.menu.units,
            fraction: self.menu.fraction,
            confirmed: self.confirmed,
            idle_wish: self.job.idle_wish(),
            created_unix: now_unix(),
            slice,
        }
    }

    fn make(
        &self,
        gpu: &mut Gpu<'_>,
        geometry: Option<&Geometry>,
        lease: &mut Lease,
    ) -> Result<(), CarveError> {
        if let (Some(geometry), Some(mig)) = (geometry, &mut lease.slice.mig)
            && mig.instance.is_none()
        {
            mig.instance = Some(self.make_instance(gpu, geometry, mig)?);
            self.store.write(lease)?;
            reached("carve.instance_recorded");
        }
        self.equip(gpu, lease)?;
        lease.advance(LeaseState::Active)?;
        self.store.write(lease)?;
        reached("carve.active");
        Ok(())
    }

    fn make_instance(
        &self,
        gpu: &Gpu<'_>,
        geometry: &Geometry,
        mig: &MigSlice,
    ) -> Result<Instance, CarveError> {
        let profile = geometry
            .profile(mig.profile_id)
            .ok_or(CarveError::NoProfile(mig.profile_id))?;
        let gi_id = gpu.create_gpu_instance(profile.id, mig.placement)?;
        reached("carve.gpu_instance_made");
        let gpufrac_nvml::ComputeInstance { ci_id, mig_uuid } =
            gpu.create_compute_instance(gi_id, profile.compute_slices)?;
        reached("carve.compute_instance_made");
        let minors = self.node.caps().claim(gpu.minor, gi_id, ci_id)?;
        Ok(Instance {
            gi_id,
            ci_id,
            mig_uuid,
            gi_cap_minor: minors.gi,
            ci_cap_minor: minors.ci,
        })
    }

    /// What the job needs beside the device itself: who may open it, the compute mode, the
    /// daemon, the cache. Can be done again.
    fn equip(&self, gpu: &mut Gpu<'_>, lease: &mut Lease) -> Result<(), CarveError> {
        if let Some(instance) = lease.slice.instance() {
            let caps = self.node.caps();
            let minors = caps.claim(gpu.minor, instance.gi_id, instance.ci_id)?;
            match &lease.slice.mps {
                None => caps.grant(minors, lease.user_id)?,
                Some(_) => {
                    let mut users = tenants::users_of_instance(&self.others(gpu)?, instance);
                    if users.is_empty() {
                        caps.revoke(minors)?;
                    }
                    users.push(lease.user_id);
                    caps.share(minors, &users)?;
                }
            }
            reached("carve.caps_granted");
        } else if lease.units < Units::WHOLE {
            let alone = lease.slice.mps.as_ref().is_some_and(|mps| !mps.private);
            let mode = match alone {
                // Nobody goes round the one daemon.
                true => ComputeMode::ExclusiveProcess,
                false => ComputeMode::Default,
            };
            compute_mode::hold(self.node, gpu, mode, self.others(gpu)?.is_empty())?;
            reached("carve.mode_held");
        }
        self.enter_daemon(lease)?;
        if lease.slice.hami.is_some() {
            self.node.make_hami_cache(lease)?;
            reached("carve.cache_made");
        }
        Ok(())
    }

    fn enter_daemon(&self, lease: &mut Lease) -> Result<(), CarveError> {
        let options = &self.device.pool.options;
        let partition = {
            let tenants = Tenants::of(self.node, self.store, lease, self.log)?;
            let (Some(mps), Some(tenancy)) = (&lease.slice.mps, tenants) else {
                return Ok(());
            };
            let device = lease.slice.cuda_device().unwrap_or_default();
            tenancy.enter(Start {
                device,
                multi_user: !mps.private,
                partitions: options.sm_chunks.is_some(),
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
        if let (Some(name), Some(mps)) = (partition, &mut lease.slice.mps) {
            mps.sm_partition = Some(name);
            self.store.write(lease)?;
        }
        Ok(())
    }

    /// Takes back what a failed attempt made. If that fails too, the lease stays and says where
    /// to look.
    fn unmake(&self, gpu: &mut Gpu<'_>, lease: &Lease, error: CarveError) -> CarveError {
        let teardown = Teardown::new(self.node, self.store);
        let cleanup = teardown
            .dismantle(gpu, lease, self.log)
            .and_then(|_| teardown.drop_lease(lease));
        match cleanup {
            Ok(()) => error,
            Err(cleanup) => CarveError::Unfinished {
                error: Box::new(error),
                cleanup,
            },
        }
    }
}

struct View {
    occupied: Vec<Occupied>,
    standing: String,
}
