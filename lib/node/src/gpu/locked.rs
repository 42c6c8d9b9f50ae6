//! A GPU whose lock is held.

use std::collections::BTreeSet;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, MigSlice};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{Gpu, NvmlError};

use crate::gpu::instance_use::{self, InstanceUse};
use crate::gpu::shared_session;
use crate::node::Node;
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::line::GpuLock;

/// A locked GPU: until this is dropped, no other program makes or releases slices on it. Every change of its leases,
/// compute mode, capability files, daemons and instances needs one of these. Each reading of its leases, and each
/// change of a lease, tells waiting programs that the work makes progress.
pub struct LockedGpu<'a> {
    pub node: &'a Node,
    pub store: &'a LeaseStore,
    /// The GPU in the session with the driver.
    pub gpu: Gpu<'a>,
    pub log: &'a JobLog,
    lock: GpuLock,
}

impl<'a> LockedGpu<'a> {
    /// With a lock that was taken already.
    pub fn new(
        lock: GpuLock,
        node: &'a Node,
        store: &'a LeaseStore,
        gpu: Gpu<'a>,
        log: &'a JobLog,
    ) -> LockedGpu<'a> {
        LockedGpu {
            node,
            store,
            gpu,
            log,
            lock,
        }
    }

    pub fn lock(&self) -> &GpuLock {
        &self.lock
    }

    /// The leases on the GPU, by job id and number. Errors: a lease of the node cannot be read.
    pub fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.lock.step();
        self.store.of_gpu(&self.gpu.uuid)
    }

    /// The use of a lease's instance; None if the instance does not exist any more. While NVML is not started here, the
    /// daemon's session is asked first. Errors: NVML does not answer.
    pub fn instance_use(&self, mig: &MigSlice) -> Result<Option<InstanceUse>, NvmlError> {
        if !self.gpu.is_started()
            && let Some(answer) = shared_session::instance_use(&self.node.run, &self.gpu, mig)
        {
            self.lock.step();
            return Ok(answer);
        }
        instance_use::of(&self.gpu, mig)
    }

    /// Whether a GPU instance has this id, by the driver's files; by NVML if they do not tell.
    /// Errors: NVML does not answer.
    pub fn stands(&self, gi_id: u32) -> Result<bool, NvmlError> {
        match self.node.caps().gpu_instances(self.gpu.minor) {
            Some(standing) => Ok(standing.contains(&gi_id)),
            None => Ok(self.gpu.standing(gi_id)?.is_some()),
        }
    }

    /// The jobs whose epilogs wait for the GPU. Empty if that cannot be read; their leases are then repaired like
    /// others.
    pub fn epilogs(&self) -> BTreeSet<JobId> {
        let locks = self.node.locks().ok();
        let epilogs = locks.and_then(|locks| locks.epilogs(self.gpu.index).ok());
        epilogs.unwrap_or_default()
    }

    /// Writes a lease as a whole file. Errors: a file cannot be written.
    pub fn write(&self, lease: &Lease) -> Result<(), StoreError> {
        self.lock.step();
        self.store.write(&self.lock, lease)
    }

    /// Removes a lease; returns whether it existed. Errors: a file cannot be removed.
    pub fn remove(&self, lease: &Lease) -> Result<bool, StoreError> {
        self.lock.step();
        self.store.remove(&self.lock, lease)
    }
}
