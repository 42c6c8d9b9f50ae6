//! `gpufrac node-setup`, before slurmd at boot: the run folders, the placeholder nodes that Slurm
//! takes for GPUs, MIG mode, the record of what is there. Safe to run again at any time: jobs
//! that run keep their slices.

pub mod check;

use std::path::{Path, PathBuf};

use gpufrac_core::config::{Device, Tenancy, TimesliceLength};
use gpufrac_core::finding::Finding;
use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::layout::{LayoutKind, Side};
use gpufrac_core::lease::LeaseError;
use gpufrac_core::mechanism::Mechanism;

use crate::gpu::capability_files::{Caps, CapsError};
use crate::gpu::compute_mode;
use crate::gpu::locked::LockedGpu;
use crate::gpu::nvidia_smi::run_nvidia_smi;
use crate::mps::daemon::{ControlDaemon, Limits, Start};
use crate::node::Node;
use crate::slice::reconcile;
use crate::state::leases::StoreError;
use crate::state::locks::LockError;
use crate::state::record::{NodeRecord, RecordError, RecordedGpu, boot_id, ranges};
use gpufrac_host::files::{DeviceNumber, FileError, Made, RootDir};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{Gpu, MigMode, NvmlError};

/// Major of the placeholder nodes: 60 to 63 are for local use (Linux's devices.txt), and no driver
/// answers there, so a placeholder can be seen and permitted, not used.
pub const PLACEHOLDER_MAJOR: u32 = 60;

/// Why a node could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file or folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A lease cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A lease cannot be changed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// NVML failed.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The driver's files cannot be used.
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// A GPU cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A pool names a GPU that the node does not have.
    #[error("pool `{pool}` names GPU {gpu_index}, but this node has {count} GPUs")]
    NoGpu {
        /// The pool.
        pool: String,
        /// NVML's index.
        gpu_index: u32,
        /// How many there are.
        count: usize,
    },
}

/// What was done, and what is left for an admin.
#[derive(Debug, Default)]
pub struct Report {
    /// What was done or found, one line each.
    pub done: Vec<String>,
    /// What keeps the node from carving.
    pub problems: Vec<Finding>,
    /// What could be better.
    pub hints: Vec<String>,
}

/// Sets up a node. The report may name problems: then slurmd should not start here.
pub fn setup(node: &Node) -> Result<Report, SetupError> {
    let mut report = Report::default();
    if !node.has_pools() {
        report
            .done
            .push(format!("no pool has GPUs on node {}", node.name));
        return Ok(report);
    }
    let run = folders(node, &mut report)?;
    forget_last_boot(node, &mut report)?;
    let session = node.nvml()?;
    let mut gpus = session.gpus()?;
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    for device in &devices {
        if device.gpu_index >= count {
            return Err(SetupError::NoGpu {
                pool: device.pool.name.clone(),
                gpu_index: device.gpu_index,
                count: gpus.len(),
            });
        }
    }
    for gpu in &mut gpus {
        if let Some(device) = devices.iter().find(|device| device.gpu_index == gpu.index) {
            prepare(node, gpu, device, &mut report)?;
        }
    }
    let record = record(node, &gpus, &devices)?;
    // The record before the repair: that may take long, and prolog needs only the record.
    record.write(&run)?;
    report.done.push(format!(
        "recorded {} GPUs in `{}`",
        record.gpus.len(),
        run.path().join(crate::state::record::FILE).display()
    ));
    placeholders(node, &gpus, &devices, &mut report)?;
    repair(node, gpus, &devices)?;
    let mut pools = devices.iter().map(|device| device.pool.mechanism);
    if pools.any(Mechanism::uses_mig) && node.caps().driver_modifies_files() == Some(true) {
        report.hints.push(
            "load the driver with NVreg_ModifyDeviceFiles=0: then capability files are never world-readable, not even while a slice is made"
                .into(),
        );
    }
    Ok(report)
}

/// The folders below `<run>`; the locks are root's alone, as whoever can open a file can lock it.
fn folders(node: &Node, report: &mut Report) -> Result<RootDir, SetupError> {
    let mut folder = |path: PathBuf, mode| -> Result<RootDir, FileError> {
        let (dir, made) = RootDir::create(&path, mode)?;
        if made {
            report.done.push(format!("made `{}`", path.display()));
        }
        Ok(dir)
    };
    let run = folder(node.run.clone(), 0o755)?;
    folder(node.run.join("leases"), 0o755)?;
    folder(node.run.join("locks"), 0o700)?;
    folder(node.state.clone(), 0o755)?;
    Ok(run)
}

/// Instances do not survive a reboot; leases do only where `<run>` is on a disk.
fn forget_last_boot(node: &Node, report: &mut Report) -> Result<(), SetupError> {
    let Ok(record) = NodeRecord::read_any(&node.run) else {
        // None, or of another version: leases, if any, are judged by what stands on the GPU.
        return Ok(());
    };
    if record.boot_id == boot_id()? {
        return Ok(());
    }
    compute_mode::forget(node)?;
    let store = node.leases()?;
    for lease in store.list()? {
        let lock = node
            .locks()?
            .gpu(lease.slice.gpu_index, node.lock_patience)?;
        store.remove(&lock, &lease)?;
        report.done.push(format!(
            "dropped the lease of job {}, from before the reboot",
            lease.job_id
        ));
    }
    Ok(())
}

/// All that a GPU of a pool needs before it can be shared.
fn prepare(
    node: &Node,
    gpu: &mut Gpu<'_>,
    device: &Device<'_>,
    report: &mut Report,
) -> Result<(), SetupError> {
    let mechanism = device.pool.mechanism;
    let ready = match mechanism.uses_mig() {
        true => prepare_mig(gpu, device, report)?,
        false => {
            report.problems.extend(plain(gpu, device)?);
            true
        }
    };
    if !ready {
        return Ok(());
    }
    if mechanism.uses_mps() && device.pool.layout.kind != LayoutKind::Whole {
        prepare_mps(node, gpu, device, report)?;
    }
    if let Some(length) = device.pool.options.timeslice {
        match set_timeslice(node, gpu, length) {
            Ok(()) => report.done.push(format!("set the time slice of {gpu}")),
            Err(why) => report.problems.push(Finding::of_machine(
                format!("the time slice of {gpu} cannot be set: {why}"),
                "leave `timeslice` out of the pool, or set nvidia_smi in [paths]",
            )),
        }
    }
    if let Some(library) = &device.pool.options.library {
        report.problems.extend(unsafe_library(library));
    }
    match gpu.is_persistent() {
        Ok(false) => match gpu.make_persistent() {
            Ok(()) => report.done.push(format!("persistence mode on for {gpu}")),
            Err(error) => report.hints.push(format!(
                "start nvidia-persistenced, or slices are lost when nothing uses the GPU ({error})"
            )),
        },
        Ok(true) => {}
        Err(error) => report.hints.push(format!(
            "whether the driver stays loaded is not known: {error}"
        )),
    }
    Ok(())
}

/// What is wrong with a GPU that is shared without MIG.
pub(crate) fn plain(gpu: &Gpu<'_>, device: &Device<'_>) -> Result<Vec<Finding>, NvmlError> {
    let mut found = Vec::new();
    let pool = device.pool;
    if gpu.mig_mode()? == MigMode::On {
        found.push(Finding::of_machine(
            format!("{gpu} ({}) is in MIG mode, and pool `{}` shares it by {}", gpu.name, pool.name, pool.mechanism),
            format!("stop everything that uses it and run `nvidia-smi -i {} -mig 0`, or give the pool mechanism mig or mig+mps", gpu.index),
        ));
    }
    let (memory, expected) = (gpu.memory()?, pool.gpu_memory);
    if !memory_fits(memory, expected) {
        found.push(Finding::of_machine(
            format!(
                "{gpu} ({}) has {memory}, and pool `{}` expects {expected}",
                gpu.name, pool.name
            ),
            "set `gpu` of the pool to this model, or `memory` to what it has in MiB",
        ));
    }
    let capability = gpu.compute_capability()?;
    if pool.mechanism.uses_mps() && capability < VOLTA {
        found.push(Finding::of_machine(
            format!("{gpu} ({}) is of a generation before Volta (compute capability {capability}), where MPS limits nothing", gpu.name),
            "share it with mechanism timeslice or hami",
        ));
    }
    Ok(found)
}

/// From here on MPS has limits of multiprocessors and memory, and 48 clients (MPS guide).
const VOLTA: u32 = 7;

/// Starts a control daemon as the pool needs it, and ends it: what it cannot do is known before a job comes.
fn prepare_mps(
    node: &Node,
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    report: &mut Report,
) -> Result<(), SetupError> {
    let options = &device.pool.options;
    let name = format!("probe{}", gpu.index);
    let probe = ControlDaemon::new(&node.mps_control, node.mps_folder(&name).as_ref(), 0);
    // Another node-setup may run, or have been killed here.
    let _lock = node.locks()?.gpu(gpu.index, node.lock_patience)?;
    let tried = probe.kill().and_then(|()| {
        probe.start(Start {
            device: &gpu.uuid,
            multi_user: options.tenancy == Tenancy::Shared,
            partitions: options.sm_chunks.is_some(),
        })?;
        probe.limit(Limits {
            thread_percentage: 50,
            memory: MemoryMib(1024),
        })
    });
    let ended = probe.end();
    if let Ok(Some(warning)) = &tried
        && !report.hints.contains(warning)
    {
        report.hints.push(warning.clone());
    }
    let Err(error) = tried.and(ended) else {
        return Ok(());
    };
    let known = |problem: &Finding| problem.what == error.to_string();
    if !report.problems.iter().any(known) {
        report.problems.push(Finding::of_machine(&error, MPS_HINT));
    }
    Ok(())
}

/// What to do when there is no control daemon to be had.
pub(crate) const MPS_HINT: &str = "install the driver's nvidia-cuda-mps-control; one server for all users needs driver 555 or later (older ones can do tenancy \"private\"), static partitions those of CUDA 13.1; its path is mps_control in [paths]";

/// NVML has no call for it; nvidia-smi(1), compute-policy.
fn set_timeslice(node: &Node, gpu: &Gpu<'_>, length: TimesliceLength) -> Result<(), String> {
    let number = length.number().to_string();
    run_nvidia_smi(
        &node.nvidia_smi,
        &[
            "compute-policy",
            "-i",
            &gpu.uuid,
            "--set-timeslice",
            &number,
        ],
    )
}

/// A library that is preloaded into every job must be one that no user can change.
pub(crate) fn unsafe_library(library: &str) -> Option<Finding> {
    let path = Path::new(library);
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let what = match RootDir::open(folder).and_then(|dir| dir.has_file(name)) {
        Ok(true) => return None,
        Ok(false) => format!("`{library}` does not exist"),
        Err(error) => error.to_string(),
    };
    Some(Finding::of_machine(
        what,
        "install HAMi-core's libvgpu.so on the node, in a folder that only root can change, and set `library` of the pool to it",
    ))
}

/// MIG mode and geometry. False if there is nothing more to do for the GPU.
fn prepare_mig(
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    report: &mut Report,
) -> Result<bool, SetupError> {
    match gpu.mig_mode()? {
        MigMode::On => {}
        MigMode::Unsupported => {
            report.problems.push(Finding::of_machine(
                format!("{gpu} ({}) has no MIG", gpu.name),
                format!(
                    "take GPU {} out of pool `{}` with its `gpus` list",
                    gpu.index, device.pool.name
                ),
            ));
            return Ok(false);
        }
        MigMode::OnAfterReset => {
            report.problems.push(reset_needed(gpu));
            return Ok(false);
        }
        MigMode::Off => {
            // Before Hopper, switching resets the GPU: that is the admin's decision.
            if !gpu.mig_switches_without_reset()? {
                report.problems.push(Finding::of_machine(
                    format!("{gpu} ({}) is not in MIG mode", gpu.name),
                    format!(
                        "stop everything that uses it, run `nvidia-smi -i {} -mig 1` and reset it with `nvidia-smi -i {} --gpu-reset`; this model keeps the mode over reboots",
                        gpu.index, gpu.index
                    ),
                ));
                return Ok(false);
            }
            match gpu.switch_mig_on() {
                Ok(MigMode::On) => report.done.push(format!("switched MIG on for {gpu}")),
                Ok(_) => {
                    report.problems.push(reset_needed(gpu));
                    return Ok(false);
                }
                Err(error) => {
                    report.problems.push(Finding::of_machine(
                        format!("MIG cannot be switched on: {error}"),
                        "stop everything that uses the GPU (DCGM, nvidia-persistenced, display) and run this again",
                    ));
                    return Ok(false);
                }
            }
        }
    }
    let differences = device.pool.geometry.differences(&gpu.geometry()?);
    if !differences.is_empty() {
        report.problems.push(Finding::of_machine(
            format!(
                "{gpu} ({}) is not what pool `{}` says: {}",
                gpu.name,
                device.pool.name,
                differences.join("; ")
            ),
            "set `gpu` of the pool to this model, or describe it in a [geometry.NAME] table",
        ));
    }
    Ok(true)
}

fn reset_needed(gpu: &Gpu<'_>) -> Finding {
    Finding::of_machine(
        format!("{gpu} ({}) will be in MIG mode after a reset", gpu.name),
        format!(
            "stop everything that uses it and run `nvidia-smi -i {} --gpu-reset`, or reboot",
            gpu.index
        ),
    )
}

fn record(node: &Node, gpus: &[Gpu<'_>], devices: &[Device<'_>]) -> Result<NodeRecord, SetupError> {
    let caps: Caps = node.caps();
    // Where no pool needs MIG the driver need not know of it.
    let uses_mig = devices
        .iter()
        .any(|device| device.pool.mechanism.uses_mig());
    let or_none = |error: CapsError| {
        if uses_mig {
            Err(error)
        } else {
            Ok(Default::default())
        }
    };
    let (general, of_gpus) = caps.minors().or_else(or_none)?;
    let caps_major = caps.major("nvidia-caps").or_else(|error| match uses_mig {
        true => Err(error),
        false => Ok(0),
    })?;
    let mut recorded = Vec::new();
    for gpu in gpus {
        let number = caps.gpu_device(gpu.minor)?;
        let minors = of_gpus
            .iter()
            .filter(|cap| cap.gpu_minor == gpu.minor)
            .map(|cap| cap.minor)
            .collect();
        recorded.push(RecordedGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            major: number.major,
            pool: devices
                .iter()
                .find(|device| device.gpu_index == gpu.index)
                .map(|device| device.pool.name.clone()),
            caps: ranges(minors),
        });
    }
    Ok(NodeRecord::new(&node.name, recorded, caps_major, general)?)
}

/// The device number of a placeholder. A GPU that is shared without MIG has its own: then Slurm fences
/// the GPU itself, whatever the version of its control groups.
pub(crate) fn placeholder(
    node: &Node,
    gpus: &[Gpu<'_>],
    device: &Device<'_>,
) -> Result<DeviceNumber, CapsError> {
    let gpu = gpus.iter().find(|gpu| gpu.index == device.gpu_index);
    match gpu.filter(|_| !device.pool.mechanism.uses_mig()) {
        Some(gpu) => node.caps().gpu_device(gpu.minor),
        None => Ok(DeviceNumber {
            major: PLACEHOLDER_MAJOR,
            minor: device.index,
        }),
    }
}

fn placeholders(
    node: &Node,
    gpus: &[Gpu<'_>],
    devices: &[Device<'_>],
    report: &mut Report,
) -> Result<(), SetupError> {
    let (dir, made) = RootDir::create(&node.devices, 0o755)?;
    if made {
        report
            .done
            .push(format!("made `{}`", node.devices.display()));
    }
    for device in devices {
        let number = placeholder(node, gpus, device)?;
        let name = device.file_name();
        // Which job may open it is for its control group to say. A GPU's own number is for no one: jobs
        // have the driver's file, whose mode is the site's.
        let mode = match number.major {
            PLACEHOLDER_MAJOR => 0o666,
            _ => 0o600,
        };
        if dir.ensure_device(&name, number, 0, mode)? != Made::Kept {
            let path = dir.path().join(&name);
            let (path, gpu) = (path.display(), device.gpu_index);
            report.done.push(match device.side {
                Side::Whole => format!("made `{path}` for GPU {gpu}"),
                side => format!("made `{path}` for {side} of GPU {gpu}"),
            });
        }
    }
    // Those of an earlier configuration: a gres.conf that still names them should fail, not
    // count devices that do not exist.
    for name in dir.names()? {
        let known = devices.iter().any(|device| device.file_name() == name);
        let was = Device::is_file_name(&name) && matches!(dir.device(&name), Ok(Some(_)));
        if !known && was {
            dir.remove(&name)?;
            report.done.push(format!(
                "removed `{}`, which no pool has any more",
                dir.path().join(&name).display()
            ));
        }
    }
    Ok(())
}

/// What runs that died left behind.
fn repair(node: &Node, gpus: Vec<Gpu<'_>>, devices: &[Device<'_>]) -> Result<(), SetupError> {
    let (store, locks) = (node.leases()?, node.locks()?);
    let log = JobLog::setup();
    for gpu in gpus {
        if devices.iter().any(|device| device.gpu_index == gpu.index) {
            let lock = locks.gpu(gpu.index, node.lock_patience)?;
            let mut locked = LockedGpu::new(lock, node, &store, gpu, &log);
            reconcile::repair(&mut locked, None)?;
        }
    }
    Ok(())
}

/// Whether a GPU has the memory that its pool says, give or take what drivers and ECC change.
pub fn memory_fits(found: MemoryMib, expected: MemoryMib) -> bool {
    found.0.abs_diff(expected.0) * 10 <= expected.0
}
