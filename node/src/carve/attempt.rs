//! One attempt to carve, under the lock of the GPU.

use std::time::Duration;

use gpufrac_core::config::Device;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Candidate, MenuEntry, Occupied};
use gpufrac_core::lease::{self, Instance, Lease, LeaseState, Slice};

use super::{CarveError, Carved};
use crate::failpoint::reached;
use crate::job_env::JobEnv;
use crate::lease_store::LeaseStore;
use crate::log::JobLog;
use crate::node::{Node, now_unix};
use crate::nvml::{self, Gpu, MigMode, Session};
use crate::reconcile;
use crate::record::NodeRecord;
use crate::slurm::Slurm;
use crate::teardown::Teardown;

/// All that an attempt needs to know.
pub(super) struct Attempt<'a> {
    pub job: &'a JobEnv,
    pub node: &'a Node,
    pub store: &'a LeaseStore,
    pub record: &'a NodeRecord,
    pub device: Device<'a>,
    pub menu: &'a MenuEntry,
    /// Whether Slurm itself said how much the job holds.
    pub confirmed: bool,
    pub slurm: &'a dyn Slurm,
    pub log: &'a JobLog,
}

impl Attempt<'_> {
    /// Tries once; waits for the lock no longer than `patience`.
    pub fn run(&self, session: &Session, patience: Duration) -> Result<Carved, CarveError> {
        // What does not change is asked before the lock is taken.
        let gpu = self.gpu(session)?;
        let geometry = self.checked_geometry(&gpu)?;
        let _lock = self.node.locks()?.gpu(self.device.gpu_index, patience)?;
        reached("carve.locked");
        if let Some(kept) = self.own_lease(session, &gpu)? {
            return Ok(Carved::Kept(Box::new(kept)));
        }
        reconcile::repair(
            self.node,
            self.store,
            session,
            &gpu.uuid,
            Some(self.job.job_id),
            self.log,
        )?;
        let candidate = self.candidate(session, &gpu, &geometry)?;
        let mut lease = self.intent(&gpu, &geometry, candidate)?;
        self.store.write(&lease)?;
        reached("carve.lease_written");
        match self.make(&gpu, &geometry, &mut lease) {
            Ok(()) => Ok(Carved::Made(Box::new(lease))),
            Err(error) => Err(self.unmake(&gpu, &lease, error)),
        }
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

    /// The job's own lease, if its slice stands: Slurm ran the prolog again. A lease of an
    /// earlier run of the job, or one that was left half-way, is ended.
    fn own_lease(&self, session: &Session, gpu: &Gpu<'_>) -> Result<Option<Lease>, CarveError> {
        let Some(mut lease) = self.store.read(self.job.job_id)? else {
            return Ok(None);
        };
        let same_run = lease.state == LeaseState::Active
            && self.job.is_run_of(&lease)
            && lease.units == self.menu.units
            && lease.slice.device_index == self.device.index;
        if same_run && let Some(instance) = &lease.slice.instance {
            let standing = gpu.compute_instance(instance.gi_id, instance.ci_id)?;
            if standing.is_some_and(|ci| ci.mig_uuid == instance.mig_uuid) {
                let caps = self.node.caps();
                let minors = caps.claim(gpu.minor, instance.gi_id, instance.ci_id)?;
                caps.grant(minors, lease.user_id)?;
                return Ok(Some(lease));
            }
        }
        let teardown = Teardown::new(self.node, self.store);
        let retried = teardown.begin(&mut lease)?;
        teardown.end(session, &mut lease, retried, self.log)?;
        self.log
            .warning("ended a lease that an earlier run of the job had left");
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
        let evicted = reconcile::evict_finished(
            self.node,
            self.store,
            session,
            &reconcile::Wanted {
                gpu_uuid: &gpu.uuid,
                side,
                job_id: self.job.job_id,
            },
            self.slurm,
            self.log,
        )?;
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
        for lease in self.store.list()? {
            if lease.slice.gpu_uuid != gpu.uuid {
                continue;
            }
            occupied.push(Occupied {
                profile_id: lease.slice.profile_id,
                placement: lease.slice.placement,
            });
            let place = reconcile::place(&lease);
            standing.push(format!("{place} of job {} ({})", lease.job_id, lease.state));
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

    fn intent(
        &self,
        gpu: &Gpu<'_>,
        geometry: &Geometry,
        candidate: Candidate,
    ) -> Result<Lease, CarveError> {
        let profile = geometry
            .profile(candidate.profile_id)
            .ok_or(CarveError::NoProfile(candidate.profile_id))?;
        Ok(Lease {
            version: lease::VERSION,
            state: LeaseState::Carving,
            job_id: self.job.job_id,
            restart_count: self.job.restart_count,
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
            created_unix: now_unix(),
            slice: Slice {
                device_index: self.device.index,
                side: self.device.side,
                gpu_uuid: gpu.uuid.clone(),
                gpu_index: gpu.index,
                gpu_minor: gpu.minor,
                profile_id: profile.id,
                profile_name: profile.name.clone(),
                memory_mib: profile.memory,
                placement: candidate.placement,
                instance: None,
            },
        })
    }

    fn make(
        &self,
        gpu: &Gpu<'_>,
        geometry: &Geometry,
        lease: &mut Lease,
    ) -> Result<(), CarveError> {
        let slice = &lease.slice;
        let profile = geometry
            .profile(slice.profile_id)
            .ok_or(CarveError::NoProfile(slice.profile_id))?;
        let gi_id = gpu.create_gpu_instance(profile.id, slice.placement)?;
        reached("carve.gpu_instance_made");
        let nvml::ComputeInstance { ci_id, mig_uuid } =
            gpu.create_compute_instance(gi_id, profile.compute_slices)?;
        reached("carve.compute_instance_made");
        let caps = self.node.caps();
        let minors = caps.claim(gpu.minor, gi_id, ci_id)?;
        lease.slice.instance = Some(Instance {
            gi_id,
            ci_id,
            mig_uuid,
            gi_cap_minor: minors.gi,
            ci_cap_minor: minors.ci,
        });
        self.store.write(lease)?;
        reached("carve.instance_recorded");
        caps.grant(minors, lease.user_id)?;
        reached("carve.caps_granted");
        lease.advance(LeaseState::Active)?;
        self.store.write(lease)?;
        reached("carve.active");
        Ok(())
    }

    /// Takes back what a failed attempt made. If that fails too, the lease stays and says where
    /// to look.
    fn unmake(&self, gpu: &Gpu<'_>, lease: &Lease, error: CarveError) -> CarveError {
        let teardown = Teardown::new(self.node, self.store);
        let cleanup = teardown
            .dismantle(gpu, lease)
            .and_then(|_| Ok(self.store.remove(lease.job_id)?));
        match cleanup {
            Ok(_) => error,
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
