//! Who keeps a place or a GPU in use, in words for messages: the processes of all users, root's too, that hold its
//! device files open, else the programs that may hold it by a handle in the driver, which no list of processes shows
//! (NVIDIA/DCGM issues 95 and 276).
//!
//! A user can give a process any name, program file and, below the own unit, control group. So a process is taken for
//! a daemon of the system only if it runs as root or as a user of the system, outside of jobs.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use gpufrac_core::ids::{DeviceMinor, UserId};
use gpufrac_core::lease::Instance;
use gpufrac_host::files::DeviceNumber;

use crate::gpu::capability_files::Caps;
use crate::gpu::holders::{self, Holder};
use crate::mps::process;

/// How many processes a message names.
const MOST_NAMED: usize = 4;
/// How many processes are kept: more help nobody.
const MOST_KEPT: usize = 16;
/// How long /proc is searched for known programs.
const PATIENCE: Duration = Duration::from_secs(1);
/// The length of a process's name in a message, in characters: more than the kernel keeps.
const LONGEST_NAME: usize = 32;
/// The length of a unit's name.
const LONGEST_UNIT: usize = 64;
/// The digits of a container's id that its runtime shows.
const CONTAINER_DIGITS: usize = 12;

/// gpufrac's programs, which are never named.
const OWN: [&str; 4] = [
    "gpufrac",
    "gpufrac-prolog",
    "gpufrac-epilog",
    "gpufrac-reaperd",
];

/// Program files that hold handles in the driver as long as they run, and their purpose.
const KNOWN: [(&str, &str); 14] = [
    ("nv-hostengine", "DCGM's daemon"),
    ("dcgm-exporter", "DCGM's exporter"),
    ("nvidia-persistenced", "the persistence daemon"),
    ("nv-fabricmanager", "the fabric manager"),
    ("nvidia-smi", "nvidia-smi"),
    ("nvidia-device-plugin", "the device plugin of Kubernetes"),
    ("nvidia-mig-manager", "the MIG manager of Kubernetes"),
    ("nvidia-container-runtime-hook", "a container's runtime"),
    ("nvidia-container-cli", "a container's runtime"),
    ("nvidia-ctk", "a container's runtime"),
    ("nvidia_gpu_exporter", "an exporter"),
    ("nvtop", "nvtop"),
    ("netdata", "netdata"),
    ("telegraf", "telegraf"),
];

/// A process that holds a place, or may hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// The name that it gave itself: printable ASCII, at most 32 characters.
    pub name: String,
    /// The user who started it.
    pub user: UserId,
    /// The job, systemd unit or container that it belongs to, as `job 12` or `nvidia-dcgm.service`.
    pub unit: Option<String>,
    /// Its purpose, if it is a known daemon of the system.
    pub daemon: Option<&'static str>,
    in_job: bool,
}

impl Process {
    /// Reads a process; None if it has ended, or is one of gpufrac.
    fn read(pid: i32) -> Option<Process> {
        let user = process::owner(pid)?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let job = process::job_group(pid);
        let is_system = is_system(user) && job.is_none();
        let program = program_of(pid).filter(|_| is_system);
        let program = program.as_deref().unwrap_or_default();
        if user == UserId::ROOT && OWN.contains(&program) {
            return None;
        }
        let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
        let unit = match &job {
            Some(group) => Some(format!("job {}", group.trim_start_matches("job_"))),
            None => unit_in(&groups),
        };
        Some(Process {
            pid,
            name: printable(&comm, LONGEST_NAME),
            user,
            unit,
            daemon: purpose(program),
            in_job: job.is_some(),
        })
    }

    /// Whether an ordinary user started it: such a process can come and go as the user likes. Root's in a job is one
    /// too, as a set-uid program that inherited a file.
    pub fn is_users(&self) -> bool {
        let is_service = || {
            let unit = self.unit.as_ref();
            unit.is_some_and(|unit| unit.ends_with(".service"))
        };
        self.in_job || !is_system(self.user) || self.user != UserId::ROOT && !is_service()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { pid, name, .. } = self;
        match self.daemon {
            Some(purpose) if purpose == name => write!(f, "{purpose} (pid {pid}")?,
            Some(purpose) => write!(f, "{purpose} ({name}, pid {pid}")?,
            None if self.user == UserId::ROOT => write!(f, "`{name}` (pid {pid}")?,
            None => write!(f, "`{name}` of user {} (pid {pid}", self.user)?,
        }
        match &self.unit {
            Some(unit) => write!(f, ", {unit})"),
            None => f.write_str(")"),
        }
    }
}

/// Who holds a place or a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holders {
    /// Processes that hold its device files open.
    Seen(Vec<Process>),
    /// No process is seen to hold it.
    Unseen {
        /// Processes that may hold it in the driver: known programs, and those of the system that have the GPU open.
        running: Vec<Process>,
        /// Whether an ordinary user has processes with too many files to be searched.
        may_be_users: bool,
    },
}

impl Holders {
    /// The holders of an instance's capability files; without an instance, only those that may hold one. Makes no call
    /// of NVML, and takes about a second at most.
    pub fn of_place(caps: &Caps, gpu: DeviceMinor, instance: Option<&Instance>) -> Holders {
        let files = instance.zip(caps.major("nvidia-caps").ok());
        let files = files.map_or(vec![], |(instance, major)| {
            let minors = [instance.gi_cap_minor, instance.ci_cap_minor];
            minors.map(|minor| DeviceNumber { major, minor }).to_vec()
        });
        search(&files, caps.gpu_device(gpu).ok(), holders::FEW)
    }

    /// The holders of a GPU's device file.
    pub fn of_gpu(caps: &Caps, gpu: DeviceMinor) -> Holders {
        let device = caps.gpu_device(gpu).ok();
        search(device.as_slice(), None, holders::FEW)
    }

    /// Whether a process of an ordinary user is among those that are seen: then the cause is a user's.
    pub fn is_users(&self) -> bool {
        matches!(self, Holders::Seen(holders) if holders.iter().any(Process::is_users))
    }

    /// Whether nobody was seen, and an ordinary user has processes that could not be searched.
    pub fn may_be_users(&self) -> bool {
        matches!(self, Holders::Unseen { may_be_users, .. } if *may_be_users)
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (processes, one, several) = match self {
            Holders::Seen(holders) => (holders, "holds it", "hold it"),
            Holders::Unseen {
                running,
                may_be_users,
            } => {
                f.write_str("nobody is seen to hold it")?;
                if *may_be_users {
                    f.write_str(", but a user's processes have too many files to be searched")?;
                }
                if running.is_empty() {
                    return Ok(());
                }
                f.write_str("; ")?;
                (running, "runs", "run")
            }
        };
        for (position, process) in processes.iter().take(MOST_NAMED).enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{process}")?;
        }
        if let Some(more @ 1..) = processes.len().checked_sub(MOST_NAMED) {
            write!(f, " and {more} more")?;
        }
        write!(f, " {}", if processes.len() == 1 { one } else { several })
    }
}

/// The processes that hold one of `files`; if there are none, those that may hold a place of the GPU `behind`.
/// `most`: descriptors that are checked.
fn search(files: &[DeviceNumber], behind: Option<DeviceNumber>, most: usize) -> Holders {
    let wanted = |device| files.contains(&device) || behind == Some(device);
    let found = holders::of_devices(wanted, most);
    let (seen, others): (Vec<_>, Vec<_>) = found
        .holders
        .into_iter()
        .partition(|holder| files.contains(&holder.device));
    let read = |found: &[Holder]| {
        holders::pids_of(found)
            .into_iter()
            .filter_map(Process::read)
    };
    let mut seen: Vec<Process> = read(&seen).collect();
    if !seen.is_empty() {
        // A user's process decides about the cause, so it is never cut off.
        seen.sort_by_key(|process| !process.is_users());
        seen.truncate(MOST_KEPT);
        return Holders::Seen(seen);
    }
    let mut running = known_programs();
    let is_new = |found: &Process| running.iter().all(|known| known.pid != found.pid);
    let of_system = read(&others).filter(|found| !found.is_users() && is_new(found));
    let of_system: Vec<Process> = of_system.collect();
    running.extend(of_system);
    running.sort_by_key(|process| (process.is_users(), process.pid));
    running.truncate(MOST_KEPT);
    let mut unsearched = found.unsearched.into_iter().filter_map(Process::read);
    let may_be_users = unsearched.any(|process| process.is_users());
    Holders::Unseen {
        running,
        may_be_users,
    }
}

/// The running processes whose program file has a known name, those of users too.
fn known_programs() -> Vec<Process> {
    let begun = Instant::now();
    holders::pids()
        .take_while(|_| begun.elapsed() < PATIENCE)
        .filter(|pid| program_of(*pid).is_some_and(|program| purpose(&program).is_some()))
        .filter_map(Process::read)
        .collect()
}

fn purpose(program: &str) -> Option<&'static str> {
    let mut known = KNOWN.iter();
    known
        .find(|(name, _)| *name == program)
        .map(|(_, purpose)| *purpose)
}

/// The name of its program file, in the process's own view of the file system, even if the file was replaced since.
fn program_of(pid: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Whether a user is root or one of the system: below systemd's range of ordinary users, or in one of its ranges for
/// services and packages ("Users, Groups, UIDs and GIDs on systemd Systems").
fn is_system(user: UserId) -> bool {
    matches!(user.0, 0..1000 | 60_001..=65_534)
}

/// The unit or container in the text of /proc/PID/cgroup: the outermost, because a user can have groups of any name
/// below the own one.
fn unit_in(groups: &str) -> Option<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let of_systemd = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    let mut lines = groups.lines().filter(of_systemd).filter_map(path);
    lines.find_map(|path| {
        let mut runtime = None;
        path.split('/').find_map(|part| {
            if part.ends_with(".service") {
                return Some(shortened(part));
            }
            if let Some(scope) = part.strip_suffix(".scope") {
                return Some(shortened(scope));
            }
            if is_id(part) {
                let runtime = runtime.unwrap_or("container");
                return Some(shortened(&format!("{runtime}-{part}")));
            }
            runtime = runtime.or(Some(part)).filter(|runtime| !runtime.is_empty());
            None
        })
    })
}

/// A container's id.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A unit with the id of its container, if it ends with one, as the runtime shows it.
fn shortened(unit: &str) -> String {
    match unit.rsplit_once('-') {
        Some((runtime, id)) if is_id(id) => {
            let id: String = id.chars().take(CONTAINER_DIGITS).collect();
            printable(format!("{runtime}-{id}").as_bytes(), LONGEST_UNIT)
        }
        _ => printable(unit.as_bytes(), LONGEST_UNIT),
    }
}

/// A text of a process for one line of a message.
fn printable(text: &[u8], longest: usize) -> String {
    let text = text.trim_ascii_end().iter().take(longest);
    let shown = text.map(|byte| match byte {
        b' ' | b'!'..=b'~' if *byte != b'`' => char::from(*byte),
        _ => '?',
    });
    shown.collect()
}

#[cfg(test)]
mod tests;
