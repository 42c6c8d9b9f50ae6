//! Processes by pid and start time, so that a reused pid is never taken for the process.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::patience::{Patience, poll_until};

/// How long a program to be started may still be open for writing.
const BUSY_LIMIT: Duration = Duration::from_secs(2);

/// Starts a command. A program that this process has just written can be busy: a child that another thread is
/// starting has the file open, too, until it runs its own program.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let patience = Patience::new(BUSY_LIMIT);
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && !patience.is_over() =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// A process that the lab started or found.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Process {
    /// The name for messages.
    pub name: String,
    pub pid: i32,
    /// The start in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// Records a running process.
    pub fn observe(name: &str, pid: i32) -> Option<Self> {
        let started = start_time(pid)?;
        Some(Self {
            name: name.into(),
            pid,
            started,
        })
    }

    /// Whether it still runs and is not a zombie.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Sends a signal if this process still exists.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // It may have ended in between, which is fine.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Waits until it has ended; returns whether it has.
    pub fn wait_gone(&self, limit: Duration) -> bool {
        let what = format!("the end of {}", self.name);
        poll_until(&what, limit, Duration::from_millis(10), || !self.is_alive())
    }
}

/// Whether a process with this pid runs (zombies do not).
pub fn is_running(pid: i32) -> bool {
    start_time(pid).is_some()
}

/// Field 22 of `/proc/<pid>/stat`; None if the process has ended or is a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The command's name is in parentheses and may contain any character, so parsing starts after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_program_that_is_still_written_to_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("program");
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).write(true).mode(0o755).open(&path);
        file.as_mut().unwrap().write_all(b"#!/bin/sh\n").unwrap();
        let early = Command::new(&path).spawn().unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::ExecutableFileBusy);
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(file);
        });
        let mut child = spawn(&mut Command::new(&path)).unwrap();
        assert!(child.wait().unwrap().success());
        writer.join().unwrap();
    }
}
