//! Processes that hold device nodes open. A descriptor stays valid after the rules change: it works after its job, in
//! any process that received it, and a capability file works for the next instance with its number.
//!
//! Device nodes are identified by their numbers, because a user can give any name to a file. Descriptors that are in no
//! table of a process are not found: a descriptor in transit through a socket, or one registered only with io_uring.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufrac_core::ids::UserId;
use gpufrac_host::files::DeviceNumber;
use gpufrac_host::syscalls::{device_behind, share_files};

use crate::mps::process;

/// A device that a process holds open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    /// The user who started it.
    pub user: UserId,
    pub device: DeviceNumber,
    /// Its entry in /proc.
    entry: PathBuf,
}

impl Holder {
    /// Whether it still holds the device.
    pub fn still_holds(&self) -> bool {
        process::owner(self.pid) == Some(self.user)
            && matches!(device_behind(&self.entry), Ok(Some(device)) if device == self.device)
    }

    /// Kills the process, if it still holds the device and `may` still allows it.
    pub fn kill(&self, may: impl Fn(&Holder) -> bool) {
        process::signal(self.pid, |_| self.still_holds() && may(self));
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Holder {
            pid, user, device, ..
        } = self;
        write!(f, "process {pid} of user {user} holds device {device} open")
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// The processes that hold one of the devices.
    pub holders: Vec<Holder>,
    /// Processes with too many descriptors to be searched, or for which no time was left.
    pub unsearched: Vec<i32>,
}

/// The number of descriptors that a search checks when a job ends: some seconds of work, and more than any user has
/// who does not want to hide one.
pub const MANY: usize = 1 << 22;
/// The number of descriptors that a search checks before a job starts: a second of work, and more than the users of a
/// node usually have.
const SOME: usize = 1 << 20;
/// The number of descriptors that a search checks while others wait for a lock: much less than a second of work.
pub const FEW: usize = 1 << 17;
/// How long [`of_devices`] searches.
const SECOND: Duration = Duration::from_secs(1);

/// Searches for processes of the users in `of` that hold a device in `wanted`, those with few descriptors first,
/// until `most` descriptors were checked. Root's processes are never searched: root needs no descriptor to open a
/// device.
pub fn search(
    of: impl Fn(UserId) -> bool,
    wanted: impl Fn(DeviceNumber) -> bool,
    most: usize,
) -> Search {
    let suspects = pids().filter(|pid| !is_roots(*pid));
    let mut suspects: Vec<Suspect> = suspects.filter_map(Suspect::read).collect();
    suspects.retain(|suspect| suspect.user != UserId::ROOT && of(suspect.user));
    suspects.sort_by_key(|suspect| suspect.table_size);
    let mut search = Search::default();
    let mut left = most;
    for suspect in suspects {
        if !suspect.search(&wanted, &mut left, &mut search.holders) {
            search.unsearched.push(suspect.pid);
        }
    }
    search
}

/// The processes of all users, root's too, but this one, that hold a device in `wanted` open: root's first, as a user
/// can start many processes, then those with few descriptors, until `most` descriptors were checked or a second is
/// over.
pub fn of_devices(wanted: impl Fn(DeviceNumber) -> bool, most: usize) -> Search {
    let begun = Instant::now();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let others = pids().filter(|pid| *pid != own);
    let mut others: Vec<Suspect> = others.filter_map(Suspect::read).collect();
    others.sort_by_key(|process| (process.user != UserId::ROOT, process.table_size));
    let mut search = Search::default();
    let mut left = most;
    for process in others {
        let is_late = begun.elapsed() > SECOND;
        if is_late || !process.search(&wanted, &mut left, &mut search.holders) {
            search.unsearched.push(process.pid);
        }
    }
    search
}

/// The processes of such a search, each once.
pub fn pids_of(found: &[Holder]) -> Vec<i32> {
    let mut pids: Vec<i32> = found.iter().map(|holder| holder.pid).collect();
    pids.dedup();
    pids
}

/// Whether a process is root's by the owner of its folder in /proc, which is the user that it runs as. Reading the
/// owner costs the kernel a tenth of reading the other data. A set-uid program of root that a user started has the
/// user's group.
fn is_roots(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|folder| (folder.uid(), folder.gid()) == (0, 0))
}

/// How long a search is reused: a descriptor that is opened later could also be opened after a new search.
const FRESH: Duration = Duration::from_millis(50);

/// The capability files that users' processes hold open.
#[derive(Debug)]
pub struct HeldCaps {
    holders: Vec<Holder>,
    /// When the search began.
    begun: Instant,
    /// Processes that could not be searched.
    pub unsearched: Vec<i32>,
}

impl HeldCaps {
    /// Searches for them. `major` is the major number of capability files.
    pub fn search(major: u32) -> HeldCaps {
        let begun = Instant::now();
        let Search {
            holders,
            unsearched,
        } = search(|_| true, |device| device.major == major, SOME);
        HeldCaps {
            holders,
            begun,
            unsearched,
        }
    }

    /// Searches again if the last search is old, for files that were opened or passed on since then; briefly, because
    /// others wait for the GPU.
    pub fn look_again(&mut self, major: u32) {
        if self.begun.elapsed() < FRESH {
            return;
        }
        let since = search(|_| true, |device| device.major == major, FEW);
        self.holders.extend(since.holders);
    }

    /// A process of another user than `user` that holds one of these files. The user's own processes do not matter.
    pub fn by_others(&self, minors: [u32; 2], user: UserId) -> Option<&Holder> {
        let mut holders = self.holders.iter();
        holders.find(|holder| {
            holder.user != user && minors.contains(&holder.device.minor) && holder.still_holds()
        })
    }
}

/// A process that may hold a device.
struct Suspect {
    pid: i32,
    user: UserId,
    table_size: usize,
}

impl Suspect {
    fn read(pid: i32) -> Option<Suspect> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()
        };
        Some(Suspect {
            pid,
            user: field("Uid:")?.parse().ok()?,
            table_size: field("FDSize:")?.parse().ok()?,
        })
    }

    /// Searches its descriptors, and those of threads with their own table. False if there were too many.
    fn search(
        &self,
        wanted: &impl Fn(DeviceNumber) -> bool,
        left: &mut usize,
        found: &mut Vec<Holder>,
    ) -> bool {
        let pid = self.pid;
        let threads = numbers(Path::new(&format!("/proc/{pid}/task")));
        for thread in threads {
            if thread != pid && share_files(pid, thread) {
                continue;
            }
            let table = PathBuf::from(format!("/proc/{pid}/task/{thread}/fd"));
            for descriptor in numbers(&table) {
                let Some(rest) = left.checked_sub(1) else {
                    return false;
                };
                *left = rest;
                let entry = table.join(descriptor.to_string());
                let Ok(Some(device)) = device_behind(&entry) else {
                    continue;
                };
                if wanted(device) {
                    found.push(Holder {
                        pid,
                        user: self.user,
                        device,
                        entry,
                    });
                }
            }
        }
        true
    }
}

pub(super) fn pids() -> impl Iterator<Item = i32> {
    numbers(Path::new("/proc"))
}

/// The entries of a folder in /proc that are numbers; none if the folder does not exist any more.
fn numbers(folder: &Path) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    /// A process of a user that holds /dev/full open.
    struct Holding(Child);

    impl Holding {
        fn start(user: u32) -> Holding {
            Holding::start_program("sleep".as_ref(), user)
        }

        fn start_program(program: &Path, user: u32) -> Holding {
            test_seed::needs_root();
            let start = || {
                let mut command = Command::new(program);
                let stdin = File::open("/dev/full").unwrap();
                command.arg("1000").uid(user).gid(user).stdin(stdin);
                command.spawn()
            };
            loop {
                match start() {
                    // A child process of another test has the copy open for writing until it runs its own program.
                    Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                        std::thread::yield_now();
                    }
                    child => return Holding(child.unwrap()),
                }
            }
        }
    }

    impl Drop for Holding {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const FULL: DeviceNumber = DeviceNumber { major: 1, minor: 7 };

    #[test]
    fn a_holder_is_found_by_the_number_of_the_device() {
        let mut holding = Holding::start(61_207);
        let search = |user, device, most| {
            super::search(|of| of == UserId(user), |found| found == device, most)
        };
        let found = search(61_207, FULL, FEW);
        let [holder] = &found.holders[..] else {
            panic!("{found:?}");
        };
        assert_eq!(holder.pid, holding.0.id() as i32);
        assert!(found.unsearched.is_empty() && holder.still_holds());
        // Another device, another user, and a search that may check nothing.
        let zero = DeviceNumber { major: 1, minor: 5 };
        assert_eq!(search(61_207, zero, FEW).holders, []);
        assert_eq!(search(61_208, FULL, FEW).holders, []);
        let nothing = search(61_207, FULL, 0);
        assert_eq!(nothing.holders, []);
        assert_eq!(nothing.unsearched, [holder.pid]);
        // A process that may not be killed is skipped.
        holder.kill(|_| false);
        assert!(holder.still_holds());
        holder.kill(|_| true);
        holding.0.wait().unwrap();
        assert!(!holder.still_holds());
    }

    /// Neither a set-uid program, nor one whose memory cannot be read, hides a device.
    #[test]
    fn a_set_uid_or_unreadable_program_cannot_hide_an_open_device() {
        let keep = tempfile::tempdir().unwrap();
        let sleep = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|folder| folder.join("sleep"))
            .find(|path| path.exists());
        for (name, mode) in [("set-uid", 0o4755), ("unreadable", 0o711)] {
            let program = keep.path().join(name);
            fs::copy(sleep.as_ref().unwrap(), &program).unwrap();
            for (path, mode) in [(keep.path(), 0o755), (&program, mode)] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let holding = Holding::start_program(&program, 61_209);
            let found = search(|of| of == UserId(61_209), |found| found == FULL, FEW);
            let pids: Vec<i32> = found.holders.iter().map(|holder| holder.pid).collect();
            assert_eq!(pids, [holding.0.id() as i32], "{name}");
        }
        // The same test excludes root's own processes.
        assert!(is_roots(std::process::id() as i32));
    }
}
