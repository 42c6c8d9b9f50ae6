//! The processes of a control daemon, found in /proc.
//!
//! A user can give a process any name, arguments and environment, start a set-uid program with them, and start
//! thousands of processes. The daemon's pid file is writable for every user who can reach it. A user can delay the
//! reading of a process's memory (arguments, environment). So the kernel's data are checked first: ids, the program's
//! file, session, control group. A daemon and a server of root are programs of root that root runs. A server that runs
//! as a job's user is in the session of such a daemon, which only its descendants can be in; and in a session of the
//! kernel's audit, which root started for the daemon and which only root can leave.

use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufrac_core::ids::UserId;
use gpufrac_core::lease;
use gpufrac_host::syscalls::ProcessHandle;

const PIPE: &[u8] = b"CUDA_MPS_PIPE_DIRECTORY=";
/// The name of both programs, as the kernel stores it.
const COMM: &[u8] = b"nvidia-cuda-mps";
const CONTROL: &str = "nvidia-cuda-mps-control";
const SERVER: &str = "nvidia-cuda-mps-server";
const SET_ID_BITS: u32 = 0o6000;
/// How long killed processes of a user are waited for when those of root have ended: there may be many, and they
/// block nothing.
const USERS_LIMIT: Duration = Duration::from_millis(500);
/// How many searches in a row must find no process.
const EMPTY_LOOKS: u32 = 2;
/// The pause between two searches: while no process was found, and while killed processes end.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
const END_PAUSE: Duration = Duration::from_millis(5);
/// How many checks must find a thread waiting before it counts as stuck.
const STUCK_LOOKS: u32 = 20;
const STUCK_PAUSE: Duration = Duration::from_millis(25);

/// The role of a process for its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Control,
    /// A server that runs as root; it has the contexts of its clients.
    Server,
    /// A server that runs as the job's user, or a process that the user made of it.
    UsersServer,
}

/// A process of the daemon of one folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpsProcess {
    pub pid: i32,
    pub role: Role,
}

/// The processes that survived a kill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Pids of processes of root.
    pub of_root: Vec<i32>,
    /// The number of processes of the job's user.
    pub of_user: usize,
}

/// A control daemon with its servers, and the data by which they are identified.
#[derive(Debug)]
pub struct Family<'a> {
    /// The pipe directory of its clients.
    pub pipe: &'a Path,
    /// The user that servers may run as, besides root.
    pub server_user: UserId,
    /// The pid of the last daemon, which is also its session, from root's file.
    pub last: Option<i32>,
    /// The audit session that was begun for it, from root's file.
    pub audit: Option<AuditSession>,
}

/// The number of a session of the kernel's audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSession(pub u32);

impl AuditSession {
    /// Begins a session for the later child processes of this thread, on behalf of a user. None if the kernel has no
    /// audit.
    pub fn begin(user: UserId) -> Option<Self> {
        // Only for this thread, because a thread cannot write it for another one.
        fs::write("/proc/thread-self/loginuid", user.to_string()).ok()?;
        Self::read(Path::new("/proc/thread-self"))
    }

    fn of(pid: i32) -> Option<Self> {
        Self::read(&proc(pid))
    }

    fn read(process: &Path) -> Option<Self> {
        let text = fs::read_to_string(process.join("sessionid")).ok()?;
        let number = text.trim().parse().ok();
        // The value of a process without a session.
        number.filter(|number| *number != u32::MAX).map(Self)
    }
}

impl Family<'_> {
    /// The running processes.
    pub fn members(&self) -> Vec<MpsProcess> {
        self.members_in(&mut Vec::new())
    }

    /// The pid of the running daemon. A node can have thousands of processes, so the last daemon is looked at first,
    /// then the youngest processes.
    pub fn control(&self) -> Option<i32> {
        let is_control = |pid: &i32| {
            let found = has_name(*pid).then(|| self.of_root(*pid)).flatten();
            found.is_some_and(|found| found.role == Role::Control)
        };
        self.last.filter(is_control).or_else(|| {
            let all: Vec<i32> = pids().collect();
            all.into_iter().rev().find(is_control)
        })
    }

    /// `sessions`: those of daemons that were seen before; those of running daemons are added.
    fn members_in(&self, sessions: &mut Vec<i32>) -> Vec<MpsProcess> {
        if self.server_user == UserId::ROOT {
            let named = pids().filter(|pid| has_name(*pid));
            return named.filter_map(|pid| self.of_root(pid)).collect();
        }
        let running = pids().filter_map(|pid| Some((pid, Stat::of(pid).filter(Stat::is_alive)?)));
        let running: Vec<(i32, Stat)> = running.collect();
        let named = running.iter().filter(|(_, stat)| is_name(&stat.name));
        let mut found: Vec<MpsProcess> = named.filter_map(|(pid, _)| self.of_root(*pid)).collect();
        for daemon in found.iter().filter(|found| found.role == Role::Control) {
            if !sessions.contains(&daemon.pid) {
                sessions.push(daemon.pid);
            }
        }
        // If another process has the pid now, the session with this number had ended before.
        let is_last =
            |session| self.last == Some(session) && !running.iter().any(|(pid, _)| *pid == session);
        let inside = |stat: &Stat| sessions.contains(&stat.session) || is_last(stat.session);
        let servers = running
            .iter()
            .filter(|(pid, stat)| inside(stat) || self.is_audited(*pid));
        let servers = servers.filter(|(pid, _)| self.is_users(*pid));
        found.extend(servers.map(|(pid, _)| MpsProcess {
            pid: *pid,
            role: Role::UsersServer,
        }));
        found
    }

    /// A program of MPS that root runs for this folder.
    fn of_root(&self, pid: i32) -> Option<MpsProcess> {
        let role = role_of_roots(pid)?;
        // Root started it, so its environment is root's and can be read.
        let environment = fs::read(proc(pid).join("environ")).ok()?;
        let mut own = environment.split(|byte| *byte == 0);
        let own = own.find_map(|line| line.strip_prefix(PIPE))?;
        let pipe = Path::new(std::str::from_utf8(own).ok()?);
        (pipe == self.pipe).then_some(MpsProcess { pid, role })
    }

    /// Whether it is a descendant of the daemon, wherever it moved.
    fn is_audited(&self, pid: i32) -> bool {
        self.audit.is_some() && AuditSession::of(pid) == self.audit
    }

    /// Whether it is a server of the user. Slurm ends the processes in a job's control group.
    fn is_users(&self, pid: i32) -> bool {
        owner(pid) == Some(self.server_user) && job_group(pid).is_none()
    }

    /// Kills all processes and waits until they end; returns those that remain.
    pub fn kill(&self, limit: Duration) -> Left {
        let sessions = RefCell::new(Vec::new());
        let members = || self.members_in(&mut sessions.borrow_mut());
        let still = |process: &MpsProcess| match process.role {
            Role::UsersServer => {
                let session = Stat::of(process.pid).map(|stat| stat.session);
                let inside = session.is_some_and(|own| sessions.borrow().contains(&own))
                    || session == self.last
                    || self.is_audited(process.pid);
                inside && self.is_users(process.pid)
            }
            Role::Control | Role::Server => self.of_root(process.pid).is_some(),
        };
        kill_all(limit, members, |process| {
            signal(process.pid, |_| still(process));
        })
    }
}

/// Kills the processes that `find` finds until it finds none twice: a reading of /proc can miss a process that has
/// just started with a lower pid, or that is between two programs and has no environment.
fn kill_all(
    limit: Duration,
    mut find: impl FnMut() -> Vec<MpsProcess>,
    kill: impl Fn(&MpsProcess),
) -> Left {
    let start = Instant::now();
    let (mut empty_looks, mut pause) = (0, LOOK_PAUSE);
    loop {
        let mut found = find();
        let is_users = |process: &&MpsProcess| process.role == Role::UsersServer;
        let of_user = found.iter().filter(is_users).count();
        let limit = if of_user == found.len() { USERS_LIMIT } else { limit };
        if found.is_empty() {
            empty_looks += 1;
        } else {
            (empty_looks, pause) = (0, END_PAUSE);
        }
        if empty_looks == EMPTY_LOOKS || !found.is_empty() && start.elapsed() > limit {
            found.retain(|process| !is_users(&process));
            return Left {
                of_root: found.into_iter().map(|process| process.pid).collect(),
                of_user,
            };
        }
        // The daemon first, because it would start a server again.
        found.sort_by_key(|process| process.role != Role::Control);
        found.iter().for_each(&kill);
        std::thread::sleep(pause);
    }
}

/// The kernel's data about a process in `/proc/PID/stat`.
struct Stat {
    name: Vec<u8>,
    state: u8,
    session: i32,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        Stat::parse(&fs::read(proc(pid).join("stat")).ok()?)
    }

    /// The name is chosen by the process and may contain parentheses.
    fn parse(text: &[u8]) -> Option<Stat> {
        let from = text.iter().position(|byte| *byte == b'(')? + 1;
        let to = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(text.get(to + 1..)?).ok()?;
        let mut words = rest.split_ascii_whitespace();
        Some(Stat {
            name: text.get(from..to)?.to_owned(),
            state: *words.next()?.as_bytes().first()?,
            // After the parent and the process group.
            session: words.nth(2)?.parse().ok()?,
        })
    }

    /// Whether it is not a zombie.
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

fn is_name(name: &[u8]) -> bool {
    name.starts_with(COMM)
}

/// Whether a process has the name of a program of MPS. `stat` would also sum over all threads.
fn has_name(pid: i32) -> bool {
    let mut name = [0; COMM.len()];
    let file = fs::File::open(proc(pid).join("comm"));
    file.is_ok_and(|mut file| file.read(&mut name).is_ok()) && is_name(&name)
}

fn proc(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The role of a process that root started as a program of MPS; None for any other process, and for one that a user
/// started with root's rights.
fn role_of_roots(pid: i32) -> Option<Role> {
    let ids = user_ids(pid)?;
    if ids != [UserId::ROOT; 3] || job_group(pid).is_some() {
        return None;
    }
    let link = proc(pid).join("exe");
    let path = fs::read_link(&link).ok()?;
    let name = path.file_name()?.to_str()?;
    let role = match name.strip_suffix(" (deleted)").unwrap_or(name) {
        CONTROL => Role::Control,
        SERVER => Role::Server,
        _ => return None,
    };
    // The program file itself, even if its name was removed. A set-uid program such as sudo can take root's ids for
    // any user who starts it.
    let file = fs::metadata(&link).ok()?;
    if file.uid() != UserId::ROOT.0 || file.mode() & SET_ID_BITS != 0 {
        return None;
    }
    if role == Role::Control {
        // A front end, which sends a command and ends, has no option -d.
        let line = fs::read(proc(pid).join("cmdline")).ok()?;
        line.split(|byte| *byte == 0).find(|word| *word == b"-d")?;
    }
    Some(role)
}

/// Kills a process if `still` is true for it; `still` is called when no other process can get its pid any more.
pub fn signal(pid: i32, still: impl Fn(i32) -> bool) {
    let Ok(handle) = ProcessHandle::open(pid) else {
        return;
    };
    if still(pid) {
        // A process that has ended is fine.
        let _ = handle.kill();
    }
}

/// Whether a process runs; false for a zombie.
pub fn is_alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Whether a process waits in the kernel for a driver and takes no signal. A short wait, as for a page on a busy
/// machine, does not count.
pub fn is_stuck(pid: i32) -> bool {
    let mut stuck = waiting_threads(pid);
    for _ in 0..STUCK_LOOKS {
        if stuck.is_empty() {
            return false;
        }
        std::thread::sleep(STUCK_PAUSE);
        let waiting = waiting_threads(pid);
        stuck.retain(|thread| waiting.contains(thread));
    }
    !stuck.is_empty()
}

fn waiting_threads(pid: i32) -> Vec<PathBuf> {
    let threads = fs::read_dir(proc(pid).join("task"));
    let threads = threads.into_iter().flatten().flatten();
    let waits = |thread: &PathBuf| {
        let text = fs::read(thread.join("stat")).unwrap_or_default();
        Stat::parse(&text).is_some_and(|stat| stat.state == b'D')
    };
    threads.map(|thread| thread.path()).filter(waits).collect()
}

/// The user who started a process. Not the user with whose rights it runs, who owns its folder in /proc, because any
/// user can start set-uid programs.
pub fn owner(pid: i32) -> Option<UserId> {
    user_ids(pid).map(|[real, ..]| real)
}

/// The real, effective and saved user id of a process.
fn user_ids(pid: i32) -> Option<[UserId; 3]> {
    let status = fs::read(proc(pid).join("status")).ok()?;
    let mut lines = status.split(|byte| *byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut users = std::str::from_utf8(users).ok()?.split_ascii_whitespace();
    let mut next = || users.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

/// The name of the control group of a Slurm job that contains a process, in any hierarchy. [`Lease::is_group`] tells
/// whether it is that of a lease's job.
///
/// [`Lease::is_group`]: lease::Lease::is_group
pub fn job_group(pid: i32) -> Option<String> {
    let groups = fs::read_to_string(proc(pid).join("cgroup")).ok()?;
    groups.lines().find_map(job_part).map(str::to_owned)
}

/// The part of a line of /proc/PID/cgroup that names a job. Below it users may have groups of any name.
fn job_part(line: &str) -> Option<&str> {
    let is_job = |part: &&str| lease::id_of_group(part).is_some();
    let mut parts = line.split('/');
    match parts.find(|part| part.ends_with("slurmstepd.scope") || is_job(part))? {
        part if is_job(&part) => Some(part),
        _ => parts
            .next()
            .filter(|part| is_job(part) || lease::is_sluid(part)),
    }
}

/// Whether a process is one of MPS: root's, or of `user` in the session of a control daemon of root.
pub fn is_mps(pid: i32, user: UserId) -> bool {
    let is_control = |pid| role_of_roots(pid) == Some(Role::Control);
    match owner(pid) {
        Some(UserId::ROOT) => role_of_roots(pid).is_some(),
        Some(owner) if owner == user => {
            Stat::of(pid).is_some_and(|stat| is_control(stat.session)) && job_group(pid).is_none()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_look_like_what_the_kernel_says() {
        let text = b"77 (nvidia-cuda-mps\xff) S 1 2 3) R 5 6 4242 0 -1";
        let stat = Stat::parse(text).unwrap();
        assert!(is_name(&stat.name) && stat.is_alive());
        assert_eq!((stat.state, stat.session), (b'R', 4242));
        assert!(Stat::parse(b"77 (sleep").is_none());
        let own = std::process::id() as i32;
        assert!(is_alive(own) && !is_stuck(own));
        assert_eq!(owner(own), user_ids(own).map(|[real, ..]| real));
    }

    /// The killed and the remaining processes, if each search finds the next of these; the last one repeatedly.
    fn killed(looks: &[&[MpsProcess]]) -> (Vec<i32>, Left) {
        let killed = RefCell::new(Vec::new());
        let mut looks = looks.iter().copied();
        let mut last: &[MpsProcess] = &[];
        let left = kill_all(
            Duration::from_millis(50),
            || {
                last = looks.next().unwrap_or(last);
                last.to_vec()
            },
            |process| killed.borrow_mut().push(process.pid),
        );
        (killed.into_inner(), left)
    }

    #[test]
    fn a_process_is_ended_without_pidfd_too() {
        test_seed::without(&[nix::libc::SYS_pidfd_open], || {
            let mut child = std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap();
            let pid = child.id() as i32;
            signal(pid, |_| false);
            assert!(is_alive(pid));
            signal(pid, |_| true);
            assert!(!child.wait().unwrap().success());
        });
    }

    #[test]
    fn a_process_must_be_missing_in_two_searches_before_it_counts_as_ended() {
        let process = |pid, role| MpsProcess { pid, role };
        let (server, control) = (process(8, Role::Server), process(9, Role::Control));
        let nothing = Left::default();
        assert_eq!(killed(&[&[]]), (vec![], nothing.clone()));
        assert_eq!(
            killed(&[&[server, control], &[], &[server], &[]]),
            (vec![9, 8, 8], nothing)
        );
        let stays = Left {
            of_root: vec![8],
            of_user: 0,
        };
        assert_eq!(killed(&[&[server]]).1, stays);
        let users = process(7, Role::UsersServer);
        assert_eq!(killed(&[&[users]]).1.of_user, 1);
    }

    #[test]
    fn a_job_is_known_by_the_group_that_slurm_made() {
        let scope = "0::/system.slice/n1_slurmstepd.scope";
        for (line, job) in [
            ("5:devices:/slurm_n1/uid_7/job_12/step_0/task_0", "job_12"),
            (&format!("{scope}/job_12/step_0/user/task_0"), "job_12"),
            (
                &format!("{scope}/sEKNKTV3WPV500/step_0/slurm"),
                "sEKNKTV3WPV500",
            ),
            // A process that the job's user made below it.
            (
                &format!("{scope}/sEKNKTV3WPV500/step_0/user/task_0/job_8"),
                "sEKNKTV3WPV500",
            ),
            (
                "5:devices:/slurm/uid_7/job_12/step_0/task_0/job_8",
                "job_12",
            ),
        ] {
            assert_eq!(job_part(line), Some(job), "{line}");
        }
        for line in [
            "0::/",
            "0::/system.slice/slurmd.service",
            "0::/user.slice/sEKNKTV3WPV500",
            "5:devices:/job_x/a",
            &format!("{scope}/system"),
            &format!("{scope}/system/job_8"),
            scope,
        ] {
            assert_eq!(job_part(line), None, "{line}");
        }
    }
}
