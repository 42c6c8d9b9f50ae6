//! Remaining access of an ended job to its devices: open descriptors, and, on control groups of version 1, a group
//! that still exists.
//!
//! Nothing here fails: remains that cannot be removed are logged, and the prolog of the next job searches again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_host::cgroup::{MOUNTS, Mount, has_devices};
use gpufrac_host::files::{DeviceNumber, FileError, RootDir};
use gpufrac_host::log::JobLog;

use crate::gpu::holders::{self, Holder, Search};
use crate::gpu::strangers;
use crate::mps::process;
use crate::node::Node;
use crate::state::leases::StoreError;
use crate::state::record::{NodeRecord, RecordError};

/// How long processes are killed that start new ones meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// As [`PATIENCE`], while others wait.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(10);
/// How long devices are denied in a group: with many groups below it each rule takes time.
const DENIAL: Duration = Duration::from_secs(10);
/// The most groups below that of a job that are searched.
const MOST_GROUPS: usize = 10_000;

/// The effort of a search for processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// No program waits: up to seconds, if a user causes it. A user with more open files than the limit may hide a
    /// device.
    Thorough,
    /// Other programs wait for the GPU's lock.
    Quick,
}

/// Kills the processes of a lease's user that hold its devices open, wherever they run: in another job, or in none.
/// Processes in the group of a job with a lease of the same device may hold it.
///
/// Processes of other users are not killed, because every user can pass a descriptor to a process that accepts it. No
/// instance is granted while they hold its files ([`holders::HeldCaps`]).
pub fn end_holders(node: &Node, lease: &Lease, effort: Effort, log: &JobLog) {
    let failed = |why: RightsError| {
        // The processes of the job could not be looked at. Cure: Follow the text.
        log.error(format!(
            "ending the processes that hold the job's devices failed: {why}"
        ));
    };
    let mut rights = match Rights::beside(lease, node) {
        Ok(rights) => rights,
        Err(why) => return failed(why),
    };
    let (most, patience) = match effort {
        Effort::Thorough => (holders::MANY, PATIENCE),
        Effort::Quick => (holders::FEW, SHORT_PATIENCE),
    };
    let start = Instant::now();
    let mut said = Vec::new();
    let mut say = |pid: i32, what: String| {
        if !said.contains(&pid) {
            // The process survived its job with an open device. Cure: Nothing: it is killed.
            log.warning(format!("{what}: it is killed"));
            said.push(pid);
        }
    };
    loop {
        let (holders, hiding) = rights.offenders(lease.user_id, most);
        let hiding = match effort {
            Effort::Thorough => hiding,
            Effort::Quick => Vec::new(),
        };
        if holders.is_empty() && hiding.is_empty() {
            return;
        }
        if start.elapsed() > patience {
            // The processes hang in the driver. Cure: Look for Xid errors; reboot the node if they stay.
            return log.error(format!(
                "processes of user {} that hold devices of the job open do not end",
                lease.user_id
            ));
        }
        // The user's next job may have begun on this GPU since. Its lease was written before its processes began, so
        // that it is there for each process that the search found.
        rights = match Rights::beside(lease, node) {
            Ok(rights) => rights,
            Err(why) => return failed(why),
        };
        let is_foreign = |holder: &&Holder| !rights.has(holder.pid, Some(holder.device));
        for holder in holders.iter().filter(is_foreign) {
            say(holder.pid, format!("{holder}, a device of the job"));
            holder.kill(|holder| !rights.has(holder.pid, Some(holder.device)));
        }
        for pid in hiding.into_iter().filter(|pid| !rights.has(*pid, None)) {
            say(
                pid,
                format!("process {pid} has more open files than can be looked at for the job's"),
            );
            process::signal(pid, |pid| {
                process::owner(pid) == Some(lease.user_id) && !rights.has(pid, None)
            });
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes that may hold the devices of a lease that ends.
struct Rights {
    record: NodeRecord,
    devices: Vec<DeviceNumber>,
    /// The lease that ends.
    lease: Lease,
    /// The leases of other jobs that have one of the devices, too.
    others: Vec<Lease>,
}

impl Rights {
    fn beside(lease: &Lease, node: &Node) -> Result<Rights, RightsError> {
        let record = node.record()?;
        let devices = record.devices(lease);
        let mut others = node.leases()?.of_gpu(&lease.slice.gpu_uuid)?;
        others.retain(|other| {
            let theirs = record.devices(other);
            let is_running = other.job_id != lease.job_id && other.state != LeaseState::Kept;
            is_running && devices.iter().any(|device| theirs.contains(device))
        });
        Ok(Rights {
            record,
            devices,
            lease: lease.clone(),
            others,
        })
    }

    /// Whether a process belongs to a job that has the device; without a device, to a job that has any of them.
    fn has(&self, pid: i32, device: Option<DeviceNumber>) -> bool {
        let has_device = |other: &&Lease| {
            device.is_none_or(|device| self.record.devices(other).contains(&device))
        };
        let group = process::job_group(pid);
        let neighbours: Vec<&Lease> = self.others.iter().chain([&self.lease]).collect();
        let mut others = self.others.iter().filter(has_device);
        others.any(|other| match &group {
            // In doubt the process stays: after an upgrade of Slurm it may be of a step of the other job.
            Some(group) => other.owns_group(group, &neighbours) != Some(false),
            None => strangers::is_server(pid, other) || self.may_be_client(other),
        })
    }

    /// Whether a process of the user in no job may be a client of another job of the user, at the same daemon.
    fn may_be_client(&self, other: &Lease) -> bool {
        let folders = [other, &self.lease].map(|lease| lease.slice.mps().map(|mps| &mps.folder));
        other.user_id == self.lease.user_id && folders[0].is_some() && folders[0] == folders[1]
    }

    /// The processes of a user that hold a device without permission, and those that could not be searched.
    fn offenders(&self, user: UserId, most: usize) -> (Vec<Holder>, Vec<i32>) {
        let wanted = |device| self.devices.contains(&device);
        let Search {
            mut holders,
            mut unsearched,
        } = holders::search(|of| of == user, wanted, most);
        holders.retain(|holder| !self.has(holder.pid, Some(holder.device)));
        unsearched.retain(|pid| !self.has(*pid, None));
        (holders, unsearched)
    }
}

/// The reasons why the permitted holders are not known.
#[derive(Debug, thiserror::Error)]
enum RightsError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Closes the devices of the pools to the remains of a job's group on control groups of version 1, kills its
/// processes and removes it. With Slurm 22.05 users own the groups of tasks: they can move processes of their other
/// jobs into them, which Slurm then finds in no job.
pub fn end_group(node: &Node, job_id: JobId, log: &JobLog) {
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    let groups: Vec<PathBuf> = Mount::list(&mounts, has_devices)
        .flat_map(|mount| groups_of(&mount.point, &node.name, job_id))
        .collect();
    for group in groups {
        let start = Instant::now();
        match node.record() {
            Ok(record) => {
                if let Err(error) = deny(&group, &record, start + DENIAL) {
                    log.error(format!("`{}`: {error}", group.display()));
                }
            }
            Err(error) => log.error(error),
        }
        let start = Instant::now();
        while !remove(&group, MOST_GROUPS) {
            let left = kill(&group, log);
            if start.elapsed() > PATIENCE {
                // A job made too many control groups to remove. Cure: Remove the folder by hand when the job has ended.
                log.error(format!(
                    "`{}` is not removed: its user created too many groups in it",
                    group.display()
                ));
                break;
            }
            if left == 0 && folders(&group, MOST_GROUPS).len() < MOST_GROUPS {
                // slurmstepd itself, which leaves the group at the end of its step.
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The groups of a job below one mount: `slurm_NODE/uid_N/job_N`; some builds of Slurm leave out the node's name.
fn groups_of(mount: &Path, node: &str, job_id: JobId) -> Vec<PathBuf> {
    let roots = [format!("slurm_{node}"), "slurm".to_owned()].map(|name| mount.join(name));
    let Some(root) = roots.iter().find(|root| root.is_dir()) else {
        return Vec::new();
    };
    let users = fs::read_dir(root).into_iter().flatten().flatten();
    let users = users.filter(|user| user.file_name().to_string_lossy().starts_with("uid_"));
    let groups = users.map(|user| user.path().join(format!("job_{job_id}")));
    groups.filter(|group| group.is_dir()).collect()
}

/// The reasons why devices stay open in the remains of a group.
#[derive(Debug, thiserror::Error)]
enum DenyError {
    #[error(transparent)]
    File(#[from] FileError),
    // It took too long: the kernel visits all groups below for each rule.
    /// A job made too many control groups.
    /// Cure: Remove the folder by hand when the job has ended.
    #[error("not all devices are denied: the user created too many groups; remove them")]
    TooLong,
}

/// Denies every device of the pools in a group and in those below it, GPUs first.
fn deny(group: &Path, record: &NodeRecord, until: Instant) -> Result<(), DenyError> {
    let folder = RootDir::open(group)?;
    let rules = record.rules(&[]).into_iter();
    for rule in rules.filter(|rule| rule.is_alone()) {
        if Instant::now() > until {
            return Err(DenyError::TooLong);
        }
        // The kernel accepts one rule for each write.
        folder.write_command("devices.deny", &rule.to_string())?;
    }
    Ok(())
}

/// Kills users' processes in a group and in those below it; returns their number.
fn kill(group: &Path, log: &JobLog) -> usize {
    let mut count = 0;
    for folder in folders(group, MOST_GROUPS) {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok()) {
            let is_users = |pid| process::owner(pid).is_some_and(|owner| owner != UserId::ROOT);
            if !is_users(pid) {
                continue;
            }
            count += 1;
            // The process survived its job. Cure: Nothing: it is killed.
            log.warning(format!(
                "process {pid} is in the remains of the job's control group: it is killed"
            ));
            process::signal(pid, |pid| is_users(pid) && is_in(pid, group));
        }
    }
    count
}

/// Whether a process is in a group of this name, in any hierarchy.
fn is_in(pid: i32, group: &Path) -> bool {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let name = group.file_name().and_then(|name| name.to_str());
    memberships
        .split(['/', '\n'])
        .any(|part| Some(part) == name)
}

/// Removes a group with those below it; returns whether it is gone. The kernel keeps a group with processes.
fn remove(group: &Path, most: usize) -> bool {
    for folder in folders(group, most) {
        let _ = fs::remove_dir(folder);
    }
    !group.exists()
}

/// A group and those below it, children before their parents; at most as many as can be searched in a moment, because
/// users can make any number of them.
fn folders(group: &Path, most: usize) -> Vec<PathBuf> {
    let mut found = vec![group.to_owned()];
    let mut read = 0;
    while read < found.len() && found.len() < most {
        let entries = fs::read_dir(&found[read]).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let room = most - found.len();
        found.extend(below.map(|entry| entry.path()).take(room));
        read += 1;
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_end_are_removed_bit_by_bit() {
        let place = tempfile::tempdir().unwrap();
        let group = place.path().join("job_7");
        let deep = group.join("step_0/".to_owned() + &"a/".repeat(50));
        fs::create_dir_all(deep).unwrap();
        for number in 0..100 {
            fs::create_dir(group.join("step_0").join(number.to_string())).unwrap();
        }
        let found = folders(&group, 100);
        assert_eq!((found.len(), found.last()), (100, Some(&group)));
        for (position, folder) in found.iter().enumerate() {
            let mut later = found.iter().skip(position + 1);
            assert!(!later.any(|later| later.starts_with(folder)));
        }
        let rounds = (1..10).find(|_| remove(&group, 100));
        assert!(rounds.is_some_and(|rounds| rounds > 1), "{rounds:?}");
    }
}
