//! The control groups (v1) that slurmd and slurmstepd make for the lab's nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::LabError;
use crate::process::Process;

const MOUNT: &str = "/sys/fs/cgroup";

/// The hierarchies that a lab's Slurm uses.
const HIERARCHIES: [&str; 5] = ["freezer", "devices", "cpuset", "memory", "cpuacct"];

/// Says what is missing on a machine that has no v1 device and freezer groups.
pub(crate) fn require() -> Result<(), LabError> {
    for hierarchy in ["devices", "freezer"] {
        let tasks = Path::new(MOUNT).join(hierarchy).join("tasks");
        if !tasks.exists() {
            return Err(LabError::Machine {
                what: format!("{MOUNT}/{hierarchy} is no control group hierarchy (v1)"),
                hint: format!(
                    "mount it: mkdir -p {MOUNT}/{hierarchy} && mount -t cgroup -o {hierarchy} cgroup {MOUNT}/{hierarchy}"
                ),
            });
        }
    }
    Ok(())
}

fn node_groups(node: &str) -> impl Iterator<Item = PathBuf> {
    HIERARCHIES
        .into_iter()
        .map(move |hierarchy| {
            Path::new(MOUNT)
                .join(hierarchy)
                .join(format!("slurm_{node}"))
        })
        .filter(|path| path.is_dir())
}

/// Whether a node of this name has control groups already, of this or of another cluster.
pub(crate) fn name_is_taken(node: &str) -> bool {
    node_groups(node).next().is_some()
}

/// Every process in the groups of `node`.
pub(crate) fn processes(node: &str) -> Vec<Process> {
    let mut found = Vec::new();
    for root in node_groups(node) {
        for group in depth_first(&root) {
            let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|pid| pid.parse().ok()) {
                if let Some(process) = Process::observe("job process", pid)
                    && !found.contains(&process)
                {
                    found.push(process);
                }
            }
        }
    }
    found
}

/// Kills what is left in the groups of `node` and removes them.
///
/// # Errors
/// When a group can still not be removed after two seconds.
pub(crate) fn remove(node: &str) -> Result<(), LabError> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        for root in node_groups(node).filter(|root| root.starts_with("/sys/fs/cgroup/freezer")) {
            // A frozen process can't be killed.
            for group in depth_first(&root) {
                let _ = fs::write(group.join("freezer.state"), "THAWED");
            }
        }
        for process in processes(node) {
            process.signal(Signal::SIGKILL);
        }
        let mut problem = None;
        for group in node_groups(node).flat_map(|root| depth_first(&root)) {
            if let Err(reason) = fs::remove_dir(&group)
                && group.exists()
            {
                problem = Some(LabError::File {
                    action: "cannot remove",
                    path: group,
                    reason,
                });
            }
        }
        match problem {
            None => return Ok(()),
            Some(problem) if Instant::now() >= deadline => return Err(problem),
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// `root` and all below it, children before their parents.
fn depth_first(root: &Path) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    if let Ok(entries) = fs::read_dir(root) {
        for entry in entries
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        {
            groups.extend(depth_first(&entry.path()));
        }
    }
    groups.push(root.to_path_buf());
    groups
}
