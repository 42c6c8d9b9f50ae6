//! Kills a program at a chosen system call by ptrace(2): the effect of a SIGKILL at any moment.
//!
//! Only calls that change something count ([`Call`]). The threads of the program are followed, its child processes
//! are not: they continue when it is killed, as those of any program.
//!
//! The program must wait until it is traced: it prints [`READY`] on a separate line and reads a line ([`wait`] does
//! both). For x86-64.
#![forbid(unsafe_code)]
#![cfg(target_arch = "x86_64")]

mod calls;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::libc::{self, c_long};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

pub use calls::Call;

/// The line by which a program says that it can be traced.
pub const READY: &str = "ready to be traced";

/// Waits until this program is traced. Errors: stdin or stdout fails.
pub fn wait() -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "\n{READY}")?;
    stdout.flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(drop)
}

/// The moment of the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the call.
    Before,
    /// After the call, before the program sees its result.
    After,
}

/// The call at which a program is killed, and the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// The number of the call among those that change something, from 1.
    pub nth: usize,
    pub moment: Moment,
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// The calls that changed something, in order. If the program was killed before a call, this call is the last.
    pub calls: Vec<Call>,
    /// Its exit code; None if it was killed.
    pub code: Option<i32>,
}

/// Runs a command and kills it at `death`, if it reaches this call. All calls while it holds the lock of the file
/// `driver_lock` count as one: the simulated driver works there, and the real one does this in one call of the kernel.
/// Errors: the command cannot be started, does not wait to be traced, or cannot be traced.
pub fn run(mut command: Command, driver_lock: &Path, death: Option<Death>) -> io::Result<Run> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let process = Pid::from_raw(child.id() as i32);
    let ends = (child.stdin.take(), child.stdout.take());
    let (Some(mut go), Some(said)) = ends else {
        return Err(io::Error::other("the program has no stdin or stdout"));
    };
    // Kept open, because the program may print more.
    let mut said = BufReader::new(said);
    let mut line = String::new();
    while line.trim() != READY {
        line.clear();
        if said.read_line(&mut line)? == 0 {
            let status = child.wait()?;
            let text = format!("the program ended before it was traced: {status}");
            return Err(io::Error::other(text));
        }
    }
    seize(process)?;
    go.write_all(b"\n")?;
    drop(go);
    let mut tracer = Tracer {
        process,
        driver_lock,
        death,
        calls: Vec::new(),
        under_way: HashMap::new(),
        section: None,
    };
    let code = tracer.follow()?;
    let calls = tracer.calls;
    Ok(Run { calls, code })
}

/// Follows all threads of a process, which starts no threads at this time.
fn seize(process: Pid) -> io::Result<()> {
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let thread = Pid::from_raw(number.ok_or(Errno::EINVAL)?);
        ptrace::seize(thread, options)?;
        // Its calls are not seen until it stops.
        ptrace::interrupt(thread)?;
    }
    Ok(())
}

/// The use of the simulated driver's lock by a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Section {
    thread: Pid,
    /// The descriptor with the lock.
    descriptor: u64,
    /// The number of the one call that all of this counts as.
    nth: usize,
    /// Whether the descriptor is being closed.
    ends: bool,
}

struct Tracer<'a> {
    process: Pid,
    driver_lock: &'a Path,
    death: Option<Death>,
    calls: Vec<Call>,
    /// The number of the call that each thread is making.
    under_way: HashMap<Pid, usize>,
    section: Option<Section>,
}

impl Tracer<'_> {
    /// Lets the process run to its end, or kills it; returns its exit code.
    fn follow(&mut self) -> io::Result<Option<i32>> {
        // Without child processes of this process's other threads.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let (thread, signal) = match waitpid(None, Some(flags)) {
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(WaitStatus::Exited(pid, code)) if pid == self.process => return Ok(Some(code)),
                Ok(WaitStatus::Signaled(pid, ..)) if pid == self.process => return Ok(None),
                Ok(WaitStatus::PtraceSyscall(thread)) => {
                    if self.stopped(thread)? {
                        kill(self.process, Signal::SIGKILL)?;
                        continue;
                    }
                    (thread, None)
                }
                Ok(WaitStatus::PtraceEvent(thread, ..)) => (thread, None),
                Ok(WaitStatus::Stopped(thread, signal)) => (thread, Some(signal)),
                // A thread ended.
                Ok(_) => continue,
            };
            match ptrace::syscall(thread, signal) {
                // Another thread killed the process.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A thread stopped before or after a call; returns whether the process must be killed now.
    fn stopped(&mut self, thread: Pid) -> io::Result<bool> {
        let info = match ptrace::syscall_info(thread) {
            Ok(info) => info,
            Err(Errno::ESRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => self.enters(thread),
            libc::PTRACE_SYSCALL_INFO_EXIT => Ok(self.leaves(thread)),
            _ => Ok(false),
        }
    }

    fn enters(&mut self, thread: Pid) -> io::Result<bool> {
        let registers = ptrace::getregs(thread)?;
        let (number, arguments) = (registers.orig_rax as c_long, calls::arguments(&registers));
        if let Some(section) = self.section.as_mut().filter(|it| it.thread == thread) {
            section.ends = number == libc::SYS_close && arguments[0] == section.descriptor;
            return Ok(false);
        }
        let Some(call) = Call::of(thread, &registers) else {
            return Ok(false);
        };
        let is_lock = call.subject.as_deref() == Some(self.driver_lock);
        let locks = number == libc::SYS_flock && arguments[1] as i32 & libc::LOCK_EX != 0;
        self.calls.push(call);
        let nth = self.calls.len();
        if locks && is_lock {
            self.section = Some(Section {
                thread,
                descriptor: arguments[0],
                nth,
                ends: false,
            });
        } else {
            self.under_way.insert(thread, nth);
        }
        Ok(self.dies(nth, Moment::Before))
    }

    fn leaves(&mut self, thread: Pid) -> bool {
        let ended = self.section.take_if(|it| it.thread == thread && it.ends);
        let ended = ended.map(|section| section.nth);
        let made = ended.or_else(|| self.under_way.remove(&thread));
        made.is_some_and(|nth| self.dies(nth, Moment::After))
    }

    fn dies(&self, nth: usize, moment: Moment) -> bool {
        self.death == Some(Death { nth, moment })
    }
}

#[cfg(test)]
mod tests;
