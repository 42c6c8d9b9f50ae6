//! The device cgroup of a job, version 1: which device nodes its processes can open.
//!
//! Rules are added to the job's own group, not to that of a task: Slurm 22.05 gives step and
//! task folders to the job's user, who could make a group beside the task's and move there.
//! A denial in the job's group holds for every group below it at once.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::files::DeviceNumber;

/// Why the devices could not be denied.
#[derive(Debug, thiserror::Error)]
pub enum DevCgroupError {
    /// A file of /proc could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a rule.
    #[error("cannot deny `{rule}` in `{}`: {source}", path.display())]
    Deny {
        /// The `devices.deny` of the job.
        path: PathBuf,
        /// The rule.
        rule: Rule,
        /// Why.
        source: io::Error,
    },
}

/// Something that a job must not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// One device.
    Device(DeviceNumber),
    /// All devices of a major. The kernel cannot except single minors from it later.
    Major(u32),
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rule::Device(number) => write!(f, "c {number} rwm"),
            Rule::Major(major) => write!(f, "c {major}:* rwm"),
        }
    }
}

/// Where a job stands after [`fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fenced {
    /// The rules hold for the whole job.
    Closed {
        /// The job's cgroup.
        cgroup: PathBuf,
    },
    /// There is no device cgroup of version 1 for it; only the permissions of the capability
    /// files keep it out.
    PermissionsOnly(NoGroup),
}

/// Why a job has no device cgroup that rules could be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoGroup {
    /// The machine has no `devices` controller of version 1 (version 2 needs a BPF program,
    /// which this version of gpufrac does not load).
    NoVersion1,
    /// The process is in no group `job_<id>`: `TaskPlugin=task/cgroup` and
    /// `ConstrainDevices=yes` are not set.
    NotConstrained,
}

impl std::fmt::Display for NoGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoGroup::NoVersion1 => {
                "this machine has no device cgroup of version 1, and version 2 is not in this version of gpufrac"
            }
            NoGroup::NotConstrained => {
                "the job has no device cgroup: set TaskPlugin=task/cgroup and ConstrainDevices=yes"
            }
        })
    }
}

/// Closes the devices of `rules` to every process of the job that `pid` belongs to. `pid` must
/// be a process of the job that Slurm has put in its cgroup already.
pub fn fence(pid: u32, job_id: u32, rules: &[Rule]) -> Result<Fenced, DevCgroupError> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|source| DevCgroupError::Read {
            path: path.into(),
            source,
        })
    };
    let memberships = read(&format!("/proc/{pid}/cgroup"))?;
    let Some(group) = devices_group(&memberships) else {
        return Ok(Fenced::PermissionsOnly(NoGroup::NoVersion1));
    };
    let Some((mount, root)) = devices_mount(&read("/proc/self/mountinfo")?) else {
        return Ok(Fenced::PermissionsOnly(NoGroup::NoVersion1));
    };
    let Some(group) = job_group(group, job_id) else {
        return Ok(Fenced::PermissionsOnly(NoGroup::NotConstrained));
    };
    let below = Path::new(&group)
        .strip_prefix(&root)
        .unwrap_or(Path::new(group.trim_start_matches('/')));
    let cgroup = Path::new(&mount).join(below);
    let path = cgroup.join("devices.deny");
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&path)
        .map_err(|source| DevCgroupError::Read {
            path: path.clone(),
            source,
        })?;
    for rule in rules {
        // The kernel takes one rule per write.
        file.write_all(rule.to_string().as_bytes())
            .map_err(|source| DevCgroupError::Deny {
                path: path.clone(),
                rule: *rule,
                source,
            })?;
    }
    Ok(Fenced::Closed { cgroup })
}

/// The path of the `devices` hierarchy in the text of /proc/PID/cgroup.
fn devices_group(memberships: &str) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|controller| controller == "devices")
            .then_some(path)
    })
}

/// Mount point and mounted root of the `devices` hierarchy in the text of mountinfo.
fn devices_mount(mountinfo: &str) -> Option<(String, String)> {
    mountinfo.lines().find_map(|line| {
        let (mount, super_block) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut super_block = super_block.split(' ');
        let (kind, options) = (super_block.next()?, super_block.nth(1)?);
        (kind == "cgroup" && options.split(',').any(|option| option == "devices"))
            .then(|| (unescape(point), unescape(root)))
    })
}

/// mountinfo writes blanks and backslashes as octal escapes.
fn unescape(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (code, plain)| {
        text.replace(code, plain)
    })
}

/// The part of a cgroup path that ends with `job_<id>`; None if the path is not in this job,
/// so that a wrong pid can never close devices to slurmd or to the machine.
fn job_group(path: &str, job_id: u32) -> Option<String> {
    let wanted = format!("job_{job_id}");
    let mut group = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        group.push('/');
        group.push_str(part);
        if part == wanted {
            return Some(group);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_devices_hierarchy_alone_or_mounted_together() {
        let text = "5:devices:/slurm_n1/uid_1/job_7/step_0/task_0\n0::/\n";
        assert_eq!(
            devices_group(text),
            Some("/slurm_n1/uid_1/job_7/step_0/task_0")
        );
        assert_eq!(devices_group("3:cpu,devices:/a:b\n"), Some("/a:b"));
        assert_eq!(devices_group("0::/system.slice/slurmd.service\n"), None);
        assert_eq!(devices_group("4:mydevices:/x\n"), None);
    }

    #[test]
    fn finds_where_it_is_mounted() {
        let text =
            "36 31 0:33 / /sys/fs/cgroup/devices rw,relatime shared:9 - cgroup cgroup rw,devices\n";
        assert_eq!(
            devices_mount(text),
            Some(("/sys/fs/cgroup/devices".into(), "/".into()))
        );
        let version2 = "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(devices_mount(version2), None);
        let blank = "36 31 0:33 /a /mnt/c\\040g rw - cgroup none rw,cpu,devices\n";
        assert_eq!(devices_mount(blank), Some(("/mnt/c g".into(), "/a".into())));
    }

    #[test]
    fn only_the_jobs_own_group_is_ever_written_to() {
        let path = "/slurm_n1/uid_1000/job_12/step_0/task_0";
        assert_eq!(
            job_group(path, 12).as_deref(),
            Some("/slurm_n1/uid_1000/job_12")
        );
        assert_eq!(job_group(path, 1), None);
        assert_eq!(job_group("/system.slice/slurmd.service", 12), None);
        assert_eq!(job_group("/", 12), None);
    }

    #[test]
    fn rules_have_the_kernels_form() {
        let device = DeviceNumber {
            major: 195,
            minor: 3,
        };
        assert_eq!(Rule::Device(device).to_string(), "c 195:3 rwm");
        assert_eq!(Rule::Major(234).to_string(), "c 234:* rwm");
    }
}
