//! `gpufrac doctor --bundle`: what the report of a problem needs of a machine, as one text.

use std::fs;

use gpufrac_core::config::Config;
use gpufrac_core::ids::GpuIndex;
use gpufrac_node::node::Node;
use gpufrac_node::version;
use gpufrac_nvml::NvmlError;
use gpufrac_slurm_settings::ask_slurm;

use super::{head, say};
use crate::args::{CheckArgs, ConfigArgs};
use crate::check;

/// Settings of `scontrol show config` on which gpufrac depends.
const SETTINGS: [&str; 17] = [
    "AccountingStorageTRES",
    "AccountingStorageType",
    "Epilog",
    "GresTypes",
    "JobSubmitPlugins",
    "LaunchParameters",
    "PlugStackConfig",
    "PreemptMode",
    "PrivateData",
    "ProctrackType",
    "Prolog",
    "PrologFlags",
    "SchedulerParameters",
    "SelectType",
    "SelectTypeParameters",
    "SlurmctldParameters",
    "TaskPlugin",
];

/// Prints it. Names stand in it as they are: those of nodes and partitions, and what `gpufrac check` and gpufrac.toml
/// say of users and jobs.
pub fn print(config: &ConfigArgs) {
    println!("versions:");
    let slurm = ask_slurm("scontrol", &["--version"]);
    let slurm = slurm.unwrap_or_else(|error| error.to_string());
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or("unknown system", |name| name.trim_matches('"'));
    let kernel = fs::read_to_string("/proc/version").unwrap_or_default();
    let own = format!("gpufrac {}", *version::TEXT);
    let lines = [own.as_str(), &slurm, system, &kernel];
    say(
        lines.into_iter().filter_map(|text| text.lines().next()),
        "nothing",
    );
    head("GPUs of this host");
    // A file with a mistake is what a report may be about.
    let parsed = config.read().unwrap_or_else(|_| Config::empty());
    let gpus = gpus(&Node::new(parsed, &config.node_name()));
    let gpus = gpus.unwrap_or_else(|error| vec![error.to_string()]);
    say(gpus.iter().map(String::as_str), "none");
    head("gpufrac check");
    check::run(&CheckArgs {
        config: config.clone(),
        ..CheckArgs::default()
    });
    head("Slurm's settings");
    let of_slurm = ask_slurm("scontrol", &["show", "config"]);
    let of_slurm = of_slurm.unwrap_or_else(|error| error.to_string());
    let name = |line: &str| line.split('=').next().map(|name| name.trim().to_owned());
    let kept = of_slurm
        .lines()
        .filter(|line| name(line).is_some_and(|name| SETTINGS.contains(&name.as_str())));
    say(kept, "slurmctld did not answer");
    let path = config.path();
    head(&path.display().to_string());
    let text = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
    say(text.lines(), "an empty file");
}

fn gpus(node: &Node) -> Result<Vec<String>, NvmlError> {
    let session = node.nvml()?;
    let mut lines = vec![format!("driver {}", session.driver_version()?)];
    for index in 0..session.gpu_count()? {
        let gpu = session.gpu(GpuIndex(index))?;
        lines.push(format!("{}, MIG {:?}", gpu.name(), gpu.mig_mode()?));
    }
    Ok(lines)
}
