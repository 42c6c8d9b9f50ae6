//! `gpufrac check` on a node: does the machine look as the configuration says? Nothing is
//! changed.

use gpufrac_core::config::Device;

use crate::caps::CapsError;
use crate::files::{DeviceNumber, RootDir};
use crate::node::Node;
use crate::nvml::{Gpu, MigMode, NvmlError};
use crate::record::NodeRecord;
use crate::setup::{PLACEHOLDER_MAJOR, Problem};

fn problem(what: impl ToString, hint: &str) -> Problem {
    Problem {
        what: what.to_string(),
        hint: hint.to_owned(),
    }
}

const SETUP: &str = "run `gpufrac node-setup`, before slurmd starts";

/// Compares NVML, MIG mode, placeholders and the record of node-setup with the configuration.
/// Gives what is wrong; nothing means that this node can carve.
pub fn check(node: &Node) -> Vec<Problem> {
    let mut found = Vec::new();
    if !node.has_pools() {
        return found;
    }
    let record = match NodeRecord::read(&node.run) {
        Ok(record) => Some(record),
        Err(error) => {
            found.push(problem(error, SETUP));
            None
        }
    };
    if let Err(error) = node
        .leases()
        .map(|store| store.list())
        .and_then(|list| list)
    {
        found.push(problem(error, SETUP));
    }
    if let Err(error) = gpus(node, record.as_ref(), &mut found) {
        found.push(problem(error, "is the NVIDIA driver loaded?"));
    }
    found
}

fn gpus(
    node: &Node,
    record: Option<&NodeRecord>,
    found: &mut Vec<Problem>,
) -> Result<(), NvmlError> {
    let session = node.nvml()?;
    let gpus = session.gpus()?;
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    placeholders(node, &devices, found);
    let mut checked = Vec::new();
    for device in &devices {
        if checked.contains(&device.gpu_index) {
            continue;
        }
        checked.push(device.gpu_index);
        let Some(gpu) = gpus.iter().find(|gpu| gpu.index == device.gpu_index) else {
            let what = format!(
                "pool `{}` names GPU {}, but this node has {count}",
                device.pool.name, device.gpu_index
            );
            found.push(problem(what, "correct the pool's `gpus`"));
            continue;
        };
        one_gpu(gpu, device, found)?;
        if let Some(record) = record {
            recorded(node, record, gpu, device, found);
        }
    }
    Ok(())
}

fn one_gpu(gpu: &Gpu<'_>, device: &Device<'_>, found: &mut Vec<Problem>) -> Result<(), NvmlError> {
    let mode = gpu.mig_mode()?;
    if mode != MigMode::On {
        found.push(problem(
            format!("{gpu} ({}) is not in MIG mode ({mode:?})", gpu.name),
            "`gpufrac node-setup` switches it on, or says how",
        ));
        return Ok(());
    }
    let differences = device.pool.geometry.differences(&gpu.geometry()?);
    for difference in differences {
        found.push(problem(
            format!(
                "{gpu} ({}), pool `{}`: {difference}",
                gpu.name, device.pool.name
            ),
            "set `gpu` of the pool to this model, or describe it in a [geometry.NAME] table",
        ));
    }
    Ok(())
}

fn recorded(
    node: &Node,
    record: &NodeRecord,
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    found: &mut Vec<Problem>,
) {
    let entry = record.gpus.get(gpu.index as usize);
    let same = entry.is_some_and(|entry| {
        entry.uuid == gpu.uuid
            && entry.minor == gpu.minor
            && entry.pool.as_deref() == Some(device.pool.name.as_str())
    });
    if !same {
        let what = format!(
            "the record of node-setup does not know {gpu} as one of pool `{}`",
            device.pool.name
        );
        found.push(problem(what, SETUP));
    }
    let numbers = || -> Result<bool, CapsError> {
        let caps = node.caps();
        let major = caps.gpu_device(gpu.minor)?.major;
        Ok(caps.major("nvidia-caps")? == record.caps_major
            && entry.is_none_or(|entry| entry.major == major))
    };
    match numbers() {
        Ok(true) => {}
        Ok(false) => found.push(problem(
            format!("the device numbers of {gpu} are not those that jobs are fenced from"),
            SETUP,
        )),
        Err(error) => found.push(problem(error, "is the NVIDIA driver loaded?")),
    }
}

fn placeholders(node: &Node, devices: &[Device<'_>], found: &mut Vec<Problem>) {
    let dir = match RootDir::open(&node.devices) {
        Ok(dir) => dir,
        Err(error) => {
            found.push(problem(error, SETUP));
            return;
        }
    };
    for device in devices {
        let wanted = DeviceNumber {
            major: PLACEHOLDER_MAJOR,
            minor: device.index,
        };
        let name = device.file_name();
        match dir.device(&name) {
            Ok(Some(number)) if number == wanted => {}
            Ok(number) => {
                let is = number.map_or("missing".to_owned(), |number| format!("device {number}"));
                let path = dir.path().join(&name);
                let what = format!("`{}` is {is}, not device {wanted}", path.display());
                found.push(problem(what, SETUP));
            }
            Err(error) => found.push(problem(error, SETUP)),
        }
    }
}
