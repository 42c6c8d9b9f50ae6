//! One attempt to carve, under the lock of the GPU.

mod intent;
mod make;
mod place;

use gpufrac_core::config::Device;
use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{MenuEntry, Occupied};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{Gpu, MigMode, Session};
use place::Look;

use super::{CarveError, Carved};
use crate::gpu::holders::HeldCaps;
use crate::gpu::locked::LockedGpu;
use crate::gpu::memory_limit;
use crate::job::environment::JobEnv;
use crate::job::slurmctld::Slurm;
use crate::mps::error::MpsError;
use crate::mps::tenants::ShareError;
use crate::node::Node;
use crate::slice::failpoint::reached;
use crate::slice::waiting::Waiting;
use crate::slice::{mig_mode, reconcile, teardown};
use crate::state::leases::LeaseStore;
use crate::state::line::Line;
use crate::state::record::{GpuFacts, NodeRecord};

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
    /// Whether it said that the job holds the device itself.
    pub whole_device: bool,
    pub slurm: &'a dyn Slurm,
    pub log: &'a JobLog,
}

/// What the GPU is cut into.
enum Cut {
    /// MIG instances.
    Instances {
        /// What the GPU offers.
        geometry: Geometry,
        /// Capability files that are open in processes of users.
        held: HeldCaps,
    },
    /// Shares of the GPU itself.
    Shares {
        /// All memory of the GPU.
        memory: MemoryMib,
        /// Whether the driver is to limit the memory of a job's control group.
        group_limit: bool,
    },
}

impl Attempt<'_> {
    /// Tries once, when the turn comes. MIG that was pending at node-setup, or was switched off since, is switched on before.
    pub fn run(
        &self,
        session: &Session,
        line: &mut Line<'_>,
        waiting: &mut Waiting<'_>,
    ) -> Result<Carved, CarveError> {
        match self.run_in_mode(session, line, waiting) {
            Err(CarveError::MigOff { .. }) => {
                let lock = waiting.turn(line)?;
                let gpu = self.gpu(session)?;
                let mut locked = LockedGpu::new(lock, self.node, self.store, gpu, self.log);
                if mig_mode::switch_on(&mut locked)? {
                    self.log.info(format!("switched MIG on for {}", locked.gpu));
                }
                drop(locked);
                self.run_in_mode(session, line, waiting)
            }
            other => other,
        }
    }

    fn run_in_mode(
        &self,
        session: &Session,
        line: &mut Line<'_>,
        waiting: &mut Waiting<'_>,
    ) -> Result<Carved, CarveError> {
        // What does not change is found out before the lock is taken.
        let gpu = self.gpu(session)?;
        let facts = self.facts(session)?;
        let mut cut = match self.device.pool.mechanism.uses_mig() {
            true => Cut::Instances {
                geometry: self.checked_geometry(&gpu, facts.geometry)?,
                held: self.held_caps(),
            },
            false => Cut::Shares {
                memory: self.checked_memory(&gpu, facts.memory)?,
                group_limit: self.group_limit(session)?,
            },
        };
        let lock = waiting.turn(line)?;
        reached("carve.locked");
        if let Cut::Instances { held, .. } = &mut cut {
            held.look_again(self.record.caps_major);
        }
        let mut locked = LockedGpu::new(lock, self.node, self.store, gpu, self.log);
        let locked = &mut locked;
        if let Some(kept) = self.own_leases(locked)? {
            return Ok(Carved::Kept(kept));
        }
        reconcile::repair(locked, Some(self.job.job_id))?;
        self.agrees(locked)?;
        let mut made = Vec::new();
        // One after the other, as a slice may share what the one before it made. Where this run dies in between the
        // job does not start, and its next prolog or its epilog ends what is there.
        for number in 0..self.count {
            let attempt = Attempt { number, ..*self };
            match attempt.slice(locked, &cut) {
                Ok(lease) => made.push(lease),
                Err(error) => return Err(self.take_back(locked, made, error)),
            }
        }
        Ok(Carved::Made(made))
    }

    /// One slice. An instance whose files some other user's process holds open is not granted: another place is taken,
    /// where there is one, as the driver's ids go with places.
    fn slice(&self, locked: &mut LockedGpu<'_>, cut: &Cut) -> Result<Lease, CarveError> {
        let mut avoided = Vec::new();
        let mut held = None;
        loop {
            let error = match (self.slice_beside(locked, cut, &avoided), &held) {
                (Ok(lease), None) => return Ok(lease),
                (Ok(lease), Some(held)) => {
                    self.log
                        .error(format!("another instance is granted: {held}"));
                    return Ok(lease);
                }
                (Err(error), _) => error,
            };
            match error.held_place() {
                Some(place) if !avoided.contains(&place) => {
                    avoided.push(place);
                    held = Some(error);
                }
                _ => {
                    return Err(match (error, held) {
                        // Nothing else is free: that is the reason to tell.
                        (CarveError::NoPlace { .. }, Some(held)) => held,
                        (error, _) => error,
                    });
                }
            }
        }
    }

    /// One slice, from its place, which is none of these, to an active lease.
    fn slice_beside(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        avoided: &[Occupied],
    ) -> Result<Lease, CarveError> {
        match self.slice_by(locked, cut, avoided, Look::Ids) {
            // MIG was switched off, or something stands there that was not seen.
            Err(error) if make::is_refused(&error) => {
                check_mode(&locked.gpu)?;
                self.slice_by(locked, cut, avoided, Look::Places)
            }
            other => other,
        }
    }

    fn slice_by(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        avoided: &[Occupied],
        look: Look,
    ) -> Result<Lease, CarveError> {
        let (slice, kept) = match cut {
            Cut::Instances { geometry, held } => {
                self.instance_slice(locked, geometry, held, avoided, look)?
            }
            Cut::Shares {
                memory,
                group_limit,
            } => {
                self.make_room(locked)?;
                let slice = self.share_slice(&locked.gpu, *memory, *group_limit);
                (slice, None)
            }
        };
        let mut lease = self.intent(slice);
        locked.write(&lease)?;
        reached("carve.lease_written");
        // Before this lease is active: what a running job has no other lease names.
        let alone = kept.map_or(Ok(()), |kept| {
            teardown::drop_lease(locked, &kept)?;
            reached("carve.taken_over");
            Ok(())
        });
        match alone
            .map_err(CarveError::Old)
            .and_then(|()| self.make(locked, cut, &mut lease))
        {
            Ok(()) => Ok(lease),
            Err(error) => {
                let error = self.unmake(locked, &lease, error);
                if let CarveError::Share(ShareError::Mps(MpsError::Occupied { .. })) = &error {
                    // Some of those may be over, their epilog never having come; then the next try succeeds.
                    self.evict(locked)?;
                }
                Err(error)
            }
        }
    }

    /// A job has all of its slices or none: those that were made go again, the last one first.
    fn take_back(
        &self,
        locked: &mut LockedGpu<'_>,
        made: Vec<Lease>,
        mut error: CarveError,
    ) -> CarveError {
        for mut lease in made.into_iter().rev() {
            // No usage record: the job never had it.
            error = match teardown::begin(locked.store, locked.lock(), &mut lease) {
                Ok(_) => self.unmake(locked, &lease, error),
                Err(cleanup) => CarveError::Unfinished {
                    error: Box::new(error),
                    cleanup,
                },
            };
        }
        error
    }

    /// Looked at before the lock is taken, as it can take long. Processes that hide behind the number of their files are an
    /// admin's task: if they stopped the job, every user could stop all jobs.
    fn held_caps(&self) -> HeldCaps {
        let held = HeldCaps::search(self.record.caps_major);
        if !held.unsearched.is_empty() {
            self.log.error(format!(
                "processes {:?} have so many open files that they were not looked at for those of instances",
                held.unsearched
            ));
        }
        held
    }

    fn gpu<'s>(&self, session: &'s Session) -> Result<Gpu<'s>, CarveError> {
        let index = self.device.gpu_index;
        let expected = self.record.gpus.get(index.position());
        if let Some(expected) = expected {
            let (uuid, minor) = (&expected.uuid, expected.minor);
            let at = expected.pci.as_deref();
            // The driver's file tells without a call which GPU is at the address.
            let at = at.filter(|pci| self.node.caps().uuid_at(pci).as_ref() == Some(uuid));
            let gpu = match at {
                Some(pci) => session.gpu_at(pci, index, uuid, minor)?,
                None => session.known_gpu(index, uuid, minor)?,
            };
            if let Some(gpu) = gpu {
                return Ok(gpu);
            }
        }
        Err(CarveError::OtherGpu {
            index,
            expected: expected.map_or_else(String::new, |gpu| gpu.uuid.clone()),
            found: session.gpu(index)?.uuid,
        })
    }

    /// What is known of the GPU since node-setup, if the same driver is loaded still.
    fn facts(&self, session: &Session) -> Result<GpuFacts<&Geometry>, CarveError> {
        let driver = match self.node.caps().driver() {
            Some(driver) => driver,
            None if self.record.has_facts() => session.driver_version()?,
            None => String::new(),
        };
        Ok(self.record.facts(self.device.gpu_index, &driver))
    }

    fn checked_geometry(
        &self,
        gpu: &Gpu<'_>,
        known: Option<&Geometry>,
    ) -> Result<Geometry, CarveError> {
        let expected = &self.device.pool.geometry;
        // Where MIG was switched off since, the driver makes no instance.
        if let Some(known) = known.filter(|known| expected.differences(known).is_empty()) {
            return Ok(known.clone());
        }
        check_mode(gpu)?;
        let geometry = gpu.geometry()?;
        let differences = expected.differences(&geometry);
        if differences.is_empty() {
            return Ok(geometry);
        }
        Err(CarveError::Geometry {
            gpu: gpu.to_string(),
            model: gpu.name(),
            pool: self.device.pool.name.clone(),
            differences,
        })
    }

    /// A GPU that is shared without MIG, with what the pool says it has.
    fn checked_memory(
        &self,
        gpu: &Gpu<'_>,
        known: Option<MemoryMib>,
    ) -> Result<MemoryMib, CarveError> {
        if gpu.mig_mode()? == MigMode::On {
            return Err(CarveError::MigOn {
                gpu: gpu.to_string(),
                mechanism: self.device.pool.mechanism,
            });
        }
        let expected = self.device.pool.gpu_memory;
        if let Some(known) = known.filter(|known| known.is_about(expected)) {
            return Ok(known);
        }
        let found = gpu.memory()?;
        if found.is_about(expected) {
            return Ok(found);
        }
        Err(CarveError::Geometry {
            gpu: gpu.to_string(),
            model: gpu.name(),
            pool: self.device.pool.name.clone(),
            differences: vec![format!("memory: expected {expected}, the GPU has {found}")],
        })
    }

    /// The job's own leases, if all of its slices stand: Slurm ran the prolog again. Leases of an
    /// earlier run of the job, or some that were left half-way, are ended.
    fn own_leases(&self, locked: &mut LockedGpu<'_>) -> Result<Option<Vec<Lease>>, CarveError> {
        let mut leases = self.store.of_job(self.job.job_id)?;
        if leases.is_empty() {
            return Ok(None);
        }
        let mut kept = leases.len() == self.count as usize;
        for lease in &leases {
            kept = kept && self.is_of_this_run(locked, lease) && self.stands(locked, lease)?;
        }
        if kept {
            for lease in &mut leases {
                let number = lease.number;
                Attempt { number, ..*self }.equip(locked, lease)?;
            }
            return Ok(Some(leases));
        }
        for lease in leases.iter_mut().rev() {
            let retried = teardown::begin(locked.store, locked.lock(), lease)?;
            teardown::end(locked, lease, retried)?;
            self.log
                .warning("ended a lease that an earlier run of the job had left");
        }
        Ok(None)
    }

    fn is_of_this_run(&self, locked: &LockedGpu<'_>, lease: &Lease) -> bool {
        lease.state == LeaseState::Active
            && self.job.is_run_of(lease)
            && lease.units == self.menu.units
            && lease.mechanism() == self.device.pool.mechanism
            && lease.slice.gpu_uuid == locked.gpu.uuid
            && lease.slice.device_index == self.device.index
            && (!self.confirmed || lease.whole_device == self.whole_device)
    }

    /// Whether the driver is to limit the job's memory. Where it cannot, the pool's other limits are all
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
}

fn check_mode(gpu: &Gpu<'_>) -> Result<(), CarveError> {
    match gpu.mig_mode()? {
        MigMode::On => Ok(()),
        mode => Err(CarveError::MigOff {
            gpu: gpu.to_string(),
            mode,
        }),
    }
}
