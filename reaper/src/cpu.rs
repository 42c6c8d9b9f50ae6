//! CPU time of jobs, by their control groups.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpufrac_core::lease::Lease;

use crate::moment::Moment;
use crate::watch::Key;

/// Where Slurm's groups of jobs are on this node.
pub struct JobGroups {
    /// Folders with `uid_N/job_N` (version 1) or `job_N` (version 2) in them.
    roots: Vec<PathBuf>,
    ticks_per_second: f64,
    last: HashMap<Key, (Moment, f64)>,
}

impl JobGroups {
    /// Looks for them. Debian's build of Slurm puts the node's name into the folder's.
    pub fn find(node: &str) -> JobGroups {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let names = [format!("slurm_{node}"), "slurm".to_owned()];
        let scopes = [
            format!("{node}_slurmstepd.scope"),
            "slurmstepd.scope".to_owned(),
        ];
        let mut roots = Vec::new();
        for (mount, version2) in mounts.lines().filter_map(cgroup_mount) {
            match version2 {
                false => roots.extend(names.iter().map(|name| mount.join(name))),
                true => {
                    roots.extend(
                        scopes
                            .iter()
                            .map(|scope| mount.join("system.slice").join(scope)),
                    );
                }
            }
        }
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
        JobGroups {
            roots,
            ticks_per_second: ticks.ok().flatten().unwrap_or(100) as f64,
            last: HashMap::new(),
        }
    }

    /// Cores that a job kept busy since the last call for it; None for the first call, or where that can not be
    /// told.
    pub fn cores(&mut self, lease: &Lease, now: Moment) -> Option<f64> {
        let used = self.seconds(lease)?;
        let (before, then) = self.last.insert(Key::of(lease), (now, used))?;
        let passed = now.since(before).as_secs_f64();
        // Less than before: a process is gone that nobody waited for.
        (passed > 0.0 && used >= then).then(|| (used - then) / passed)
    }

    /// Whether a job has a group; always where Slurm makes none.
    pub fn exists(&self, lease: &Lease) -> bool {
        !self.roots.iter().any(|root| root.is_dir())
            || self.groups(lease).any(|group| group.is_dir())
    }

    /// Forgets jobs that are over.
    pub fn retain(&mut self, keys: impl Fn(&Key) -> bool) {
        self.last.retain(|key, _| keys(key));
    }

    fn seconds(&self, lease: &Lease) -> Option<f64> {
        let group = self.groups(lease).find(|group| group.is_dir())?;
        let nanoseconds = |name: &str| -> Option<f64> {
            fs::read_to_string(group.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        if let Some(used) = nanoseconds("cpuacct.usage") {
            return Some(used / 1e9);
        }
        if let Ok(stat) = fs::read_to_string(group.join("cpu.stat"))
            && let Some(used) = stat
                .lines()
                .find_map(|line| line.strip_prefix("usage_usec "))
        {
            return used.parse::<f64>().ok().map(|used| used / 1e6);
        }
        let ticks: f64 = pids(&group).into_iter().filter_map(ticks).sum();
        Some(ticks / self.ticks_per_second)
    }

    fn groups(&self, lease: &Lease) -> impl Iterator<Item = PathBuf> {
        let job = format!("job_{}", lease.job_id);
        let user = format!("uid_{}", lease.user_id);
        let places = self.roots.iter();
        // The hierarchy that counts CPU time comes first where there is one.
        let mut found: Vec<PathBuf> = places
            .flat_map(|root| [root.join(&user).join(&job), root.join(&job)])
            .collect();
        found.sort_by_key(|path| !path.to_string_lossy().contains("cpuacct"));
        found.into_iter()
    }
}

/// Mount point of a hierarchy, and whether it is of version 2.
fn cgroup_mount(line: &str) -> Option<(PathBuf, bool)> {
    let (places, kind) = line.split_once(" - ")?;
    let version2 = kind.starts_with("cgroup2 ");
    let mount = places.split(' ').nth(4)?;
    (version2 || kind.starts_with("cgroup ")).then(|| (mount.into(), version2))
}

/// The processes of a group and of those below.
fn pids(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(pids(&entry.path()));
        }
    }
    found
}

/// User and system time of a process and of its children that are over (proc(5), fields 14 to 17).
fn ticks(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let times = rest.split(' ').skip(11).take(4);
    times.map(|field| field.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_apart() {
        let one = "33 25 0:29 / /sys/fs/cgroup/devices rw shared:9 - cgroup cgroup rw,devices";
        let two = "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        let none = "29 1 8:1 / / rw - ext4 /dev/sda1 rw";
        let mount = |line| cgroup_mount(line);
        assert_eq!(mount(one), Some(("/sys/fs/cgroup/devices".into(), false)));
        assert_eq!(mount(two), Some(("/sys/fs/cgroup".into(), true)));
        assert_eq!(mount(none), None);
    }

    #[test]
    fn time_of_children_counts() {
        let own = std::process::id();
        let before = ticks(own).unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        std::process::Command::new("sh")
            .args(["-c", busy])
            .status()
            .unwrap();
        assert!(ticks(own).unwrap() > before);
    }
}
