//! One attempt to make a job's slices, under the lock of the GPU.

mod intent;
mod make;
mod place;

use gpufrac_core::config::Device;
use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{MenuEntry, Occupied};
use gpufrac_core::lease::{Held, Lease, LeaseState};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{Gpu, MigMode, Session};
use place::InstanceQuery;

use super::error::CarveError;
use crate::gpu::holders::HeldCaps;
use crate::gpu::locked::LockedGpu;
use crate::gpu::memory_limit;
use crate::job::environment::JobEnv;
use crate::job::slurmctld::Slurm;
use crate::mps::error::MpsError;
use crate::mps::tenants::ShareError;
use crate::node::Node;
use crate::slice::failpoint::reached;
use crate::slice::teardown::TeardownError;
use crate::slice::waiting::Waiting;
use crate::slice::{keep, mig_mode, reconcile, teardown};
use crate::state::leases::LeaseStore;
use crate::state::line::Line;
use crate::state::record::{GpuFacts, NodeRecord};

/// The outcome of carving.
#[derive(Debug)]
pub enum Carved {
    /// The job does not use a pool of this node.
    NotConcerned,
    /// The slices were made; by number.
    Made(Vec<Lease>),
    /// The slices existed already, because Slurm ran the prolog again.
    Kept(Vec<Lease>),
}

pub(super) struct Attempt<'a> {
    pub job: &'a JobEnv,
    pub node: &'a Node,
    pub store: &'a LeaseStore,
    pub record: &'a NodeRecord,
    pub device: Device<'a>,
    pub menu: &'a MenuEntry,
    /// The number of slices of the job on this device.
    pub count: u32,
    /// The number of the first slice, or of the one that is being made.
    pub number: u32,
    /// Whether Slurm confirmed how much the job holds.
    pub confirmed: bool,
    /// Whether Slurm allocated the device itself, and not shares of it.
    pub whole_device: bool,
    pub slurm: &'a dyn Slurm,
    pub log: &'a JobLog,
}

/// How the GPU is divided.
enum Cut {
    /// Into MIG instances.
    Instances {
        /// The MIG tables of the GPU.
        geometry: Geometry,
        /// Capability files that users' processes hold open.
        held: HeldCaps,
    },
    /// The GPU itself, with MIG off.
    Bare,
    /// Into shares of the GPU itself.
    Shares {
        memory: MemoryMib,
        /// Whether the driver limits the memory of a job's control group.
        group_limit: bool,
    },
}

impl Attempt<'_> {
    /// Makes one attempt, at its turn. MIG mode that was pending at node-setup, or was switched off since, is switched
    /// on first.
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
                mig_mode::switch_on(&mut locked)?;
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
        // Facts that do not change are read before the lock is taken.
        let gpu = self.gpu(session)?;
        let facts = self.facts(session)?;
        let mut cut = match self.device.pool.mechanism.uses_mig() {
            true if self.is_bare() => {
                self.check_model(&gpu, facts.geometry)?;
                Cut::Bare
            }
            true => Cut::Instances {
                geometry: self.checked_geometry(&gpu, facts.geometry)?,
                held: self.held_caps(),
            },
            false => Cut::Shares {
                memory: self.checked_memory(&gpu, facts.memory)?,
                group_limit: self.group_limit(session)?,
            },
        };
        if !self.is_awaited() {
            // Before the turn: no program waits for this start.
            session.start()?;
        }
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
        // One after the other, because a slice may share what the one before created. If this program dies in
        // between, the job does not start, and its next prolog or its epilog removes the slices.
        for number in self.number..self.number + self.count {
            let attempt = Attempt { number, ..*self };
            match attempt.slice(locked, &cut) {
                Ok(lease) => made.push(lease),
                Err(error) => return Err(self.take_back(locked, made, error)),
            }
        }
        Ok(Carved::Made(made))
    }

    /// Makes one slice. An instance whose files a process of another user holds open is not granted: another place is
    /// taken if there is one, because the driver's ids depend on the place.
    fn slice(&self, locked: &mut LockedGpu<'_>, cut: &Cut) -> Result<Lease, CarveError> {
        let mut avoided = Vec::new();
        let mut held = None;
        loop {
            let error = match (self.slice_beside(locked, cut, &avoided), &held) {
                (Ok(lease), None) => return Ok(lease),
                (Ok(lease), Some(held)) => {
                    // A process holds the file of a free instance. gpufrac gives the job another instance. Cure: End
                    // the process if it stays.
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
                        // No other place is free, so this is the reason for the message.
                        (CarveError::NoPlace { .. }, Some(held)) => held,
                        (error, _) => error,
                    });
                }
            }
        }
    }

    /// Makes one slice, from the choice of a place outside of `avoided` to an active lease.
    fn slice_beside(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        avoided: &[Occupied],
    ) -> Result<Lease, CarveError> {
        match self.slice_by(locked, cut, avoided, InstanceQuery::Ids) {
            // MIG was switched off, or the place has an instance that was not seen.
            Err(error) if make::is_refused(&error) => {
                check_mode(&locked.gpu)?;
                self.slice_by(locked, cut, avoided, InstanceQuery::Places)
            }
            other => other,
        }
    }

    fn slice_by(
        &self,
        locked: &mut LockedGpu<'_>,
        cut: &Cut,
        avoided: &[Occupied],
        query: InstanceQuery,
    ) -> Result<Lease, CarveError> {
        let (slice, kept) = match cut {
            Cut::Instances { geometry, held } => {
                self.instance_slice(locked, geometry, held, avoided, query)?
            }
            Cut::Bare => (self.bare_slice(locked)?, None),
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
        // Before this lease is active: an instance of a running job is in no other lease.
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
                    // Some of these jobs may have ended without an epilog; the next attempt then succeeds.
                    self.evict(locked)?;
                }
                Err(error)
            }
        }
    }

    /// A job has all of its slices or none: the slices made so far are removed, the last one first.
    fn take_back(
        &self,
        locked: &mut LockedGpu<'_>,
        made: Vec<Lease>,
        mut error: CarveError,
    ) -> CarveError {
        for mut lease in made.into_iter().rev() {
            if let Err(cleanup) = undo(locked, &mut lease) {
                error = CarveError::Unfinished {
                    error: Box::new(error),
                    cleanup,
                };
            }
        }
        error
    }

    /// Removes the job's slices on this GPU, because the job does not get its other GPUs.
    pub fn give_back(
        &self,
        session: &Session,
        line: &mut Line<'_>,
        waiting: &mut Waiting<'_>,
    ) -> Result<(), CarveError> {
        let gpu = self.gpu(session)?;
        session.start()?;
        let lock = waiting.turn(line)?;
        let mut locked = LockedGpu::new(lock, self.node, self.store, gpu, self.log);
        for lease in self.leases_here()?.iter_mut().rev() {
            undo(&mut locked, lease)?;
        }
        Ok(())
    }

    /// The job's leases on this GPU.
    fn leases_here(&self) -> Result<Vec<Lease>, CarveError> {
        let mut leases = self.store.of_job(self.job.job_id)?;
        leases.retain(|lease| lease.slice.gpu_index == self.device.gpu_index);
        Ok(leases)
    }

    /// Searched before the lock is taken, because it can take long. Processes that hide by the number of their files
    /// are left to an admin: if they stopped the job, every user could stop all jobs.
    fn held_caps(&self) -> HeldCaps {
        let held = HeldCaps::search(self.record.caps_major);
        if !held.unsearched.is_empty() {
            // The processes have too many open files to look at all. Cure: End them if they should not run; the job
            // goes on.
            self.log.error(format!(
                "processes {:?} have too many open files to be searched for files of instances",
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
                Some(pci) if !session.is_started() => {
                    Some(session.gpu_at_later(pci, index, uuid, minor))
                }
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

    /// Whether an instance is kept that the job may get.
    fn is_awaited(&self) -> bool {
        keep::waits_for(self.node, self.store, self.job.user_id, |kept| {
            kept.slice.device_index == self.device.index && kept.units == self.menu.units
        })
    }

    /// The data about the GPU from node-setup, if the same driver is still loaded.
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
        // If MIG was switched off since, the driver refuses to create an instance.
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

    /// Whether the job gets the GPU itself, in a pool of MIG.
    fn is_bare(&self) -> bool {
        self.device.pool.switches_mig() && self.menu.units == Units::WHOLE
    }

    /// As [`Attempt::checked_geometry`], for a GPU that needs no MIG now: without it only the memory tells one model
    /// from another.
    fn check_model(&self, gpu: &Gpu<'_>, known: Option<&Geometry>) -> Result<(), CarveError> {
        let expected = &self.device.pool.geometry;
        if known.is_some_and(|known| expected.differences(known).is_empty()) {
            return Ok(());
        }
        let found = gpu.memory()?;
        self.expect_memory(gpu, found).map(|_| ())
    }

    /// A GPU that is shared without MIG, compared with the pool's memory.
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
        self.expect_memory(gpu, found)
    }

    fn expect_memory(&self, gpu: &Gpu<'_>, found: MemoryMib) -> Result<MemoryMib, CarveError> {
        let expected = self.device.pool.gpu_memory;
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

    /// The job's own leases, if all of its slices exist because Slurm ran the prolog again. Leases of an earlier run,
    /// and incomplete ones, are ended.
    fn own_leases(&self, locked: &mut LockedGpu<'_>) -> Result<Option<Vec<Lease>>, CarveError> {
        let mut leases = self.leases_here()?;
        if leases.is_empty() {
            return Ok(None);
        }
        let numbers = leases.iter().map(|lease| lease.number);
        let mut kept = numbers.eq(self.number..self.number + self.count);
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
            // The job was requeued and its first epilog did not run. Cure: Nothing.
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
            && (lease.slice.held == Held::Bare) == self.is_bare()
            && lease.slice.gpu_uuid == locked.gpu.uuid
            && lease.slice.device_index == self.device.index
            && (!self.confirmed || lease.whole_device == self.whole_device)
    }

    /// Whether the driver can limit the job's memory. If not, only the pool's other limits apply; `gpufrac check`
    /// reports this.
    fn group_limit(&self, session: &Session) -> Result<bool, CarveError> {
        if !self.device.pool.options.memory_limits {
            return Ok(false);
        }
        let missing = memory_limit::missing(&session.driver_version()?);
        if let Some(why) = &missing {
            // The job runs without the memory limit of its control group. Cure: Follow the text; control groups of
            // version 2 are needed.
            self.log.warning(format!(
                "setting a memory limit for the job's control group failed: {why}"
            ));
        }
        Ok(missing.is_none())
    }
}

/// Ends a slice without a usage record, because the job never had it.
fn undo(locked: &mut LockedGpu<'_>, lease: &mut Lease) -> Result<(), TeardownError> {
    teardown::begin(locked.store, locked.lock(), lease)?;
    teardown::dismantle(locked, lease)?;
    teardown::drop_lease(locked, lease)
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
