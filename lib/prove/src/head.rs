//! The GPU, its driver, and the machine, without a name of a user or host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gpufrac_core::geometry::Geometry;
use gpufrac_node::gpu::capability_files::Caps;
use gpufrac_nvml::{Gpu, NvmlError, Session};

use crate::document::Head;
use crate::steps::in_use;

/// Collects the facts. `mode`: MIG mode; None for a GPU without MIG.
pub fn of(
    gpu: &Gpu<'_>,
    session: &Session,
    caps: &Caps,
    mode: Option<bool>,
) -> Result<Head, NvmlError> {
    let memory = gpu.memory()?;
    let product = gpu.name();
    let mut facts = BTreeMap::new();
    let mut fact = |name: &str, value: String| {
        facts.insert(name.to_owned(), value);
    };
    let word = |on: bool| if on { "on" } else { "off" };
    fact("MIG mode", mode.map_or("none", word).to_owned());
    fact("compute capability", gpu.compute_capability()?.to_string());
    if let Ok(mode) = gpu.compute_mode() {
        fact("compute mode", format!("{mode:?}"));
    }
    if let Ok(persistent) = gpu.is_persistent() {
        fact("persistence mode", word(persistent).to_owned());
    }
    if let Some(text) = caps.driver() {
        let kind = if text.contains("Open Kernel Module") { "open" } else { "closed" };
        fact("kernel module", kind.to_owned());
    }
    if let Some(modify) = caps.driver_modifies_files() {
        fact("ModifyDeviceFiles", modify.to_string());
    }
    if let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") {
        fact("kernel", release.trim().to_owned());
    }
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    fact(
        "control groups",
        if unified { "version 2" } else { "version 1" }.to_owned(),
    );
    let programs = in_use::holders();
    let programs = if programs.is_empty() { "none".to_owned() } else { programs.join(", ") };
    fact("NVIDIA's programs that run", programs);
    Ok(Head {
        model: Geometry::model_of_product(&product, memory).map(str::to_owned),
        product,
        memory_mib: memory.0,
        driver: session.driver_version()?,
        facts,
    })
}
