//! A GPU whose lock is held.

use std::collections::BTreeSet;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use gpufrac_host::log::JobLog;
use gpufrac_nvml::Gpu;

use crate::node::Node;
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::locks::GpuLock;

/// A GPU on which no other program carves or releases until this is dropped: what changes its leases, its compute mode,
/// its capability files, its daemons and its instances takes one of these. Each look at its leases, and each change of one,
/// tells those in line that the work goes on.
pub struct LockedGpu<'a> {
    /// The node.
    pub node: &'a Node,
    /// Its leases.
    pub store: &'a LeaseStore,
    /// The GPU, as the session with the driver knows it.
    pub gpu: Gpu<'a>,
    /// What an admin reads.
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

    /// Its lock.
    pub fn lock(&self) -> &GpuLock {
        &self.lock
    }

    /// The leases on it, by job id and number.
    ///
    /// # Errors
    /// A lease of the node cannot be read.
    pub fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.lock.step();
        self.store.of_gpu(&self.gpu.uuid)
    }

    /// The jobs whose epilogs wait for it. None where that cannot be read: then their leases are repaired as others are.
    pub fn epilogs(&self) -> BTreeSet<JobId> {
        let locks = self.node.locks().ok();
        let epilogs = locks.and_then(|locks| locks.epilogs(self.gpu.index).ok());
        epilogs.unwrap_or_default()
    }

    /// Writes a lease whole.
    ///
    /// # Errors
    /// A file refuses.
    pub fn write(&self, lease: &Lease) -> Result<(), StoreError> {
        self.lock.step();
        self.store.write(&self.lock, lease)
    }

    /// Drops a lease; says whether it was there.
    ///
    /// # Errors
    /// A file refuses.
    pub fn remove(&self, lease: &Lease) -> Result<bool, StoreError> {
        self.lock.step();
        self.store.remove(&self.lock, lease)
    }
}
