//! Control groups: their mounts, and the group of a process.

use std::path::{Path, PathBuf};

/// The list of mounts, proc_pid_mountinfo(5).
pub const MOUNTS: &str = "/proc/self/mountinfo";

/// A mount of a hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The folder of the mount.
    pub point: PathBuf,
    /// The group that is visible at the folder.
    pub root: PathBuf,
}

impl Mount {
    /// The mounts in the text of mountinfo whose file system type and super block options `wanted` accepts.
    pub fn list(
        mountinfo: &str,
        wanted: impl Fn(&str, &str) -> bool,
    ) -> impl Iterator<Item = Mount> {
        mountinfo.lines().filter_map(move |line| {
            let (mount, super_block) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (root, point) = (mount.next()?, mount.next()?);
            let mut super_block = super_block.split(' ');
            let (kind, options) = (super_block.next()?, super_block.nth(1)?);
            wanted(kind, options).then(|| Mount {
                point: unescape(point).into(),
                root: unescape(root).into(),
            })
        })
    }

    /// The mount in which a group is visible; of several the one that shows most of the hierarchy.
    pub fn of(group: &Path, mountinfo: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<Mount> {
        let mounts = Mount::list(mountinfo, wanted);
        let showing = mounts.filter(|mount| group.starts_with(&mount.root));
        showing.min_by_key(|mount| mount.root.components().count())
    }

    /// The folder of a group in this mount.
    pub fn folder(&self, group: &Path) -> PathBuf {
        self.point
            .join(group.strip_prefix(&self.root).unwrap_or(group))
    }
}

/// Whether a file system of this type with these options is the version 1 hierarchy of the controller `devices`.
pub fn has_devices(kind: &str, options: &str) -> bool {
    kind == "cgroup" && options.split(',').any(|option| option == "devices")
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

/// The group in the unified hierarchy, as an absolute path, from the text of /proc/PID/cgroup (cgroups(7)); None if
/// the process is in no group of version 2.
pub fn unified(memberships: &str) -> Option<&str> {
    let mut lines = memberships.lines();
    lines.find_map(|line| line.strip_prefix("0::"))
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

    #[test]
    fn the_group_of_the_unified_hierarchy_counts() {
        let text = "4:devices:/slurm/uid_1/job_2\n0::/system.slice/slurmstepd.scope/job_2/step_0/user/task_0\n";
        assert_eq!(
            unified(text),
            Some("/system.slice/slurmstepd.scope/job_2/step_0/user/task_0")
        );
        assert_eq!(unified("5:devices:/a\n0::/b\n"), Some("/b"));
        assert_eq!(unified("4:devices:/slurm\n"), None);
    }
}
