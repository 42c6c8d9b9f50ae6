//! The slices of a node: which there are, and how those that other runs left are ended.

use std::time::Duration;

use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::locked::LockedGpu;
use gpufrac_node::gpu::strangers;
use gpufrac_node::node::Node;
use gpufrac_node::slice::teardown::{self, TeardownError};
use gpufrac_node::slice::{keep, reconcile};
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
    /// The GPU of a lease is not to be found.
    #[error(transparent)]
    Gpu(#[from] TeardownError),
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

    /// Destroys those instances of `leases` that were kept for long enough.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn end_kept(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError>;

    /// Ends an active lease, if it is still there. Says whether it was.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError>;

    /// GPU instances on the GPUs of pools that no lease names: an admin's own, or the remains of a
    /// lease that was removed by hand. They are shown and stay. None while another program works on one of the GPUs.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, SliceError>;

    /// Users' processes on slices and on GPUs of pools whose jobs have no lease there.
    ///
    /// # Errors
    /// The driver or a file refuses.
    fn strangers(&self, node: &Node) -> Result<Vec<String>, SliceError>;
}

/// The slices that stand on the node's GPUs.
pub struct NodeSlices;

/// Works on each GPU of these leases on which no other program works.
fn on_gpus<'a>(
    node: &Node,
    leases: impl Iterator<Item = &'a Lease>,
    log: &JobLog,
    work: impl Fn(&mut LockedGpu<'_>) -> Result<(), StoreError>,
) -> Result<(), SliceError> {
    let mut of_gpus: Vec<&Lease> = leases.collect();
    of_gpus.sort_unstable_by_key(|lease| &lease.slice.gpu_uuid);
    of_gpus.dedup_by_key(|lease| &lease.slice.gpu_uuid);
    for lease in of_gpus {
        let locks = node.locks()?;
        // The driver takes its time to start: no job waits for that.
        let session = node.nvml()?;
        let lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => continue,
            other => other?,
        };
        let store = node.leases()?;
        match teardown::gpu_of(&session, lease) {
            Ok(gpu) => work(&mut LockedGpu::new(lock, node, &store, gpu, log))?,
            // The other GPUs can be repaired all the same.
            Err(error) => log.warning(format!(
                "the lease of job {}, left {}, cannot be ended yet: {error}",
                lease.job_id, lease.state
            )),
        }
    }
    Ok(())
}

impl Slices for NodeSlices {
    fn list(&self, node: &Node) -> Result<Vec<Lease>, SliceError> {
        Ok(node.leases()?.list()?)
    }

    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError> {
        let unfinished = leases
            .iter()
            .filter(|lease| matches!(lease.state, LeaseState::Carving | LeaseState::Releasing));
        on_gpus(node, unfinished, log, |locked| {
            reconcile::repair(locked, None).map(|_| ())
        })
    }

    fn end_kept(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError> {
        let kept = leases
            .iter()
            .filter(|lease| lease.state == LeaseState::Kept);
        on_gpus(
            node,
            kept.filter(|lease| keep::is_due(node, lease)),
            log,
            keep::end_due,
        )
    }

    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError> {
        let locks = node.locks()?;
        let session = node.nvml()?;
        let lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => return Ok(true),
            other => other?,
        };
        let store = node.leases()?;
        // The answer was about this run alone.
        let now = store.again(lease)?;
        let Some(mut same) = now.filter(|now| Key::of(now) == Key::of(lease)) else {
            return Ok(false);
        };
        let gpu = teardown::gpu_of(&session, &same)?;
        let mut locked = LockedGpu::new(lock, node, &store, gpu, log);
        reconcile::end_finished(&mut locked, &mut same);
        Ok(true)
    }

    fn unleased(&self, node: &Node) -> Result<Option<Vec<String>>, SliceError> {
        let session = node.nvml()?;
        let count = session.gpu_count()?;
        let mut found = Vec::new();
        let mut seen = Vec::new();
        for device in node.config.devices_of_node(&node.name, count) {
            let index = device.gpu_index;
            if !device.pool.mechanism.uses_mig() || index.0 >= count || seen.contains(&index) {
                continue;
            }
            seen.push(index);
            let gpu = session.gpu(index)?;
            if gpu.mig_mode()? != MigMode::On {
                continue;
            }
            let locks = node.locks()?;
            // While a program carves, instances without a lease exist.
            let _lock = match locks.gpu(index, LONGEST_LOCK_WAIT) {
                Err(LockError::Timeout { .. }) => return Ok(None),
                other => other?,
            };
            let standing = gpu.instances(&device.pool.geometry)?;
            let store = node.leases()?;
            let leases = store.of_gpu(&gpu.uuid)?;
            for instance in standing {
                let named = |lease: &Lease| {
                    let mig = lease.slice.mig();
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

    fn strangers(&self, node: &Node) -> Result<Vec<String>, SliceError> {
        let session = node.nvml()?;
        let count = session.gpu_count()?;
        let devices = node.config.devices_of_node(&node.name, count);
        let mut gpus: Vec<GpuIndex> = devices.iter().map(|device| device.gpu_index).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let mut found = Vec::new();
        for index in gpus.into_iter().filter(|index| index.0 < count) {
            let gpu = session.gpu(index)?;
            let processes = gpu.processes()?;
            if processes.is_empty() {
                continue;
            }
            // After the processes: a lease is there before the first process of its job.
            let leases = node.leases()?.of_gpu(&gpu.uuid)?;
            for process in processes {
                let at = strangers::leases_at(&leases, process.gi_id);
                // An instance that no lease names is another's, with all that runs on it.
                let is_others = process.gi_id.is_some() && at.is_empty();
                if !is_others && strangers::is_stranger(process.pid, &at) {
                    found.push(format!("process {} on {gpu}", process.pid));
                }
            }
        }
        Ok(found)
    }
}
