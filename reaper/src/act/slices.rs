//! Lists the slices of a node, and removes those that earlier jobs left.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_host::sight::{self, Sight};
use gpufrac_host::syscalls::ProcessHandle;
use gpufrac_node::gpu::locked::LockedGpu;
use gpufrac_node::gpu::strangers;
use gpufrac_node::hami::Region;
use gpufrac_node::mps::process;
use gpufrac_node::node::Node;
use gpufrac_node::slice::teardown::{self, TeardownError};
use gpufrac_node::slice::{hooks, keep, reconcile};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_node::state::outcomes::{self, Outcome};
use gpufrac_node::state::record::NodeRecord;
use gpufrac_node::state::stuck::{self, Stuck};
use gpufrac_nvml::{MigMode, NvmlError};
use nix::errno::Errno;

use crate::key::Key;
use crate::measure::observation::LONGEST_SIGHT;

/// Without waiting: if a prolog or epilog holds the lock, the next round is early enough.
const LONGEST_LOCK_WAIT: Duration = Duration::ZERO;

/// The reasons why slices could not be listed or removed.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// A lease cannot be read or written.
    #[error(transparent)]
    Lease(#[from] StoreError),
    /// The lock of a GPU cannot be requested.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder of locks cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The kernel does not let the daemon end a process.
    /// Cure: Use Linux 5.3 or later, or mount in the container what is hidden there.
    #[error("ending process {pid}, which computes without limits, failed: {error}")]
    Process { pid: u32, error: io::Error },
    /// The GPU of a lease does not exist.
    #[error(transparent)]
    Gpu(#[from] TeardownError),
    /// The words of the file may be elsewhere in this version, so none is written. The job has its share.
    /// Cure: Install a HAMi-core of a version that the message names, or a newer gpufrac.
    #[error(
        "job {job}: HAMi-core {major}.{minor} made its file, which this gpufrac does not know: its limit of compute is not lifted; install a HAMi-core of version 1.1 or 1.2, or a newer gpufrac"
    )]
    HamiVersion { job: JobId, major: u32, minor: u32 },
}

/// A GPU instance that no lease names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unleased {
    /// NVML's index of its GPU.
    pub gpu_index: GpuIndex,
    /// The name of the GPU in messages.
    gpu: String,
    /// NVML's id of the instance.
    gi_id: u32,
    pub place: Placement,
}

impl fmt::Display for Unleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unleased {
            gpu, gi_id, place, ..
        } = self;
        write!(
            f,
            "{gpu}, GPU instance {gi_id} at {}:{}",
            place.start, place.size
        )
    }
}

pub trait Slices {
    fn list(&self, node: &Node) -> Result<Vec<Lease>, SliceError>;

    /// Ends leases in `carving` or `releasing` on the GPUs of `leases` whose program died.
    fn repair(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError>;

    /// Destroys those instances of `leases` whose time of `reuse` is over.
    fn end_kept(&self, node: &Node, leases: &[Lease], log: &JobLog) -> Result<(), SliceError>;

    /// Ends an active lease if it still exists. Returns whether it did.
    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError>;

    /// Lets HAMi-core keep to a lease's limit of compute, or lifts it. Says whether there is a program that it holds
    /// for. Errors: the file of the job cannot be used.
    fn limit(&self, node: &Node, lease: &Lease, limited: bool) -> Result<bool, SliceError>;

    /// Ends a process of the lease's job that cannot see what limits it. Returns whether it still was one.
    /// Errors: the kernel does not let this program end it.
    fn end_unlimited(&self, lease: &Lease, pid: u32) -> Result<bool, SliceError>;

    /// The GPU instances on GPUs of pools that no lease names: an admin's own, or the rest of a lease that was
    /// removed by hand. They are reported and stay. None while another program works on one of the GPUs.
    fn unleased(&self, node: &Node) -> Result<Option<Vec<Unleased>>, SliceError>;

    /// The GPUs of the node by index and UUID, with those that no pool has; none if node-setup has not run.
    fn gpus(&self, node: &Node) -> Vec<(GpuIndex, String)>;

    /// For each GPU of the pools: whether it is in MIG mode, or why the driver does not say it.
    fn modes(&self, node: &Node) -> Vec<(GpuIndex, Result<bool, SliceError>)>;

    /// The places that are stuck; none where the records cannot be read, which [`crate::care`] reports.
    fn stuck(&self, node: &Node) -> Vec<Stuck>;

    /// What prologs and epilogs did since the last call. Errors: their file cannot be read.
    fn outcomes(&self, node: &Node) -> Result<Vec<Outcome>, FileError>;

    /// Users' processes on slices and GPUs of pools whose jobs have no lease there.
    fn strangers(&self, node: &Node) -> Result<Vec<String>, SliceError>;
}

/// The slices on this node's real GPUs.
pub struct NodeSlices;

/// Calls a function for each GPU of these leases that no other program has locked.
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
        // The session starts before the lock is taken, because it is slow and no job must wait for it.
        let session = node.nvml()?;
        let lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => continue,
            other => other?,
        };
        let store = node.leases()?;
        // The slice of an ended job cannot be removed yet. Cure: Follow the text; it is tried again.
        match teardown::gpu_of(node, &session, lease) {
            Ok(gpu) => work(&mut LockedGpu::new(lock, node, &store, gpu, log))?,
            // The other GPUs can still be repaired.
            Err(error) => log.warning(format!(
                "ending the lease of job {}, left {}, failed for now: {error}",
                lease.job_id, lease.state
            )),
        }
    }
    Ok(())
}

/// The GPUs that pools have, on a node with so many GPUs.
fn gpus_of_pools(node: &Node, count: u32) -> BTreeSet<GpuIndex> {
    let devices = node.config.devices_of_node(&node.name, count);
    devices.iter().map(|device| device.gpu_index).collect()
}

/// Whether a process is in the job of a lease, runs as its user, and cannot see what limits it.
fn is_unlimited(lease: &Lease, pid: u32) -> bool {
    let number = pid.cast_signed();
    let is_of_job = process::job_group(number).is_some_and(|group| lease.is_group(&group));
    let is_hidden = |path: String| {
        matches!(
            sight::of_in_time(pid, Path::new(&path), LONGEST_SIGHT),
            Sight::Hidden
        )
    };
    is_of_job
        && process::owner(number) == Some(lease.user_id)
        && lease.slice.limiter().is_some_and(is_hidden)
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
        let due: Vec<&Lease> = kept.filter(|lease| keep::is_due(node, lease)).collect();
        // Once for all of them: the round goes on behind it.
        if let Some(lease) = due.first() {
            hooks::before_destroy(node, lease, log);
        }
        on_gpus(node, due.into_iter(), log, keep::end_due)
    }

    fn end(&self, node: &Node, lease: &Lease, log: &JobLog) -> Result<bool, SliceError> {
        let locks = node.locks()?;
        let session = node.nvml()?;
        let lock = match locks.gpu(lease.slice.gpu_index, LONGEST_LOCK_WAIT) {
            Err(LockError::Timeout { .. }) => return Ok(true),
            other => other?,
        };
        let store = node.leases()?;
        // Slurm's answer was about this run of the job only.
        let now = store.again(lease)?;
        let Some(mut same) = now.filter(|now| Key::of(now) == Key::of(lease)) else {
            return Ok(false);
        };
        let gpu = teardown::gpu_of(node, &session, &same)?;
        let mut locked = LockedGpu::new(lock, node, &store, gpu, log);
        reconcile::end_finished(&mut locked, &mut same);
        Ok(true)
    }

    fn limit(&self, node: &Node, lease: &Lease, limited: bool) -> Result<bool, SliceError> {
        match node.limit_hami(lease, limited)? {
            Some(Region::Set) => Ok(true),
            // A program that loads the library begins with the limit.
            Some(Region::Absent) | None => Ok(false),
            Some(Region::Unknown { major, minor }) => Err(SliceError::HamiVersion {
                job: lease.job_id,
                major,
                minor,
            }),
        }
    }

    fn end_unlimited(&self, lease: &Lease, pid: u32) -> Result<bool, SliceError> {
        // Opened first: what is found then is true of this process, also if another one has its number later.
        match ProcessHandle::open(pid.cast_signed()) {
            Ok(process) if is_unlimited(lease, pid) => process.kill().map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(false),
            Err(error) => Err(error),
        }
        .map_err(|error| SliceError::Process { pid, error })
    }

    fn unleased(&self, node: &Node) -> Result<Option<Vec<Unleased>>, SliceError> {
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
            // The fault of a GPU that does not answer is told elsewhere.
            let Ok(gpu) = session.gpu(index) else {
                continue;
            };
            if gpu.mig_mode()? != MigMode::On {
                continue;
            }
            let locks = node.locks()?;
            // While a program makes a slice, its instance has no lease yet.
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
                    found.push(Unleased {
                        gpu_index: index,
                        gpu: gpu.to_string(),
                        gi_id: instance.gi_id,
                        place: instance.placement,
                    });
                }
            }
        }
        Ok(Some(found))
    }

    fn gpus(&self, node: &Node) -> Vec<(GpuIndex, String)> {
        // An old record is better than none.
        let record = NodeRecord::read_any(&node.run);
        let gpus = record.map_or_else(|_| Vec::new(), |record| record.gpus);
        gpus.into_iter().map(|gpu| (gpu.index, gpu.uuid)).collect()
    }

    fn modes(&self, node: &Node) -> Vec<(GpuIndex, Result<bool, SliceError>)> {
        let session = node.nvml_later();
        let count = u32::try_from(self.gpus(node).len()).unwrap_or(u32::MAX);
        let mode = |index| {
            let mode = session.gpu(index)?.mig_mode()?;
            Ok(mode == MigMode::On)
        };
        let gpus = gpus_of_pools(node, count).into_iter();
        gpus.map(|index| (index, mode(index))).collect()
    }

    fn stuck(&self, node: &Node) -> Vec<Stuck> {
        let mut places = stuck::list(node).unwrap_or_default();
        places.retain(Stuck::is_stuck);
        places
    }

    fn outcomes(&self, node: &Node) -> Result<Vec<Outcome>, FileError> {
        outcomes::take(node)
    }

    fn strangers(&self, node: &Node) -> Result<Vec<String>, SliceError> {
        let session = node.nvml()?;
        let count = session.gpu_count()?;
        let mut running = Vec::new();
        let gpus = gpus_of_pools(node, count).into_iter();
        for index in gpus.filter(|index| index.0 < count) {
            let Ok(gpu) = session.gpu(index) else {
                continue;
            };
            let processes = gpu.processes()?;
            running.push((gpu, processes));
        }
        // Leases are read after the processes, because a lease exists before the first process of its job.
        let leases = node.leases()?.list()?;
        let mut found = Vec::new();
        for (gpu, processes) in running {
            let leases = leases
                .iter()
                .filter(|lease| lease.slice.gpu_uuid == gpu.uuid);
            for process in processes {
                let at = strangers::leases_at(leases.clone(), process.gi_id);
                // An instance without a lease is an admin's, with all of its processes.
                let is_others = process.gi_id.is_some() && at.is_empty();
                if !is_others && strangers::is_stranger(process.pid, &at) {
                    found.push(format!("process {} on {gpu}", process.pid));
                }
            }
        }
        Ok(found)
    }
}
