//! Plugins of plugstack.conf that start containers, by their names.

use gpufrac_slurm_conf::PluginLine;

/// Parts of the names of plugins that start containers.
const NAMES: [&str; 11] = [
    PYXIS,
    "apptainer",
    "charliecloud",
    "container",
    "docker",
    "enroot",
    "podman",
    "sarus",
    "shifter",
    "singularity",
    "skybox",
];
/// It gives a container the devices of `NVIDIA_VISIBLE_DEVICES`, which each hook sees on both sides of gpufrac's line.
const PYXIS: &str = "pyxis";

/// The name of the file of a plugin.
pub(crate) fn file_name(line: &PluginLine) -> &str {
    line.plugin.rsplit('/').next().unwrap_or_default()
}

/// Whether a line is that of gpufrac.
pub(crate) fn is_ours(line: &PluginLine) -> bool {
    file_name(line) == "spank_gpufrac.so"
}

/// Whether the plugin of a line starts containers.
pub(crate) fn starts_containers(line: &PluginLine) -> bool {
    let name = file_name(line).to_lowercase();
    NAMES.iter().any(|word| name.contains(word))
}

/// Whether the plugin of a line starts containers, and must stand behind gpufrac's line.
pub(crate) fn belongs_behind(line: &PluginLine) -> bool {
    starts_containers(line) && !file_name(line).to_lowercase().contains(PYXIS)
}
