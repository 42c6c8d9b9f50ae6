//! The control groups that slurmd and slurmstepd make for the lab's nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::patience::Patience;
use crate::process::Process;
use crate::{LabError, Slurm};

const MOUNT: &str = "/sys/fs/cgroup";

/// The hierarchies of version 1 that a lab's Slurm uses.
const HIERARCHIES: [&str; 5] = ["freezer", "devices", "cpuset", "memory", "cpuacct"];

/// `1` or `2`: the default version of control groups.
const VERSION: &str = "GPUFRAC_LAB_CGROUP";

/// The version of control groups of a lab's Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy for each controller.
    V1,
    V2,
}

impl CgroupVersion {
    /// The version in the environment, otherwise the machine's. If the machine has both, older Slurms get version 1
    /// and newer ones version 2, as on most sites; so the same tests run on both.
    pub(crate) fn usual(slurm: &Slurm) -> Result<Self, LabError> {
        match std::env::var(VERSION).ok().as_deref() {
            Some("1") => Ok(CgroupVersion::V1),
            Some("2") => Ok(CgroupVersion::V2),
            Some(other) => Err(LabError::Unexpected {
                what: VERSION.into(),
                found: other.into(),
            }),
            None if has_version1() && !slurm.since(26, 5) => Ok(CgroupVersion::V1),
            None if unified().is_none() => Ok(CgroupVersion::V1),
            None => Ok(CgroupVersion::V2),
        }
    }

    /// Whether the machine has this version.
    pub fn is_mounted(self) -> bool {
        match self {
            CgroupVersion::V1 => has_version1(),
            CgroupVersion::V2 => unified().is_some(),
        }
    }

    /// Prepares the machine; the error says what it lacks.
    pub(crate) fn require(self) -> Result<(), LabError> {
        match self {
            CgroupVersion::V1 if has_version1() => Ok(()),
            CgroupVersion::V1 => Err(LabError::Machine {
                what: format!("{MOUNT} has no control groups of version 1"),
                hint: format!("{VERSION}=2"),
            }),
            CgroupVersion::V2 => {
                let mount = unified().ok_or_else(|| LabError::Machine {
                    what: "control groups of version 2 are not mounted".into(),
                    hint: format!("mount -t cgroup2 cgroup2 {MOUNT}"),
                })?;
                // systemd creates it if it runs. The slice stays, because another lab may be about to use it.
                let slice = mount.join("system.slice");
                fs::create_dir_all(&slice).map_err(LabError::file("creating", &slice))
            }
        }
    }

    /// cgroup.conf: devices, cores and memory are constrained. Of more cores than the machine has, jobs get those that
    /// it has.
    pub(crate) fn conf(self) -> String {
        let constrains = if self.has_controllers() { "yes" } else { "no" };
        let (version, mount, more) = match self {
            CgroupVersion::V1 => ("v1", MOUNT.into(), ""),
            // There may be no systemd that could create a scope.
            CgroupVersion::V2 => (
                "v2",
                unified().unwrap_or_else(|| MOUNT.into()),
                "IgnoreSystemd=yes\n",
            ),
        };
        format!(
            "CgroupPlugin=cgroup/{version}\n\
             CgroupMountpoint={}\n\
             ConstrainDevices=yes\n\
             ConstrainCores={constrains}\n\
             ConstrainRAMSpace={constrains}\n\
             ConstrainSwapSpace=no\n\
             {more}",
            mount.display()
        )
    }

    /// slurm.conf's `JobAcctGatherType`: by control groups as on most sites, where they have the controllers that this
    /// plugin needs.
    pub(crate) fn accounting(self) -> &'static str {
        if self.has_controllers() {
            "jobacct_gather/cgroup"
        } else {
            "jobacct_gather/linux"
        }
    }

    /// Whether control groups count memory and time. A machine whose controllers all belong to version 1 has none of
    /// version 2.
    fn has_controllers(self) -> bool {
        let controllers = || {
            let path = unified()?.join("cgroup.controllers");
            fs::read_to_string(path).ok()
        };
        let has_all = |found: &str| {
            let has = |name| found.split_whitespace().any(|other| other == name);
            ["cpu", "cpuset", "memory"].into_iter().all(has)
        };
        self == CgroupVersion::V1 || controllers().is_some_and(|found| has_all(&found))
    }

    /// Whether slurmd must not see all hierarchies of the machine.
    pub(crate) fn needs_view(self) -> bool {
        let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        self == CgroupVersion::V2 && memberships.lines().count() > 1
    }
}

fn has_version1() -> bool {
    ["devices", "freezer"].into_iter().all(|hierarchy| {
        let tasks = Path::new(MOUNT).join(hierarchy).join("tasks");
        tasks.exists()
    })
}

/// The mount point of version 2.
fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| place.into())
    })
}

/// The groups of a node's jobs, by the names that its slurmd gives them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Groups {
    /// The names contain that of the node.
    Of(String),
    /// Those of a slurmd that is alone on its machine.
    Alone,
}

impl Groups {
    /// All that exist.
    fn existing(&self) -> impl Iterator<Item = PathBuf> {
        let (group, scope) = match self {
            Self::Of(node) => (format!("slurm_{node}"), format!("{node}_slurmstepd.scope")),
            Self::Alone => ("slurm".to_owned(), "slurmstepd.scope".to_owned()),
        };
        let version1 = HIERARCHIES
            .into_iter()
            .map(move |hierarchy| Path::new(MOUNT).join(hierarchy).join(&group));
        let scope = unified().map(|mount| mount.join("system.slice").join(scope));
        version1.chain(scope).filter(|path| path.is_dir())
    }

    /// Whether there are such groups, of this or another cluster.
    pub fn exist(&self) -> bool {
        self.existing().next().is_some()
    }

    /// Whether a process with this `/proc/PID/cgroup` is in these groups.
    pub fn hold(&self, memberships: &str) -> bool {
        match self {
            Self::Of(node) => memberships.contains(node.as_str()),
            Self::Alone => {
                memberships.contains("/slurm/") || memberships.contains("/slurmstepd.scope/")
            }
        }
    }
}

/// Every process in the groups of a node.
fn processes(groups: &Groups) -> Vec<Process> {
    let mut found = Vec::new();
    for root in groups.existing() {
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

/// Kills the remaining processes in the groups of a node, and removes the groups.
/// Errors: a group cannot be removed although its processes were killed.
pub(crate) fn remove(groups: &Groups) -> Result<(), LabError> {
    let patience = Patience::new(Duration::from_secs(2));
    loop {
        let frozen = Path::new(MOUNT).join("freezer");
        for root in groups.existing().filter(|root| root.starts_with(&frozen)) {
            // A frozen process cannot be killed.
            for group in depth_first(&root) {
                let _ = fs::write(group.join("freezer.state"), "THAWED");
            }
        }
        for process in processes(groups) {
            process.signal(Signal::SIGKILL);
        }
        let mut problem = None;
        for group in groups.existing().flat_map(|root| depth_first(&root)) {
            if let Err(reason) = fs::remove_dir(&group)
                && group.exists()
            {
                problem = Some(LabError::File {
                    action: "removing",
                    path: group,
                    reason,
                });
            }
        }
        match problem {
            None => return Ok(()),
            Some(problem) if patience.is_over() => return Err(problem),
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// `root` and all groups below it, children before their parents.
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

/// The group for an adopted process, derived from that of the step's slurmstepd.
pub(crate) fn extern_group(memberships: &str, groups: &Groups) -> Option<PathBuf> {
    let mut lines = memberships.lines().filter(|line| groups.hold(line));
    let path = |line: &str, mark: &str| {
        let (_, path) = line.split_once(mark)?;
        Some(PathBuf::from(path.trim_start_matches('/')))
    };
    lines.find_map(|line| {
        if let Some(below) = path(line, ":devices:") {
            return Some(Path::new(MOUNT).join("devices").join(below));
        }
        let step = unified()?.join(path(line, "0::")?).parent()?.to_owned();
        let user = step.join("user");
        let tasks = fs::read_dir(&user).ok()?.flatten();
        let mut tasks = tasks.map(|entry| entry.path());
        tasks.find(|path| path.is_dir()).or_else(|| {
            // Slurm creates it for the first adopted process.
            let special = user.join("task_special");
            fs::create_dir(&special).ok().map(|()| special)
        })
    })
}
