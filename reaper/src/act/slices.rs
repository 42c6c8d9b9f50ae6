//! The slices of a node: which there are, and how those that other runs left are ended.

use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::node::Node;
use gpufrac_node::slice::reconcile;
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_nvml::{MigMode, NvmlError};

use crate::key::Key;

/// A prolog or epilog that holds the lock is at work there: the next round will do.
const LONGEST_LOCK_WAIT: Duration = Duration::ZERO;

/// Why slices could not be listed, repaired or ended.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// A lease cannot be read or written.
    #[error(transparent)]
    Lease(#[from] StoreError),
    /// The lock of a GPU cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder of locks cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] NvmlError),
}

/// The slices of a node, and how those that were left are ended.
pub trait Slices {
    /// All leases.
    ///
    /// # Errors
    /// One of them cannot be read.
    fn list(&self, node: &Node) -> Result<Vec<Lease>, SliceError>;

    /// Ends what runs that died left on the GPUs of `leases` in `carving` or `releasing`.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError>;

    /// Ends an active lease, if it is still there. Says whether it was.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError>;

    /// GPU instances on the GPUs of pools that no lease names: an admin's own, or what is left of a
    /// lease that was removed by hand. They are shown and stay. None while somebody works on one of the GPUs.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, SliceError>;
}

/// The slices that stand on the node's GPUs.
pub struct NodeSlices;

impl Slices for NodeSlices {
    fn list(&self, node: &Node) -> Result<Vec<Lease>, SliceError> {
        Ok(node.leases()?.list()?)
    }

    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError> {
        let unfinished = leases
            .iter()
            .filter(|lease| lease.state != LeaseState::Active);
        let mut gpus: Vec<(&str, u32)> = unfinished
            .map(|lease| (lease.slice.gpu_uuid.as_str(), lease.slice.gpu_index))
            .collect();
        gpus.sort_unstable();
        gpus.dedup();
        for (uuid, index) in gpus {
            let locks = node.locks()?;
            let _lock = match locks.gpu(index, LONGEST_LOCK_WAIT) {
                Err(LockError::Timeout { .. }) => continue,
                other => other?,
            };
            let session = node.nvml()?;
            let store = node.leases()?;
            reconcile::repair(node, &store, &session, uuid, None, log)?;
        }
        Ok(())
    }

    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError> {
        let locks = node.locks()?;
        let _lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => return Ok(true),
            other => other?,
        };
        let store = node.leases()?;
        // The answer was about this run alone.
        let now = store.again(lease)?;
        let Some(mut same) = now.filter(|now| Key::of(now) == Key::of(lease)) else {
            return Ok(false);
        };
        let session = node.nvml()?;
        reconcile::end_finished(node, &store, &session, &mut same, log);
        Ok(true)
    }

    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, SliceError> {
        let session = node.nvml()?;
        let count = session.gpu_count()?;
        let mut found = Vec::new();
        let mut seen = Vec::new();
        for device in node.config.devices_of_node(&node.name, count) {
            let index = device.gpu_index;
            if !device.pool.mechanism.uses_mig() || index >= count || seen.contains(&index) {
                continue;
            }
            seen.push(index);
            let gpu = session.gpu(index)?;
            if gpu.mig_mode()? != MigMode::On {
                continue;
            }
            let locks = node.locks()?;
            // While somebody carves, instances stand that no lease names yet.
            let _lock = match locks.gpu(index, LONGEST_LOCK_WAIT) {
                Err(LockError::Timeout { .. }) => return Ok(None),
                other => other?,
            };
            let standing = gpu.instances(&device.pool.geometry)?;
            let store = node.leases()?;
            let leases = store.of_gpu(&gpu.uuid)?;
            for instance in standing {
                let named = |lease: &Lease| {
                    let mig = lease.slice.mig.as_ref();
                    mig.is_some_and(|mig| mig.placement == instance.placement)
                };
                if !leases.iter().any(named) {
                    found.push(format!(
                        "{gpu}, GPU instance {} at {}:{}",
                        instance.gi_id, instance.placement.start, instance.placement.size
                    ));
                }
            }
        }
        Ok(Some(found))
    }
}
