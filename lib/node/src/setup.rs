//! `gpufrac node-setup`, before slurmd at boot: the run folders, the placeholder nodes that Slurm takes for GPUs, MIG
//! mode, the record of the GPUs. It is safe to run again at any time: running jobs keep their slices.

pub mod check;
mod inspect;
pub mod unit;

use std::path::PathBuf;

use gpufrac_core::config::{Device, Tenancy, TimesliceLength};
use gpufrac_core::finding::Finding;
use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::ids::{GpuIndex, UserId};
use gpufrac_core::layout::{LayoutKind, Side};
use gpufrac_core::lease::LeaseError;

use crate::cdi;
use crate::fault::Caused;
use crate::gpu::capability_files::{CapMinor, Caps, CapsError};
use crate::gpu::compute_mode;
use crate::gpu::locked::LockedGpu;
use crate::gpu::mig_mode::SwitchError;
use crate::gpu::nvidia_smi::{SmiError, run_nvidia_smi};
use crate::mps::daemon::{ControlDaemon, Limits, Start};
use crate::node::Node;
use crate::slice::unleased::{self, CleanError};
use crate::slice::{self, keep, reconcile};
use crate::state::leases::StoreError;
use crate::state::locks::{self, LockError};
use crate::state::record::{
    GpuFacts, NodeRecord, RecordError, RecordedGpu, boot_id, further, ranges,
};
use crate::state::without;
use crate::state::{pools, private, put_back, stuck};
use gpufrac_host::files::{FileError, Made, RootDir};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::{Gpu, MigMode, NvmlError, Session};
use inspect::{Difference, Machine};

/// The reasons why a node could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error(transparent)]
    Caps(#[from] CapsError),
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The GPU's index is higher than the number of GPUs that the driver shows.
    /// Cure: Correct `gpus`, or look for a broken GPU in `nvidia-smi -L`.
    #[error("pool `{pool}` names GPU {gpu_index}, but this node has {count} GPUs")]
    NoGpu {
        pool: String,
        gpu_index: GpuIndex,
        count: usize,
    },
}

/// The result of node-setup.
#[derive(Debug, Default)]
pub struct Report {
    /// Actions and facts, one line each.
    pub done: Vec<String>,
    /// Problems that keep the node from making slices.
    pub problems: Vec<Finding>,
    /// Possible improvements.
    pub hints: Vec<String>,
}

/// Sets up a node. If the report has problems, slurmd should not start here.
pub fn setup(node: &Node) -> Result<Report, SetupError> {
    let mut report = Report::default();
    if !node.has_pools() {
        pools::forget(&node.nodes, &node.name)?;
        report
            .done
            .push(format!("no pool has GPUs on node {}", node.name));
        report.hints.push(
            "where Slurm has another name for this host (NodeHostname= in slurm.conf), write it as Environment=SLURMD_NODENAME=NAME in the unit"
                .into(),
        );
        return Ok(report);
    }
    pools::remember(&node.nodes, &node.name)?;
    let run = folders(node, &mut report)?;
    forget_last_boot(node, &mut report)?;
    let session = node.nvml()?;
    let mut machine = Machine::of(node, &session)?;
    let mut devices = machine.devices.iter();
    if let Some(device) = devices.find(|device| machine.gpu(device).is_none()) {
        return Err(SetupError::NoGpu {
            pool: device.pool.name.clone(),
            gpu_index: device.gpu_index,
            count: machine.count(),
        });
    }
    report.problems = inspect::lost(&machine);
    if !report.problems.is_empty() {
        // Files that all nodes of the machine share stay as they are.
        return Ok(report);
    }
    let known: Vec<Option<Geometry>> = machine
        .gpus
        .iter()
        .map(|gpu| machine.known_geometry(gpu).cloned())
        .collect();
    let devices = &machine.devices;
    for (gpu, known) in machine.gpus.iter_mut().zip(&known) {
        if let Some(device) = devices.iter().find(|device| device.gpu_index == gpu.index) {
            prepare(node, gpu, device, known.as_ref(), &mut report)?;
        }
    }
    for (index, error) in &machine.broken {
        // A GPU outside of the pools is broken. Cure: Follow the text; the other GPUs work.
        report.hints.push(format!(
            "GPU {index}, which no pool has, does not answer: {error}; the kernel's log may say more (Xid)"
        ));
    }
    let record = record(&machine, &session)?;
    // The record comes before the repair, which may take long; prolog needs only the record.
    record.write(&run)?;
    report.done.push(format!(
        "recorded {} GPUs in `{}`",
        record.gpus.len(),
        run.path().join(crate::state::record::FILE).display()
    ));
    placeholders(&machine, &mut report)?;
    if machine.uses_mig() && node.caps().driver_modifies_files() == Some(true) {
        report.hints.push(
            "load the driver with NVreg_ModifyDeviceFiles=0: then capability files are never world-readable, not even while a slice is made"
                .into(),
        );
    }
    report.hints.extend(unleased(node, &session)?);
    match repair(machine) {
        // Instances without a lease are not known, so nothing is repaired.
        Err(SetupError::Store(error)) if error.path().is_some() => {
            report
                .problems
                .push(Finding::of_machine(&error, error.fix()));
        }
        other => other?,
    }
    if let Err(error) = cdi::remove_stale(node) {
        report
            .problems
            .push(Finding::of_machine(&error, error.fix()));
    }
    Ok(report)
}

/// The cause of instances without a lease that are there after each boot: the open kernel module 595.45 can make
/// instances from its registry (kernel_mig_manager.c, boot configuration).
const AT_BOOT: &str = "if such instances are there after each boot, a boot configuration of the driver or nvidia-mig-manager makes them: switch that off";

/// Instances without a lease, which an admin may destroy.
fn unleased(node: &Node, session: &Session) -> Result<Vec<String>, SetupError> {
    match unleased::of_node(node, session) {
        Ok(found) => {
            let at_boot = (!found.is_empty()).then(|| AT_BOOT.to_owned());
            let each = found.iter().map(|it| format!("{it}: {}", unleased::FIX));
            Ok(each.chain(at_boot).collect())
        }
        Err(CleanError::Nvml(error)) => Err(error.into()),
        // `repair` reports leases that cannot be read.
        Err(_) => Ok(Vec::new()),
    }
}

/// Creates the folders in `<run>`. The locks are only for root, because a process that can open a file can lock it.
fn folders(node: &Node, report: &mut Report) -> Result<RootDir, SetupError> {
    let mut folder = |path: PathBuf, mode| -> Result<RootDir, FileError> {
        let (dir, made) = RootDir::create(&path, mode)?;
        if made {
            report.done.push(format!("made `{}`", path.display()));
        }
        Ok(dir)
    };
    let run = folder(node.run.clone(), 0o755)?;
    // Closed until Slurm's PrivateData is known.
    folder(node.run.join("leases"), private::CLOSED)?;
    folder(node.run.join("locks"), locks::FOLDER_MODE)?;
    folder(node.state.clone(), 0o755)?;
    Ok(run)
}

/// Instances do not survive a reboot; leases survive only if `<run>` is on a disk.
fn forget_last_boot(node: &Node, report: &mut Report) -> Result<(), SetupError> {
    let Ok(record) = NodeRecord::read_any(&node.run) else {
        // There is no record, or one of another version: leases are compared with the instances on the GPU.
        return Ok(());
    };
    if record.boot_id == boot_id()? {
        return Ok(());
    }
    compute_mode::forget(node)?;
    without::forget_all(&node.run)?;
    stuck::forget_all(node)?;
    put_back::forget_unfinished(node)?;
    let store = node.leases()?;
    let (leases, damaged) = store.readable()?;
    for error in damaged {
        let Some(path) = error.path() else {
            return Err(error.into());
        };
        let name = path.file_name().and_then(|name| name.to_str());
        if store.drop_unreadable(name.unwrap_or_default())?.is_some() {
            report
                .done
                .push(format!("dropped a lease from before the reboot: {error}"));
        }
    }
    for lease in leases {
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

/// Prepares a GPU of a pool for sharing.
fn prepare(
    node: &Node,
    gpu: &mut Gpu<'_>,
    device: &Device<'_>,
    known: Option<&Geometry>,
    report: &mut Report,
) -> Result<(), SetupError> {
    let mechanism = device.pool.mechanism;
    let mut differences = inspect::differences(gpu, device, known)?;
    if let [Difference::MigMode(_)] = differences[..] {
        if let Err(why) = switch_mig_on(node, gpu)? {
            report.problems.push(stays_off(gpu, device, &why));
            // Without persistence mode, a later switch of MIG mode would not last.
            persist(gpu, report);
            return Ok(());
        }
        report.done.push(format!("switched MIG on for {gpu}"));
        // NVML reports the profiles of a model in MIG mode only.
        differences = inspect::differences(gpu, device, known)?;
    }
    let stays = differences.into_iter().map(|difference| match difference {
        Difference::MigMode(_) => reset_needed(gpu),
        Difference::Model(differences) => Finding::of_machine(
            format!(
                "{gpu} ({}) does not match pool `{}`: {}",
                gpu.name(),
                device.pool.name,
                differences.join("; ")
            ),
            inspect::MODEL_FIX,
        ),
        Difference::Unfit(finding) => finding,
    });
    report.problems.extend(stays);
    if mechanism.uses_mps() && device.pool.layout.kind != LayoutKind::Whole {
        prepare_mps(node, gpu, device, report)?;
    }
    if let Some(length) = device.pool.options.timeslice {
        // nvidia-smi is missing, or the driver refused. Cure: Remove `timeslice` from the pool, or set `nvidia_smi` in
        // `[paths]`.
        match set_timeslice(node, gpu, length) {
            Ok(()) => report.done.push(format!("set the time slice of {gpu}")),
            Err(why) => report.problems.push(Finding::of_machine(
                format!("the time slice of {gpu} cannot be set: {why}"),
                "leave `timeslice` out of the pool, or set nvidia_smi in [paths]",
            )),
        }
    }
    report.problems.extend(inspect::library(device));
    persist(gpu, report);
    Ok(())
}

/// Keeps the driver loaded without users.
fn persist(gpu: &mut Gpu<'_>, report: &mut Report) {
    match gpu.is_persistent() {
        Ok(false) => match gpu.make_persistent() {
            Ok(()) => report.done.push(format!("persistence mode on for {gpu}")),
            Err(error) => report.hints.push(format!(
                "start nvidia-persistenced, or an older driver loses slices when nothing uses the GPU ({error})"
            )),
        },
        Ok(true) => {}
        Err(error) => report.hints.push(format!(
            "whether the driver stays loaded is not known: {error}"
        )),
    }
}

/// Starts a control daemon with the pool's options, and ends it, so that missing functions are known before a job
/// starts.
fn prepare_mps(
    node: &Node,
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    report: &mut Report,
) -> Result<(), SetupError> {
    let options = &device.pool.options;
    let name = format!("probe{}", gpu.index);
    let probe = ControlDaemon::new(
        &node.mps_control,
        node.mps_folder(&name).as_ref(),
        UserId::ROOT,
        &node.silences,
    );
    // Another node-setup may be running, or may have been killed at this point.
    let _lock = node.locks()?.gpu(gpu.index, node.lock_patience)?;
    let tried = probe.kill().and_then(|_| {
        probe.start(Start {
            device: &gpu.uuid,
            multi_user: options.tenancy == Tenancy::Shared,
            partitions: options.sm_chunks.is_some(),
            group: None,
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
        report
            .problems
            .push(Finding::of_machine(&error, inspect::MPS_FIX));
    }
    Ok(())
}

/// NVML has no call for it; nvidia-smi(1), compute-policy.
fn set_timeslice(node: &Node, gpu: &Gpu<'_>, length: TimesliceLength) -> Result<(), SmiError> {
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

/// Switches MIG on where that needs no reset and nobody has the GPU.
fn switch_mig_on(node: &Node, gpu: &Gpu<'_>) -> Result<Result<bool, SwitchError>, SetupError> {
    let (store, log) = (node.leases()?, JobLog::setup());
    let lock = node.locks()?.gpu(gpu.index, node.lock_patience)?;
    let mut locked = LockedGpu::new(lock, node, &store, gpu.again()?, &log);
    Ok(slice::mig_mode::switch_on(&mut locked))
}

/// The cure for an admin where MIG stays off.
fn stays_off(gpu: &Gpu<'_>, device: &Device<'_>, why: &SwitchError) -> Finding {
    let index = gpu.index;
    let fix = match why {
        SwitchError::NoMig { .. } => format!(
            "take GPU {index} out of pool `{}` with its `gpus` list",
            device.pool.name
        ),
        SwitchError::NeedsReset {
            mode: MigMode::OnAfterReset,
            ..
        } => return reset_needed(gpu),
        SwitchError::NeedsReset { .. } => format!(
            "stop everything that uses it, run `nvidia-smi -i {index} -mig 1` and reset it with `nvidia-smi -i {index} --gpu-reset`; this model keeps the mode over reboots"
        ),
        SwitchError::Leased { .. } => "the next job on this GPU switches MIG on once that one has ended".to_owned(),
        SwitchError::InUse { .. } => "end that (DCGM, nvidia-persistenced, a display); the next job on this GPU switches MIG on then, and so does `gpufrac node-setup`".to_owned(),
        SwitchError::Nvml(_) => "stop everything that uses the GPU (DCGM, nvidia-persistenced, display); the next job on it switches MIG on then, and so does `gpufrac node-setup`".to_owned(),
        SwitchError::Store(error) => error.fix(),
        SwitchError::Instances { .. }
        | SwitchError::Renumbered { .. }
        | SwitchError::Fabric { .. } => why.facts().cure.unwrap_or_default().to_owned(),
    };
    Finding::of_machine(why, fix)
}

fn reset_needed(gpu: &Gpu<'_>) -> Finding {
    // The driver needs a reset for the change. Cure: Stop all that uses the GPU, `nvidia-smi -i N --gpu-reset`, or
    // reboot.
    Finding::of_machine(
        format!("{gpu} ({}) will be in MIG mode after a reset", gpu.name()),
        format!(
            "stop everything that uses it and run `nvidia-smi -i {} --gpu-reset`, or reboot",
            gpu.index
        ),
    )
}

fn record(machine: &Machine<'_>, session: &Session) -> Result<NodeRecord, SetupError> {
    let node = machine.node;
    let caps: Caps = node.caps();
    // Without a pool with MIG the driver need not support it.
    let uses_mig = machine.uses_mig();
    let or_none = |error: CapsError| {
        if uses_mig { Err(error) } else { Ok(Default::default()) }
    };
    let (general, of_gpus) = caps.minors().or_else(or_none)?;
    let caps_major = caps
        .major("nvidia-caps")
        .or_else(|error| if uses_mig { Err(error) } else { Ok(0) })?;
    let imex_major = match caps.major("nvidia-caps-imex-channels") {
        // Older drivers have no channels.
        Err(CapsError::Unreadable { .. }) => 0,
        other => other?,
    };
    let mut recorded = Vec::new();
    for gpu in &machine.gpus {
        let number = caps.gpu_device(gpu.minor)?;
        let own = of_gpus.iter().filter(|cap| cap.gpu_minor == gpu.minor);
        let own: Vec<&CapMinor> = own.collect();
        recorded.push(RecordedGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            major: number.major,
            pool: machine.device(gpu).map(|device| device.pool.name.clone()),
            caps: ranges(own.iter().map(|cap| cap.minor).collect()),
            further: further(&own),
            pci: caps.pci_of(&gpu.uuid),
        });
    }
    let facts = machine.gpus.iter().map(|gpu| facts(machine, gpu));
    let mut facts = facts.collect::<Result<Vec<_>, NvmlError>>()?;
    // The record has every GPU at its place.
    for (index, _) in &machine.broken {
        recorded.insert(index.position(), RecordedGpu::broken(*index));
        facts.insert(index.position(), GpuFacts::default());
    }
    let driver = match caps.driver() {
        Some(driver) => driver,
        None => session.driver_version()?,
    };
    let name = &node.name;
    let record = NodeRecord::new(name, recorded, caps_major, general, imex_major)?;
    Ok(record.with_facts(&driver, facts))
}

/// The driver's data that a prolog need not query again. None for a GPU that does not match its pool, because it may
/// change.
fn facts(machine: &Machine<'_>, gpu: &Gpu<'_>) -> Result<GpuFacts<Geometry>, NvmlError> {
    let mut facts = GpuFacts::default();
    match machine
        .device(gpu)
        .map(|device| device.pool.mechanism.uses_mig())
    {
        Some(true) if gpu.mig_mode()? == MigMode::On => facts.geometry = Some(gpu.geometry()?),
        // A job has it without MIG, or had it last.
        Some(true) => facts.geometry = machine.known_geometry(gpu).cloned(),
        Some(false) => facts.memory = Some(gpu.memory()?),
        _ => {}
    }
    Ok(facts)
}

fn placeholders(machine: &Machine<'_>, report: &mut Report) -> Result<(), SetupError> {
    let Machine { node, devices, .. } = machine;
    let (dir, made) = RootDir::create(&node.devices, 0o755)?;
    if made {
        report
            .done
            .push(format!("made `{}`", node.devices.display()));
    }
    for device in devices {
        let number = machine.placeholder(device)?;
        let name = device.file_name();
        // The control group decides which job may open it. A node with the GPU's own number needs no access: jobs use
        // the driver's file, whose mode the site sets.
        let mode = match number.major {
            inspect::PLACEHOLDER_MAJOR => 0o666,
            _ => 0o600,
        };
        if dir.ensure_device(&name, number, UserId::ROOT, mode)? != Made::Kept {
            let path = dir.path().join(&name);
            let (path, gpu) = (path.display(), device.gpu_index);
            report.done.push(match device.side {
                Side::Whole => format!("made `{path}` for GPU {gpu}"),
                side => format!("made `{path}` for {side} of GPU {gpu}"),
            });
        }
    }
    // Placeholders of an earlier configuration are removed: a gres.conf that still names them should fail, not count
    // devices that do not exist.
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

/// Repairs the remains of killed programs.
fn repair(machine: Machine<'_>) -> Result<(), SetupError> {
    let Machine {
        node,
        gpus,
        devices,
        ..
    } = machine;
    let (store, locks) = (node.leases()?, node.locks()?);
    let log = JobLog::setup();
    let leases = store.list()?;
    for gpu in gpus {
        let is_of_pool = devices.iter().any(|device| device.gpu_index == gpu.index);
        // A lease from an earlier configuration.
        let has_lease = leases.iter().any(|lease| lease.slice.gpu_uuid == gpu.uuid);
        if is_of_pool || has_lease {
            let lock = locks.gpu(gpu.index, node.lock_patience)?;
            let mut locked = LockedGpu::new(lock, node, &store, gpu, &log);
            reconcile::repair(&mut locked, None)?;
            keep::end_due(&mut locked)?;
        }
    }
    Ok(())
}
