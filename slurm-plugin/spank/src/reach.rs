//! A task that does not reach what limits it: the folder of its MPS daemon, or the library of HAMi-core. Its programs
//! would compute without limits.
//!
//! A plugin such as pyxis moves the task into a container at the hook that gpufrac has, too, and may come after it. A
//! process therefore looks at the task when it begins the user's program, and kills it before CUDA has started. What a
//! script starts later, gpufrac-reaperd finds.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, Read, Write};
use std::mem;
use std::path::Path;

use gpufrac_core::lease::Lease;
use gpufrac_host::sight::{self, Sight};
use slurm_sys::boundary;

/// The reasons why a task must not start.
#[derive(Debug, thiserror::Error)]
pub enum Unreached {
    /// A container or another plugin hides the folder of the MPS daemon or the library of HAMi-core from the task.
    /// Cure: Mount it in the container: [containers](../../user/containers.md).
    #[error(
        "start of the task failed: {0} is hidden from it, and its programs would compute without limits; mount \
         {0} in the container"
    )]
    Hidden(String),
    /// No process could be started that looks at the task.
    /// Cure: Raise the job's limit of processes (`ulimit -u`).
    #[error("start of the task failed: watching it failed: {0}; raise the limit of processes")]
    NotWatched(io::Error),
}

/// Fails if the task, which calls this, does not reach the limiters of its slices; else a process watches that it does
/// so when it begins the user's program.
pub fn require(leases: &[Lease]) -> Result<(), Unreached> {
    let limiters: BTreeSet<String> = leases.iter().filter_map(|l| l.slice.limiter()).collect();
    if limiters.is_empty() {
        return Ok(());
    }
    if let Some(hidden) = limiters.iter().find(|path| is_missing(Path::new(path))) {
        return Err(Unreached::Hidden(hidden.clone()));
    }
    watch(&limiters).map_err(Unreached::NotWatched)
}

fn is_missing(path: &Path) -> bool {
    path.metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Starts the process that looks at this task. It is no child of the task, whose program may wait for its own children.
fn watch(limiters: &BTreeSet<String>) -> io::Result<()> {
    // Both ends close when a program begins.
    let (reader, writer) = io::pipe()?;
    let task = std::process::id();
    // SAFETY: the task has one thread, so its copy has no lock that another thread held.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            let looks = unsafe { libc::fork() };
            if looks == 0 {
                drop(writer);
                boundary::guard_silently("reach", (), || look(task, reader, limiters));
            }
            // SAFETY: ends this process without the handlers of slurmstepd, of which it is a copy.
            unsafe { libc::_exit(libc::c_int::from(looks < 0)) }
        }
        between => {
            let mut status = 0;
            // SAFETY: waits for the child of this task, and writes to a variable of its own.
            while unsafe { libc::waitpid(between, &raw mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
            if status != 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Stays open until the task begins the user's program.
            mem::forget(writer);
            Ok(())
        }
    }
}

/// Waits until the task begins a program or ends; kills it if the program cannot reach a limiter.
fn look(task: u32, mut began: PipeReader, limiters: &BTreeSet<String>) {
    let _ = began.read(&mut [0]);
    let is_hidden = |path: &&String| matches!(seen(task, Path::new(path)), Sight::Hidden);
    let Some(hidden) = limiters.iter().find(is_hidden) else {
        return;
    };
    let Ok(pid) = libc::pid_t::try_from(task) else {
        return;
    };
    // SAFETY: plain kill, with the rights of the job's user. The number was the task's some microseconds ago.
    if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 {
        let reason = Unreached::Hidden(hidden.clone());
        // The task's own standard error: Slurm's log does not reach the user from here.
        let _ = writeln!(io::stderr(), "gpufrac: {reason}");
    }
}

/// What the task has at a path. The kernel answers other processes only some moments after a program began.
fn seen(task: u32, path: &Path) -> Sight {
    const MOMENTS: usize = 50;
    for _ in 0..MOMENTS {
        match sight::of(task, path) {
            Sight::Unknown(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            known => return known,
        }
    }
    sight::of(task, path)
}
