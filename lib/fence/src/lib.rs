//! The device cgroup of a job: which device nodes its processes can open. In version 1 these are rules of the
//! kernel's, in version 2 programs.

use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::files::DeviceRule;

mod bpf;
mod version1;
mod version2;

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
        rule: DeviceRule,
        /// Why.
        source: io::Error,
    },
    /// bpf(2) takes no programs.
    #[error("the kernel takes no program for devices of control groups: {0}")]
    NoPrograms(io::Error),
    /// bpf(2) failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Bpf {
        /// What was to be done.
        action: &'static str,
        /// The group.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where a job stands after [`fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fenced {
    /// The rules hold for all processes of a group.
    Closed {
        /// The job's own (version 1), or that of the step (version 2).
        cgroup: PathBuf,
    },
    /// There is no device cgroup for it; only the permissions of the capability files keep it out.
    PermissionsOnly(NoGroup),
}

/// Why a job has no device cgroup that could be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoGroup {
    /// Neither the `devices` controller of version 1 nor version 2 is mounted.
    NoHierarchy,
    /// The process is in no group of this job: `TaskPlugin=task/cgroup` and
    /// `ConstrainDevices=yes` are not set.
    NotConstrained,
}

impl std::fmt::Display for NoGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoGroup::NoHierarchy => "no control groups are mounted that could fence devices",
            NoGroup::NotConstrained => {
                "the job has no device cgroup: set TaskPlugin=task/cgroup and ConstrainDevices=yes"
            }
        })
    }
}

/// Closes the devices of `rules` to the job that `pid` belongs to: to all of it in version 1, to this step of it in
/// version 2, where each step is to be fenced. `pid` must be a process of the job that Slurm has put in its cgroup
/// already.
pub fn fence(pid: u32, job_id: JobId, rules: &[DeviceRule]) -> Result<Fenced, DevCgroupError> {
    let memberships = read(&format!("/proc/{pid}/cgroup"))?;
    let mounts = read(MOUNTS)?;
    match version1::fence(&memberships, &mounts, job_id, rules)? {
        Fenced::PermissionsOnly(without) => {
            match version2::fence(&memberships, &mounts, job_id, rules)? {
                Fenced::PermissionsOnly(NoGroup::NoHierarchy) => {
                    Ok(Fenced::PermissionsOnly(without))
                }
                fenced => Ok(fenced),
            }
        }
        closed => Ok(closed),
    }
}

/// Whether jobs can be fenced here, as far as that can be seen without one: where version 2 alone is mounted the kernel
/// must take programs (`CONFIG_CGROUP_BPF`).
pub fn probe() -> Result<(), DevCgroupError> {
    match Mount::of(Path::new("/"), &read(MOUNTS)?, version1::has_devices) {
        Some(_) => Ok(()),
        None => version2::probe(),
    }
}

/// proc_pid_mountinfo(5)
const MOUNTS: &str = "/proc/self/mountinfo";

fn read(path: &str) -> Result<String, DevCgroupError> {
    std::fs::read_to_string(path).map_err(|source| DevCgroupError::Read {
        path: path.into(),
        source,
    })
}

/// Where a hierarchy is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// The group that is seen there.
    root: PathBuf,
}

impl Mount {
    /// Where a group is seen: of those in the text of mountinfo whose type and options of the super block are the wanted
    /// ones, the one that shows the most of the hierarchy.
    fn of(group: &Path, mountinfo: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<Mount> {
        let mounts = mountinfo.lines().filter_map(|line| {
            let (mount, super_block) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (root, point) = (mount.next()?, mount.next()?);
            let mut super_block = super_block.split(' ');
            let (kind, options) = (super_block.next()?, super_block.nth(1)?);
            wanted(kind, options).then(|| Mount {
                point: unescape(point).into(),
                root: unescape(root).into(),
            })
        });
        let showing = mounts.filter(|mount| group.starts_with(&mount.root));
        showing.min_by_key(|mount| mount.root.components().count())
    }

    /// The folder of a group that is seen there.
    fn folder(&self, group: &Path) -> PathBuf {
        self.point
            .join(group.strip_prefix(&self.root).unwrap_or(group))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_a_group_is_mounted() {
        let devices = |group: &str, text: &str| {
            let mount = Mount::of(Path::new(group), text, |kind, options| {
                (kind, options) == ("cgroup", "rw,cpu,devices")
            });
            mount.map(|mount| mount.folder(Path::new(group)))
        };
        let version2 = "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let blank = "36 31 0:33 /a /mnt/c\\040g rw shared:9 - cgroup none rw,cpu,devices\n";
        assert_eq!(devices("/a/b", version2), None);
        assert_eq!(devices("/a/b", blank), Some("/mnt/c g/b".into()));
        assert_eq!(devices("/b", blank), None);
        let whole = "37 31 0:33 / /sys/fs/cgroup/devices rw - cgroup none rw,cpu,devices\n";
        let both = format!("{blank}{version2}{whole}");
        assert_eq!(
            devices("/a/b", &both),
            Some("/sys/fs/cgroup/devices/a/b".into())
        );
    }
}
