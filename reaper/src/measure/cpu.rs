//! CPU time of jobs, from their control groups.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpufrac_core::lease::Lease;

use crate::key::Key;
use gpufrac_node::clock::BootTime;

#[cfg(test)]
pub(crate) mod tests;

/// The control groups of Slurm's jobs on this node.
pub struct JobGroups {
    /// Folders with `uid_N/job_N`, in hierarchies of version 1.
    roots: Vec<PathBuf>,
    /// Those of them in the hierarchy of the freezer.
    freezers: Vec<PathBuf>,
    /// The folders of both versions that exist, as of the last look; slurmd may create one later.
    present: Vec<PathBuf>,
    /// Those of them with groups that can be frozen.
    freezing: Vec<PathBuf>,
    /// Mount points of version 2.
    mounts: Vec<PathBuf>,
    /// Names of folders with a group for each job, in a slice of a mount point.
    scopes: [String; 2],
    ticks_per_second: f64,
    last: HashMap<Key, (BootTime, f64)>,
}

impl JobGroups {
    /// Finds the groups. Debian's build of Slurm puts the node's name into the name of the folder.
    pub fn find(node: &str) -> JobGroups {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        JobGroups::below(node, &mounts)
    }

    /// `table` is the list of mounts in the format of mountinfo.
    fn below(node: &str, table: &str) -> JobGroups {
        let names = [format!("slurm_{node}"), "slurm".to_owned()];
        let (mut roots, mut freezers, mut mounts) = (Vec::new(), Vec::new(), Vec::new());
        for line in table.lines() {
            match cgroup_mount(line) {
                Some((mount, true)) => mounts.push(mount),
                Some((mount, false)) => {
                    let own = names.iter().map(|name| mount.join(name));
                    if is_freezer(line) {
                        freezers.extend(own.clone());
                    }
                    roots.extend(own);
                }
                None => {}
            }
        }
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
        JobGroups {
            roots,
            freezers,
            present: Vec::new(),
            freezing: Vec::new(),
            mounts,
            scopes: [
                format!("{node}_slurmstepd.scope"),
                "slurmstepd.scope".to_owned(),
            ],
            ticks_per_second: ticks.ok().flatten().unwrap_or(100) as f64,
            last: HashMap::new(),
        }
    }

    /// The number of CPU cores that a job kept busy since the last call for it; None at the first call, or if that is
    /// unknown.
    pub fn cores(&mut self, lease: &Lease, now: BootTime) -> Option<f64> {
        let used = self.seconds(lease)?;
        let (before, then) = self.last.insert(Key::of(lease), (now, used))?;
        let passed = now.since(before).as_secs_f64();
        // The time can decrease: a process ended whose parent did not wait for it.
        (passed > 0.0 && used >= then).then(|| (used - then) / passed)
    }

    /// Whether a job has a process in one of its groups; true if Slurm makes no groups. slurmstepd may leave an empty
    /// group, if the kernel did not release it in time.
    pub fn has_processes(&self, lease: &Lease) -> bool {
        self.present.is_empty() || places(&self.present, lease).any(|group| holds_process(&group))
    }

    /// Whether Slurm has suspended a job: its steps have processes, and all of them are in frozen groups. Only root can
    /// freeze a group; a user who stops his own processes suspends nothing.
    pub fn is_frozen(&self, lease: &Lease) -> bool {
        // One hierarchy has the job's processes.
        places(&self.freezing, lease).find_map(|group| is_frozen_below(&group)) == Some(true)
    }

    /// Forgets all jobs except those that `keys` accepts, and looks where groups are, once for all of them.
    pub fn look(&mut self, keys: impl Fn(&Key) -> bool) {
        self.last.retain(|key, _| keys(key));
        let scopes: Vec<PathBuf> = self.scopes().filter(|root| root.is_dir()).collect();
        let with = |roots: &[PathBuf]| -> Vec<PathBuf> {
            let own = roots.iter().filter(|root| root.is_dir());
            own.chain(&scopes).cloned().collect()
        };
        (self.present, self.freezing) = (with(&self.roots), with(&self.freezers));
    }

    fn seconds(&self, lease: &Lease) -> Option<f64> {
        let group = self.group(lease)?;
        let nanoseconds = fs::read_to_string(group.join("cpuacct.usage")).unwrap_or_default();
        if let Ok(used) = nanoseconds.trim().parse::<f64>() {
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

    /// The possible folders of version 2.
    fn scopes(&self) -> impl Iterator<Item = PathBuf> {
        // `CgroupSlice` in cgroup.conf sets the name of the slice.
        let slices = self.mounts.iter().flat_map(|mount| slices(mount));
        slices.flat_map(|slice| self.scopes.each_ref().map(|scope| slice.join(scope)))
    }

    fn group(&self, lease: &Lease) -> Option<PathBuf> {
        let mut found: Vec<PathBuf> = places(&self.present, lease)
            .filter(|group| group.is_dir())
            .collect();
        // The hierarchy that counts CPU time comes first.
        found.sort_by_key(|path| !path.to_string_lossy().contains("cpuacct"));
        found.into_iter().next()
    }
}

/// The possible folders of a job's groups.
fn places<'a>(roots: &'a [PathBuf], lease: &'a Lease) -> impl Iterator<Item = PathBuf> + 'a {
    let job = format!("job_{}", lease.job_id);
    let user = format!("uid_{}", lease.user_id);
    roots.iter().flat_map(move |root| {
        let by_id = [root.join(&user).join(&job), root.join(&job)];
        let by_sluid = lease.sluid.iter().map(|sluid| root.join(sluid));
        by_id.into_iter().chain(by_sluid)
    })
}

/// Whether a process is in a group or below it.
fn holds_process(group: &Path) -> bool {
    let own = fs::read_to_string(group.join("cgroup.procs"));
    if own.is_ok_and(|text| !text.trim().is_empty()) {
        return true;
    }
    folders(group).any(|folder| holds_process(&folder))
}

/// The groups below a group.
fn folders(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

/// The step in which a job's container is: it is not suspended with the others, nor are Slurm's own programs, which
/// version 2 has in groups of this name.
const NOT_SUSPENDED: [&str; 2] = ["step_extern", "slurm"];

/// Whether all processes in a group and in those below are frozen; None where there is no process, or where the
/// hierarchy freezes nothing.
fn is_frozen(group: &Path) -> Option<bool> {
    let is_empty = |text: String| text.trim().is_empty();
    match fs::read_to_string(group.join("cgroup.procs")).map(is_empty) {
        Ok(false) if says_frozen(group)? => Some(is_frozen_below(group) != Some(false)),
        Ok(false) => Some(false),
        _ => is_frozen_below(group),
    }
}

/// The same of the groups below alone: with version 1 slurmstepd is in the group of the job itself, and is never
/// frozen.
fn is_frozen_below(group: &Path) -> Option<bool> {
    let suspended =
        folders(group).filter(|folder| !NOT_SUSPENDED.iter().any(|name| folder.ends_with(name)));
    let mut below = suspended.filter_map(|folder| is_frozen(&folder)).peekable();
    below.peek()?;
    // The first group that runs decides.
    Some(below.all(|frozen| frozen))
}

/// `freezer.state` of version 1 says it also for a group above (cgroup-v1/freezer-subsystem.rst), `cgroup.events` of
/// version 2 too (cgroup-v2.rst).
fn says_frozen(group: &Path) -> Option<bool> {
    if let Ok(state) = fs::read_to_string(group.join("freezer.state")) {
        return Some(state.trim() == "FROZEN");
    }
    let events = fs::read_to_string(group.join("cgroup.events")).ok()?;
    let frozen = events
        .lines()
        .find_map(|line| line.strip_prefix("frozen "))?;
    Some(frozen.trim() == "1")
}

/// The slices at the top of a hierarchy.
fn slices(mount: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(mount).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_slice = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "slice");
    paths.filter(is_slice).collect()
}

/// Whether a mount of version 1 has the freezer.
fn is_freezer(line: &str) -> bool {
    let options = line.rsplit(' ').next().unwrap_or_default();
    options.split(',').any(|option| option == "freezer")
}

/// The mount point of a hierarchy, and whether it is of version 2.
fn cgroup_mount(line: &str) -> Option<(PathBuf, bool)> {
    let (places, kind) = line.split_once(" - ")?;
    let version2 = kind.starts_with("cgroup2 ");
    let mount = places.split(' ').nth(4)?;
    (version2 || kind.starts_with("cgroup ")).then(|| (mount.into(), version2))
}

/// The pids in a group and below it.
fn pids(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    found.extend(folders(group).flat_map(|folder| pids(&folder)));
    found
}

/// User and system time of a process and of its ended children, in ticks (proc(5), fields 14 to 17).
fn ticks(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let times = rest.split(' ').skip(11).take(4);
    times.map(|field| field.parse::<f64>().ok()).sum()
}
