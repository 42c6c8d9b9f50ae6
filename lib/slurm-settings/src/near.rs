//! The cores near each GPU, for `Cores=` of gres.conf.

use std::path::Path;

use gpufrac_core::config::Device;
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};

use super::gres_lines::files_of;
use super::{Settings, gpu_count, rules};

/// From this release on, with `Cores=` Slurm no longer gives a device with fractions to a job of a whole GPU.
const SAFE_FROM: SlurmRelease = SlurmSeries::new(23, 11).release(5);

/// Whether gres.conf of this Slurm may have `Cores=` on the lines of gpufrac.
pub fn takes_cores(release: SlurmRelease) -> bool {
    release >= SAFE_FROM
}

/// The `Cores=` of a GPU of a node: as NVML says on that node or on one of the same line of slurm.conf, otherwise as
/// gres.conf says now. None before the release that counts such devices correctly.
pub(super) fn cores(
    settings: &Settings,
    devices: &[Device<'_>],
    folder: &Path,
    node: &str,
    gpu: GpuIndex,
) -> Option<String> {
    settings.release().filter(|release| takes_cores(*release))?;
    let host = gpu_count::in_nvml(settings, node);
    let in_nvml = host.and_then(|host| host.gpus.get(gpu.position())?.cores.clone());
    in_nvml.or_else(|| {
        let minor = gpu_count::minor(settings, node, gpu.0);
        let own = devices.iter().filter(|device| device.gpu_index == gpu);
        let own = own.map(|device| folder.join(device.file_name()).display().to_string());
        let names: Vec<String> = own.chain([format!("/dev/nvidia{minor}")]).collect();
        written(settings, node, &names)
    })
}

/// The `Cores=` on the line of gres.conf that has one of these files.
fn written(settings: &Settings, node: &str, files: &[String]) -> Option<String> {
    let lines = settings.files.as_ref()?.gres.lines.iter();
    let mut lines = lines.filter(|line| {
        let is_of = line.covers(node) || line.get("NodeName").is_none();
        is_of && line.get("Name").is_some_and(|name| rules::is(name, "gpu"))
    });
    lines.find_map(|line| {
        let cores = line.get("Cores").or_else(|| line.get("CPUs"))?;
        let has = line.get("File").map(files_of)?;
        has.iter()
            .any(|file| files.contains(file))
            .then(|| cores.to_owned())
    })
}
