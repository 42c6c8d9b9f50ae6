//! The slices of a node: which there are, and how those that other runs left are ended.

use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::log::JobLog;
use gpufrac_node::node::Node;
use gpufrac_node::slice::reconcile;
use gpufrac_node::state::locks::LockError;
use gpufrac_nvml::MigMode;

use crate::key::Key;

/// A prolog or epilog that holds the lock is at work there: the next round will do.
const LONGEST_LOCK_WAIT: Duration = Duration::ZERO;

/// The slices of a node, and how those that were left are ended.
pub trait Slices {
    /// All leases.
    ///
    /// # Errors
    /// One of them cannot be read.
    fn list(&self, node: &Node) -> Result<Vec<Lease>, String>;

    /// Ends what runs that died left on the GPUs of `leases` in `carving` or `releasing`.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), String>;

    /// Ends an active lease, if it is still there. Says whether it was.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, String>;

    /// GPU instances on the GPUs of pools that no lease names: an admin's own, or what is left of a
    /// lease that was removed by hand. They are shown and stay. None while somebody works on one of the GPUs.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, String>;
}

/// The slices that stand on the node's GPUs.
pub struct NodeSlices;

impl Slices for NodeSlices {
    fn list(&self, node: &Node) -> Result<Vec<Lease>, String> {
        let store = node.leases().map_err(|error| error.to_string())?;
        store.list().map_err(|error| error.to_string())
    }

    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), String> {
        let unfinished = leases
            .iter()
            .filter(|lease| lease.state != LeaseState::Active);
        let mut gpus: Vec<(&str, u32)> = unfinished
            .map(|lease| (lease.slice.gpu_uuid.as_str(), lease.slice.gpu_index))
            .collect();
        gpus.sort_unstable();
        gpus.dedup();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        for (uuid, index) in gpus {
            let locks = node.locks().map_err(|e| text(&e))?;
            let _lock = match locks.gpu(index, LONGEST_LOCK_WAIT) {
                Err(LockError::Timeout { .. }) => continue,
                other => other.map_err(|e| text(&e))?,
            };
            let session = node.nvml().map_err(|e| text(&e))?;
            let store = node.leases().map_err(|e| text(&e))?;
            reconcile::repair(node, &store, &session, uuid, None, log).map_err(|e| text(&e))?;
        }
        Ok(())
    }

    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let locks = node.locks().map_err(|e| text(&e))?;
        let _lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => return Ok(true),
            other => other.map_err(|e| text(&e))?,
        };
        let store = node.leases().map_err(|e| text(&e))?;
        // The answer was about this run alone.
        let now = store.again(lease).map_err(|e| text(&e))?;
        let Some(mut same) = now.filter(|now| Key::of(now) == Key::of(lease)) else {
            return Ok(false);
        };
        let session = node.nvml().map_err(|e| text(&e))?;
        reconcile::end_finished(node, &store, &session, &mut same, log);
        Ok(true)
    }

    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let session = node.nvml().map_err(|e| text(&e))?;
        let count = session.gpu_count().map_err(|e| text(&e))?;
        let mut found = Vec::new();
        let mut seen = Vec::new();
        for device in node.config.devices_of_node(&node.name, count) {
            let index = device.gpu_index;
            if !device.pool.mechanism.uses_mig() || index >= count || seen.contains(&index) {
                continue;
            }
            seen.push(index);
            let gpu = session.gpu(index).map_err(|e| text(&e))?;
            if gpu.mig_mode().map_err(|e| text(&e))? != MigMode::On {
                continue;
            }
            let locks = node.locks().map_err(|e| text(&e))?;
            // While somebody carves, instances stand that no lease names yet.
            let _lock = match locks.gpu(index, LONGEST_LOCK_WAIT) {
                Err(LockError::Timeout { .. }) => return Ok(None),
                other => other.map_err(|e| text(&e))?,
            };
            let standing = gpu.instances(&device.pool.geometry).map_err(|e| text(&e))?;
            let store = node.leases().map_err(|e| text(&e))?;
            let leases = store.of_gpu(&gpu.uuid).map_err(|e| text(&e))?;
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
