//! Processes that hold device nodes open. A descriptor stays valid after the rules change: it works after its job, in
//! any process that received it, and a capability file works for the next instance with its number.
//!
//! Device nodes are identified by their numbers, because a user can give any name to a file. Descriptors that are in
//! no table of a process are not seen: a descriptor in transit through a socket, or registered only with io_uring.

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
    /// The process.
    pub pid: i32,
    /// The user who started it.
    pub user: UserId,
    /// What it holds.
    pub device: DeviceNumber,
    /// Its entry in /proc.
    entry: PathBuf,
}

impl Holder {
    /// Whether it still holds what it held.
    pub fn still_holds(&self) -> bool {
        process::owner(self.pid) == Some(self.user)
            && matches!(device_behind(&self.entry), Ok(Some(device)) if device == self.device)
    }

    /// Kills the process, if it still holds the device and `may` still holds for it.
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

/// What a search found.
#[derive(Debug, Default)]
pub struct Search {
    /// The processes that hold one of the devices.
    pub holders: Vec<Holder>,
    /// Processes whose descriptors were too many to be looked at.
    pub unsearched: Vec<i32>,
}

/// How many descriptors a search looks at when a job ends: some seconds' work, and more than the processes of any user have
/// who does not want to hide one.
pub const MANY: usize = 1 << 22;
/// How many it looks at before a job starts: a second's work, and more than the users of a node usually have.
const SOME: usize = 1 << 20;
/// How many it looks at while others wait for a lock: much less than a second's work.
pub const FEW: usize = 1 << 17;

/// Looks for processes of the users in `of` that hold a device in `wanted`, those with few descriptors first, until
/// `most` descriptors were looked at. Root's processes are never looked at: root needs no descriptor to open a device.
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

/// Whether a process is root's by the owner of its folder, which costs the kernel a tenth of all that it can tell: that owner is what
/// the process runs as. A set-uid program of root that a user started has the user's group.
fn is_roots(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|folder| (folder.uid(), folder.gid()) == (0, 0))
}

/// For how long a search is as good as another one: a descriptor that comes later could as well come after that.
const FRESH: Duration = Duration::from_millis(50);

/// The capability files that users' processes hold open.
#[derive(Debug)]
pub struct HeldCaps {
    holders: Vec<Holder>,
    /// When they were looked for.
    begun: Instant,
    /// Processes that could not be looked at.
    pub unsearched: Vec<i32>,
}

impl HeldCaps {
    /// Looks for them. `major`: that of capability files.
    #[must_use]
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

    /// Looks again, where that was a while ago, for what was opened or handed on since then: briefly, as others wait for the GPU.
    pub fn look_again(&mut self, major: u32) {
        if self.begun.elapsed() < FRESH {
            return;
        }
        let since = search(|_| true, |device| device.major == major, FEW);
        self.holders.extend(since.holders);
    }

    /// A process of another user than `user` that holds one of these files. The user's own processes do not matter.
    #[must_use]
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
    /// How many descriptors its table has room for.
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

    /// Looks at its descriptors, and at those of threads that have a table of their own. False: they were too many.
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

/// Every pid that there is.
fn pids() -> impl Iterator<Item = i32> {
    numbers(Path::new("/proc"))
}

/// The entries of a folder of /proc that are numbers; none where it is gone.
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

    /// A process of a user that holds /dev/full.
    struct Holding(Child);

    impl Holding {
        fn start(user: u32) -> Option<Holding> {
            Holding::start_program("sleep".as_ref(), user)
        }

        fn start_program(program: &Path, user: u32) -> Option<Holding> {
            if !nix::unistd::geteuid().is_root() {
                eprintln!("skipped: only root can look at the processes of others");
                return None;
            }
            let start = || {
                let mut command = Command::new(program);
                let stdin = File::open("/dev/full").unwrap();
                command.arg("1000").uid(user).gid(user).stdin(stdin);
                command.spawn()
            };
            loop {
                match start() {
                    // What another test just forked still has the copy open for writing, until it runs its own program.
                    Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                        std::thread::yield_now();
                    }
                    child => return Some(Holding(child.unwrap())),
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
        let Some(mut holding) = Holding::start(61_207) else {
            return;
        };
        let search = |user, device, most| {
            super::search(|of| of == UserId(user), |found| found == device, most)
        };
        let found = search(61_207, FULL, FEW);
        let [holder] = &found.holders[..] else {
            panic!("{found:?}");
        };
        assert_eq!(holder.pid, holding.0.id() as i32);
        assert!(found.unsearched.is_empty() && holder.still_holds());
        // Another device, another user, and a search that may not look.
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

    /// Behind a set-uid program, or one whose memory nobody may read.
    #[test]
    fn nobody_hides_a_device_behind_the_rights_of_a_program() {
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
            let Some(holding) = Holding::start_program(&program, 61_209) else {
                return;
            };
            let found = search(|of| of == UserId(61_209), |found| found == FULL, FEW);
            let pids: Vec<i32> = found.holders.iter().map(|holder| holder.pid).collect();
            assert_eq!(pids, [holding.0.id() as i32], "{name}");
        }
        // Root's own are left out by the same question.
        assert!(is_roots(std::process::id() as i32));
    }
}
