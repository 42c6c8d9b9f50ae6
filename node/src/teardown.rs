//! Taking down what a lease stands for, and nothing else. All of this is done with the GPU's
//! lock held, and each step may have been done before by a run that died.

use gpufrac_core::lease::{Instance, Lease, LeaseError, LeaseState};

use crate::caps::{Caps, CapsError, InstanceCaps};
use crate::failpoint::reached;
use crate::lease_store::{LeaseStore, StoreError};
use crate::log::JobLog;
use crate::node::{Node, now_unix};
use crate::nvml::{Gpu, NvmlError, Session, Severity};
use crate::usage::{self, UsageRecord};

/// Why a slice could not be taken down.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    /// NVML refused or could not say what stands on the GPU.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The GPU of the lease is not there: nothing is known of its instance.
    #[error("the GPU {uuid} of the lease is not on this node any more")]
    NoGpu {
        /// UUID of the GPU.
        uuid: String,
    },
    /// The capability files could not be given back.
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// The lease could not be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The lease cannot go to this state.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl TeardownError {
    /// Whether processes still run on the slice.
    pub fn is_in_use(&self) -> bool {
        matches!(self, TeardownError::Nvml(error) if error.is_in_use())
    }

    /// Whether waiting may help.
    pub fn severity(&self) -> Severity {
        match self {
            TeardownError::Nvml(error) => error.severity(),
            _ => Severity::Broken,
        }
    }
}

/// What a teardown found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The instance, which is gone now.
    Ours,
    /// Nothing: it was gone already.
    Nothing,
    /// Another instance with the same ids. It stands; ours is gone.
    Foreign,
}

/// The tools for one GPU.
pub struct Teardown<'a> {
    node: &'a Node,
    store: &'a LeaseStore,
    caps: Caps,
}

impl<'a> Teardown<'a> {
    /// With the leases of a node.
    pub fn new(node: &'a Node, store: &'a LeaseStore) -> Self {
        Teardown {
            node,
            store,
            caps: node.caps(),
        }
    }

    /// Puts a lease in `releasing`. Says whether it was there before: then a run that died may
    /// have done any part of the rest.
    pub fn begin(&self, lease: &mut Lease) -> Result<bool, TeardownError> {
        if lease.state == LeaseState::Releasing {
            return Ok(true);
        }
        lease.advance(LeaseState::Releasing)?;
        self.store.write(lease)?;
        reached("release.releasing_written");
        Ok(false)
    }

    /// Ends a lease: the instance goes, then the usage record is written, then the lease goes.
    /// On an error the lease stays, and this can be called again. `retried`: from
    /// [`Teardown::begin`].
    pub fn end(
        &self,
        session: &Session,
        lease: &mut Lease,
        retried: bool,
        log: &JobLog,
    ) -> Result<Found, TeardownError> {
        let gpu = gpu_of(session, lease)?;
        let found = self.dismantle(&gpu, lease)?;
        reached("release.gpu_instance_gone");
        // A slice that was never made is no usage.
        if lease.slice.instance.is_some() {
            let record = UsageRecord::of(lease, now_unix());
            if let Err(error) = usage::append(&self.node.state, &record, retried) {
                // The slice must go back to the pool all the same; the line says what was lost.
                log.error(format!(
                    "no usage record ({} s of {} lost): {error}",
                    record.seconds, record.profile
                ));
            }
        }
        reached("release.usage_written");
        self.store.remove(lease.job_id)?;
        reached("release.lease_removed");
        Ok(found)
    }

    /// Destroys the instance of a lease, if it stands.
    pub fn dismantle(&self, gpu: &Gpu<'_>, lease: &Lease) -> Result<Found, TeardownError> {
        match &lease.slice.instance {
            Some(instance) => self.dismantle_known(gpu, lease, instance),
            None => self.dismantle_intended(gpu, lease),
        }
    }

    fn dismantle_known(
        &self,
        gpu: &Gpu<'_>,
        lease: &Lease,
        instance: &Instance,
    ) -> Result<Found, TeardownError> {
        let caps = InstanceCaps {
            gi: instance.gi_cap_minor,
            ci: instance.ci_cap_minor,
        };
        let Some(standing) = gpu.instance(instance.gi_id)? else {
            // Nobody has these files now; whoever gets the id next must not find them open.
            self.caps.revoke(caps)?;
            return Ok(Found::Nothing);
        };
        if (standing.profile_id, standing.placement)
            != (lease.slice.profile_id, lease.slice.placement)
        {
            return Ok(Found::Foreign);
        }
        let inside = gpu.compute_instances(instance.gi_id)?;
        // The driver uses ids again: only the UUID says that it is ours. A GPU instance without
        // a compute instance has none; with the id, the profile and the place of the lease
        // it is ours, left by a teardown that died in between.
        if inside
            .iter()
            .any(|ci| ci.ci_id != instance.ci_id || ci.mig_uuid != instance.mig_uuid)
        {
            return Ok(Found::Foreign);
        }
        self.caps.revoke(caps)?;
        reached("release.caps_revoked");
        gpu.destroy_compute_instance(instance.gi_id, instance.ci_id)?;
        reached("release.compute_instance_gone");
        gpu.destroy_gpu_instance(instance.gi_id)?;
        Ok(Found::Ours)
    }

    /// A lease that names no instance: its carving died somewhere between the intent and the
    /// record. When the intent was written its place was empty, so what stands exactly there
    /// with this profile, and is in no other lease, was made for it.
    fn dismantle_intended(&self, gpu: &Gpu<'_>, lease: &Lease) -> Result<Found, TeardownError> {
        let others = self.store.list()?;
        let taken = |gi_id: u32| {
            others.iter().any(|other| {
                other.job_id != lease.job_id
                    && other.slice.gpu_uuid == lease.slice.gpu_uuid
                    && other
                        .slice
                        .instance
                        .as_ref()
                        .is_some_and(|i| i.gi_id == gi_id)
            })
        };
        let standing = gpu.instances(&gpu.geometry()?)?;
        let Some(instance) = standing.iter().find(|instance| {
            (instance.profile_id, instance.placement)
                == (lease.slice.profile_id, lease.slice.placement)
                && !taken(instance.gi_id)
        }) else {
            return Ok(Found::Nothing);
        };
        for ci in gpu.compute_instances(instance.gi_id)? {
            gpu.destroy_compute_instance(instance.gi_id, ci.ci_id)?;
        }
        gpu.destroy_gpu_instance(instance.gi_id)?;
        Ok(Found::Ours)
    }
}

/// The GPU that a lease names, by its UUID.
pub fn gpu_of<'s>(session: &'s Session, lease: &Lease) -> Result<Gpu<'s>, TeardownError> {
    let uuid = &lease.slice.gpu_uuid;
    let count = session.gpu_count()?;
    // Most likely it still has its index.
    let first = (lease.slice.gpu_index < count).then_some(lease.slice.gpu_index);
    for index in first.into_iter().chain(0..count) {
        let gpu = session.gpu(index)?;
        if gpu.uuid == *uuid {
            return Ok(gpu);
        }
    }
    Err(TeardownError::NoGpu { uuid: uuid.clone() })
}
