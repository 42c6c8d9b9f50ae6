//! The processes of a control daemon, found in /proc.
//!
//! The pid file that the daemon writes is writable by everybody who reaches it, so it says nothing.
//! The environment in /proc does: the daemon and its servers have our folder there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufrac_core::ids::UserId;
use gpufrac_core::lease;
use gpufrac_host::syscalls::ProcessHandle;

const PIPE: &[u8] = b"CUDA_MPS_PIPE_DIRECTORY=";
/// What the kernel keeps of the names of both programs.
const COMM: &str = "nvidia-cuda-mps";

/// What a process is to its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The control daemon.
    Control,
    /// A server, which holds the contexts of its clients.
    Server,
}

/// A process of the daemon of one folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpsProcess {
    /// Its pid.
    pub pid: i32,
    /// What it is.
    pub role: Role,
}

fn proc(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Every pid that there is.
fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The daemon whose pipes are in `pipe`, and its servers, which are root's or of `server_user`.
pub fn of(pipe: &Path, server_user: UserId) -> Vec<MpsProcess> {
    pids()
        .filter_map(|pid| observe(pid, pipe, server_user))
        .collect()
}

fn observe(pid: i32, pipe: &Path, server_user: UserId) -> Option<MpsProcess> {
    let place = proc(pid);
    // Most processes end here.
    if !fs::read(place.join("comm"))
        .ok()?
        .starts_with(COMM.as_bytes())
    {
        return None;
    }
    let line = fs::read(place.join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    let program = Path::new(std::str::from_utf8(words.next()?).ok()?).file_name()?;
    let role = match program.to_str()? {
        // A front end, which hands over a command and ends, has no option -d.
        "nvidia-cuda-mps-control" if words.any(|word| word == b"-d") => Role::Control,
        "nvidia-cuda-mps-server" => Role::Server,
        _ => return None,
    };
    // A user may call a program of his anything.
    let owner = owner(pid)?;
    if owner != UserId::ROOT && !(role == Role::Server && owner == server_user) {
        return None;
    }
    let environment = fs::read(place.join("environ")).ok()?;
    let mut own = environment.split(|byte| *byte == 0);
    let own = own.find_map(|line| line.strip_prefix(PIPE))?;
    (Path::new(std::str::from_utf8(own).ok()?) == pipe).then_some(MpsProcess { pid, role })
}

/// Kills the daemon of `pipe` and its servers and waits until they are gone. False if some stay.
pub fn kill(pipe: &Path, server_user: UserId, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let mut found = of(pipe, server_user);
        if found.is_empty() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        // The daemon first: it would start a server again.
        found.sort_by_key(|process| process.role == Role::Server);
        for process in found {
            signal(process.pid, |pid| observe(pid, pipe, server_user).is_some());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process if `still` holds for it, which is asked when no other process can get its pid any more.
pub fn signal(pid: i32, still: impl Fn(i32) -> bool) {
    let Ok(handle) = ProcessHandle::open(pid) else {
        return;
    };
    if still(pid) {
        // Gone is as good as killed.
        let _ = handle.kill();
    }
}

/// Whether a process runs; a zombie does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(proc(pid).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// The user who started a process. Not the one with whose rights it runs, who has its folder in /proc: anybody can
/// start set-uid programs.
pub fn owner(pid: i32) -> Option<UserId> {
    let status = fs::read_to_string(proc(pid).join("status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// The name of the control group of a Slurm job in which a process is, in any hierarchy. [`Lease::is_group`] tells
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

/// Whether a process is one of MPS's own, run by root or by `user`.
pub fn is_mps(pid: i32, user: UserId) -> bool {
    let comm = fs::read(proc(pid).join("comm")).unwrap_or_default();
    comm.starts_with(COMM.as_bytes())
        && owner(pid).is_some_and(|owner| [UserId::ROOT, user].contains(&owner))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // What the job's user made below.
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
