//! The device that a CUDA program takes, by `CUDA_VISIBLE_DEVICES`, the device nodes and the MPS server.

use std::path::Path;

use nvidia_ml::node::{ComputeInstance, Gpu, GpuInstance, Node};
use nvidia_ml::processes::Process;
use nvidia_ml::tree::{self, Access, Capability};

use crate::mps;
use crate::plan::{Plan, ProgramError};

/// The device that the program got.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

fn no_device(reason: impl Into<String>) -> ProgramError {
    ProgramError::NoDevice(reason.into())
}

/// Opens a device node of the driver, as CUDA's library would.
fn open(path: &Path, write: bool) -> Result<(), ProgramError> {
    match tree::probe(path, write) {
        Access::Reached => Ok(()),
        Access::Denied => Err(no_device(format!("{}: not permitted", path.display()))),
        Access::Missing => Err(no_device(format!("{}: no such node", path.display()))),
    }
}

/// Opens the device nodes of an instance. For root, missing nodes are created; for other users the real
/// `nvidia-modprobe` would create them, because it is setuid root.
fn open_instance(
    root: &Path,
    gpu: &Gpu,
    gi: &GpuInstance,
    ci: &ComputeInstance,
) -> Result<(), ProgramError> {
    for capability in [
        Capability::GpuInstance(gpu.minor, gi.id),
        Capability::ComputeInstance(gpu.minor, gi.id, ci.id),
    ] {
        // Fails for other users than root. For root, the open below reports a missing node.
        let _ = tree::modprobe(root, capability);
        open(&capability.node(root), false)?;
    }
    Ok(())
}

/// The GPUs that the process may open, in CUDA's order.
fn open_gpus<'a>(root: &Path, node: &'a Node) -> Vec<&'a Gpu> {
    let may_open = |gpu: &&Gpu| {
        let path = root.join(format!("dev/nvidia{}", gpu.minor));
        open(&path, true).is_ok()
    };
    node.gpus.iter().filter(may_open).collect()
}

/// The first instance of a GPU that the process may open.
fn first_instance<'a>(root: &Path, gpu: &'a Gpu) -> Option<Found<'a>> {
    gpu.mig_devices()
        .find(|(gi, ci)| open_instance(root, gpu, gi, ci).is_ok())
        .map(|mig| Found {
            gpu,
            mig: Some(mig),
        })
}

fn whole_or_first<'a>(root: &Path, gpu: &'a Gpu) -> Result<Found<'a>, ProgramError> {
    if gpu.mig {
        first_instance(root, gpu).ok_or_else(|| {
            no_device(format!(
                "{} is in MIG mode and no instance of it can be opened",
                gpu.uuid
            ))
        })
    } else {
        Ok(Found { gpu, mig: None })
    }
}

/// The device that CUDA numbers 0.
fn choose<'a>(
    root: &Path,
    node: &'a Node,
    visible: Option<&str>,
) -> Result<Found<'a>, ProgramError> {
    open(&root.join("dev/nvidiactl"), true)?;
    open(&root.join("dev/nvidia-uvm"), true)?;
    let gpus = open_gpus(root, node);
    let Some(visible) = visible else {
        for gpu in &gpus {
            if let Ok(found) = whole_or_first(root, gpu) {
                return Ok(found);
            }
        }
        return Err(no_device("no GPU and no instance can be opened"));
    };
    // Only the first entry matters: CUDA stops at the first entry without a device, and a program that names no
    // device number uses the first one before it.
    let first = visible.split(',').next().unwrap_or_default().trim();
    if let Ok(index) = first.parse::<usize>() {
        let gpu = gpus
            .get(index)
            .ok_or_else(|| no_device(format!("CUDA_VISIBLE_DEVICES={visible}: no GPU {index}")))?;
        return whole_or_first(root, gpu);
    }
    let unknown = || no_device(format!("CUDA_VISIBLE_DEVICES={visible}: no such device"));
    if let Some(path) = first.strip_prefix("MIG-GPU-") {
        let mut words = path.split('/');
        let uuid = format!("GPU-{}", words.next().unwrap_or_default());
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let ids = number().zip(number()).ok_or_else(unknown)?;
        let gpu = gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .ok_or_else(unknown)?;
        let mut devices = gpu.mig_devices();
        let (gi, ci) = devices
            .find(|(gi, ci)| (gi.id, ci.id) == ids)
            .ok_or_else(unknown)?;
        open_instance(root, gpu, gi, ci)?;
        return Ok(Found {
            gpu,
            mig: Some((gi, ci)),
        });
    }
    // The start of a UUID is enough if it is the start of only one device's UUID.
    if first.starts_with("MIG-") && first.len() > 4 {
        let all = gpus
            .iter()
            .flat_map(|gpu| gpu.mig_devices().map(move |mig| (*gpu, mig)));
        let mut matching = all.filter(|(_, (_, ci))| ci.uuid.starts_with(first));
        let (gpu, (gi, ci)) = matching.next().ok_or_else(unknown)?;
        if matching.next().is_some() {
            return Err(unknown());
        }
        open_instance(root, gpu, gi, ci)?;
        return Ok(Found {
            gpu,
            mig: Some((gi, ci)),
        });
    }
    if first.starts_with("GPU-") && first.len() > 4 {
        let mut matching = gpus.iter().filter(|gpu| gpu.uuid.starts_with(first));
        let gpu = matching.next().ok_or_else(unknown)?;
        if matching.next().is_some() {
            return Err(unknown());
        }
        return whole_or_first(root, gpu);
    }
    Err(unknown())
}

/// The size of a device.
#[derive(Debug, Clone)]
pub struct Size {
    /// Its name, as CUDA says it.
    pub name: String,
    pub gpu_uuid: String,
    /// Its own UUID, of the GPU or of the MIG device.
    pub uuid: String,
    pub memory_mib: u64,
    pub multiprocessors: u32,
}

pub(crate) fn measure(found: &Found<'_>) -> Result<Size, ProgramError> {
    let model = found.gpu.model();
    let Some((gi, ci)) = found.mig else {
        return Ok(Size {
            name: model.product.to_owned(),
            gpu_uuid: found.gpu.uuid.clone(),
            uuid: found.gpu.uuid.clone(),
            memory_mib: found.gpu.usable_memory_mib(),
            multiprocessors: model.multiprocessors,
        });
    };
    let broken = |code| no_device(format!("{}: {code}", ci.uuid));
    let profile = found.gpu.profile_of(gi).map_err(broken)?;
    let compute = found.gpu.compute_profiles(gi).map_err(broken)?;
    let compute = compute.into_iter().find(|known| known.id == ci.profile);
    let compute = compute.ok_or_else(|| no_device(format!("{}: unknown profile", ci.uuid)))?;
    Ok(Size {
        name: format!("{} MIG {}", model.product, compute.name),
        gpu_uuid: found.gpu.uuid.clone(),
        uuid: ci.uuid.clone(),
        memory_mib: profile.memory_mib,
        multiprocessors: compute.multiprocessors,
    })
}

impl Found<'_> {
    pub(crate) fn serials(&self) -> Option<(u64, u64)> {
        self.mig.map(|(gi, ci)| (gi.serial, ci.serial))
    }

    /// Whether a process has memory of the same GPU or GPU instance.
    pub(crate) fn shares_with(&self, process: &Process) -> bool {
        match (self.mig, process.instance) {
            (Some((gi, _)), Some((other, _))) => gi.serial == other,
            (None, None) => process.gpu_uuid == self.gpu.uuid,
            _ => false,
        }
    }

    pub(crate) fn leaked_mib(&self) -> u64 {
        self.mig
            .map_or(self.gpu.leaked_mib, |(gi, _)| gi.leaked_mib)
    }
}

/// The device that an MPS client numbers 0, and the server's number of it. The client names one of the server's
/// devices, or its number.
fn choose_of_server<'a>(
    root: &Path,
    node: &'a Node,
    visible: Option<&str>,
    devices: &[String],
) -> Result<(Found<'a>, usize), ProgramError> {
    let of_server = |number: usize| choose(root, node, Some(&devices[number]));
    let first = visible.map(|text| text.split(',').next().unwrap_or_default().trim());
    if let Some(number) = first.map_or(Some(0), |first| first.parse().ok()) {
        if number >= devices.len() {
            return Err(no_device(format!("the MPS server has no device {number}")));
        }
        return Ok((of_server(number)?, number));
    }
    let wanted = choose(root, node, visible)?;
    let is_it =
        |found: Found<'_>| found.gpu.uuid == wanted.gpu.uuid && found.serials() == wanted.serials();
    let number = (0..devices.len()).find(|number| of_server(*number).is_ok_and(is_it));
    let number = number.ok_or_else(|| no_device("the MPS server does not have this device"))?;
    Ok((wanted, number))
}

/// The device, and its number in memory limits.
pub(crate) fn take<'a>(
    root: &Path,
    node: &'a Node,
    plan: &Plan,
    server: Option<&mps::Server>,
) -> Result<(Found<'a>, usize), ProgramError> {
    let visible = plan.visible.as_deref();
    match server {
        Some(server) if !server.devices.is_empty() => {
            choose_of_server(root, node, visible, &server.devices)
        }
        _ => {
            let found = choose(root, node, visible)?;
            let mut gpus = node.gpus.iter();
            let number = gpus.position(|gpu| gpu.uuid == found.gpu.uuid);
            Ok((found, number.unwrap_or_default()))
        }
    }
}
