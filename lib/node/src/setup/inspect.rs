//! Compares a machine with the needs of its pools. `gpufrac check` reports all differences; `gpufrac node-setup`
//! corrects some and reports the rest. Nothing is changed here.

use std::path::Path;

use gpufrac_core::config::Device;
use gpufrac_core::finding::Finding;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::ids::GpuIndex;

use crate::gpu::capability_files::CapsError;
use crate::node::Node;
use crate::state::record::{NodeRecord, RecordedGpu};
use gpufrac_host::files::{DeviceNumber, RootDir};
use gpufrac_nvml::{Gpu, MigMode, NvmlError, Session};

/// The major number of placeholder nodes: 60 to 63 are for local use (Linux's devices.txt), and no driver serves
/// them, so a placeholder can be seen and allowed, but not used.
pub(super) const PLACEHOLDER_MAJOR: u32 = 60;
/// From this compute capability on MPS has limits of multiprocessors and memory, and 48 clients (MPS guide).
const VOLTA: u32 = 7;

/// The cure if no control daemon can be started.
pub(super) const MPS_FIX: &str = "install the driver's nvidia-cuda-mps-control; one server for all users needs driver 555 or later (older ones can do tenancy \"private\"), static partitions those of CUDA 13.1; its path is mps_control in [paths]";
/// The cure if a GPU differs from the model of its pool.
pub(super) const MODEL_FIX: &str =
    "set `gpu` of the pool to this model, or describe it in a [geometry.NAME] table";

/// The GPUs of a machine, and the devices that the pools of its node make of them.
pub(super) struct Machine<'a> {
    pub node: &'a Node,
    /// All GPUs that answer, by NVML's index.
    pub gpus: Vec<Gpu<'a>>,
    /// GPUs that NVML counts and cannot open; no pool has them.
    pub broken: Vec<(GpuIndex, NvmlError)>,
    /// The devices in Slurm's order.
    pub devices: Vec<Device<'a>>,
    /// The record of node-setup, and the driver that is loaded now, where the mode of a GPU can be off for a job.
    known: Option<(NodeRecord, String)>,
}

impl<'a> Machine<'a> {
    pub fn of(node: &'a Node, session: &'a Session) -> Result<Machine<'a>, NvmlError> {
        let count = session.gpu_count()?;
        let devices = node.config.devices_of_node(&node.name, count);
        let (mut gpus, mut broken) = (Vec::new(), Vec::new());
        for index in (0..count).map(GpuIndex) {
            match session.gpu(index) {
                Ok(gpu) => gpus.push(gpu),
                Err(error) if devices.iter().all(|device| device.gpu_index != index) => {
                    broken.push((index, error));
                }
                Err(error) => return Err(error),
            }
        }
        let record = devices.iter().any(|device| device.pool.switches_mig());
        let record = record.then(|| NodeRecord::read(&node.run).ok()).flatten();
        let known = match (record, node.caps().driver()) {
            (Some(record), Some(driver)) => Some((record, driver)),
            (Some(record), None) => Some((record, session.driver_version()?)),
            (None, _) => None,
        };
        Ok(Machine {
            node,
            gpus,
            broken,
            devices,
            known,
        })
    }

    /// The findings of node-setup in MIG mode for a GPU whose mode changes for jobs, if the same driver is loaded:
    /// while a job has the GPU without MIG the driver does not tell it.
    pub fn known_geometry(&self, gpu: &Gpu<'_>) -> Option<&Geometry> {
        let (record, driver) = self.known.as_ref()?;
        let is_same = |known: &&RecordedGpu| known.uuid == gpu.uuid;
        let switches = self.device(gpu)?.pool.switches_mig();
        record
            .gpus
            .get(gpu.index.position())
            .filter(is_same)
            .filter(|_| switches)?;
        record.facts(gpu.index, driver).geometry
    }

    /// The number of GPUs that NVML counts.
    pub fn count(&self) -> usize {
        self.gpus.len() + self.broken.len()
    }

    /// The GPU of a device; None if a pool names a GPU that the machine does not have.
    pub fn gpu(&self, device: &Device<'_>) -> Option<&Gpu<'a>> {
        self.gpus.iter().find(|gpu| gpu.index == device.gpu_index)
    }

    /// The device of a GPU, or the first of several; None for a GPU without a pool.
    pub fn device(&self, gpu: &Gpu<'_>) -> Option<&Device<'a>> {
        let mut devices = self.devices.iter();
        devices.find(|device| device.gpu_index == gpu.index)
    }

    pub fn uses_mig(&self) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|device| device.pool.mechanism.uses_mig())
    }

    /// The device number of a placeholder. For a GPU that is shared without MIG it is the GPU's own number: Slurm
    /// then closes the GPU itself to other jobs, with every version of control groups.
    pub fn placeholder(&self, device: &Device<'_>) -> Result<DeviceNumber, CapsError> {
        let without_mig = !device.pool.mechanism.uses_mig();
        match self.gpu(device).filter(|_| without_mig) {
            Some(gpu) => self.node.caps().gpu_device(gpu.minor),
            None => Ok(DeviceNumber {
                major: PLACEHOLDER_MAJOR,
                minor: device.index.0,
            }),
        }
    }
}

/// The GPUs of pools that node-setup found at this boot and that the driver does not show now. The GPUs after a lost
/// one have other indexes now, so no slice may be made by index.
pub(super) fn lost(machine: &Machine<'_>) -> Vec<Finding> {
    let record = NodeRecord::read(&machine.node.run);
    let recorded = record.map(|record| record.gpus).unwrap_or_default();
    let is_lost = |known: &&RecordedGpu| {
        let shown = machine.gpus.iter().any(|gpu| gpu.uuid == known.uuid);
        known.pool.is_some() && !shown
    };
    let lost = recorded.iter().filter(is_lost);
    let told = lost.map(|gpu| {
        // The GPU fell off the bus, or was removed. Cure: Drain the node, look for `Xid` in the kernel's log, reboot.
        Finding::of_machine(
            format!(
                "GPU {} ({}) of pool `{}` was present at the last node-setup, but the driver does not show it now",
                gpu.index,
                gpu.uuid,
                gpu.pool.as_deref().unwrap_or_default()
            ),
            "drain the node, look for `Xid` in the kernel's log (79: it fell off the bus), and reboot; a node that goes on \
             without this GPU needs another Gres= too, which `gpufrac conf` prints after the reboot",
        )
    });
    told.collect()
}

/// A difference between a GPU and the needs of its pool.
pub(super) enum Difference {
    /// The pool needs MIG, and the GPU is in this mode.
    MigMode(MigMode),
    /// It is another model than the pool's; with the differences.
    Model(Vec<String>),
    /// It cannot be shared by the pool's mechanism.
    Unfit(Finding),
}

/// Compares a GPU with its pool; of a GPU that is not in MIG mode no more is known than that, and what node-setup saw.
/// `known`: [`Machine::known_geometry`].
pub(super) fn differences(
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    known: Option<&Geometry>,
) -> Result<Vec<Difference>, NvmlError> {
    let pool = device.pool;
    if !pool.mechanism.uses_mig() {
        return without_mig(gpu, device);
    }
    let mode = gpu.mig_mode()?;
    if pool.switches_mig() && mode != MigMode::Unsupported && !gpu.mig_switches_without_reset()? {
        // The model is older than Hopper. Cure: Write `whole = "mig"` in the pool, or leave the key out.
        return Ok(vec![Difference::Unfit(Finding::of_machine(
            format!(
                "{gpu} ({}) changes its MIG mode only by a reset, and pool `{}` has whole = \"bare\"",
                gpu.name(),
                pool.name
            ),
            "write whole = \"mig\" in the pool, or leave the key out",
        ))]);
    }
    let seen = match (mode, known) {
        (MigMode::On, _) => gpu.geometry()?,
        (MigMode::Off | MigMode::OnAfterReset, Some(known)) => known.clone(),
        (mode, _) => return Ok(vec![Difference::MigMode(mode)]),
    };
    let differences = pool.geometry.differences(&seen);
    Ok(if differences.is_empty() {
        Vec::new()
    } else {
        vec![Difference::Model(differences)]
    })
}

fn without_mig(gpu: &Gpu<'_>, device: &Device<'_>) -> Result<Vec<Difference>, NvmlError> {
    let mut found = Vec::new();
    let pool = device.pool;
    if gpu.mig_mode()? == MigMode::On {
        // The mechanism needs MIG off. Cure: `nvidia-smi -i N -mig 0`, or give the pool mechanism `mig` or `mig+mps`.
        found.push(Finding::of_machine(
            format!("{gpu} ({}) is in MIG mode, and pool `{}` shares it by {}", gpu.name(), pool.name, pool.mechanism),
            format!("stop everything that uses it and run `nvidia-smi -i {} -mig 0`, or give the pool mechanism mig or mig+mps", gpu.index),
        ));
    }
    let (memory, expected) = (gpu.memory()?, pool.gpu_memory);
    if !memory.is_about(expected) {
        // The pool names another model. Cure: Set `gpu` of the pool to this model, or `memory`.
        found.push(Finding::of_machine(
            format!(
                "{gpu} ({}) has {memory}, and pool `{}` expects {expected}",
                gpu.name(),
                pool.name
            ),
            "set `gpu` of the pool to this model, or `memory` to what it has in MiB",
        ));
    }
    let capability = gpu.compute_capability()?;
    if pool.mechanism.uses_mps() && capability < VOLTA {
        // MPS before Volta has no limits. Cure: Use mechanism `timeslice` or `hami`.
        found.push(Finding::of_machine(
            format!("{gpu} ({}) is older than Volta (compute capability {capability}), and MPS limits nothing on it", gpu.name()),
            "share it with mechanism timeslice or hami",
        ));
    }
    Ok(found.into_iter().map(Difference::Unfit).collect())
}

/// The finding about the library that a device's pool preloads into every job, if it does not exist or a user could
/// change it.
pub(super) fn library(device: &Device<'_>) -> Option<Finding> {
    let library = device.pool.options.library.as_deref()?;
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
