//! Processes by pid and start time, so that a pid that was used again is never mistaken.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// A process that the lab started or found.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Process {
    /// What it is, for messages.
    pub name: String,
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub started: u64,
}

impl Process {
    /// Records a process that runs now.
    pub fn observe(name: &str, pid: i32) -> Option<Self> {
        let started = start_time(pid)?;
        Some(Self {
            name: name.into(),
            pid,
            started,
        })
    }

    /// Whether it is still there and not a zombie.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Sends a signal if this very process is still there.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // That it ended in between is as good.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Waits until it is gone; whether it is.
    pub fn wait_gone(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// Whether a process with this pid runs (zombies do not).
pub fn is_running(pid: i32) -> bool {
    start_time(pid).is_some()
}

/// Field 22 of `/proc/<pid>/stat`; none for a process that is gone or a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The command's name is in parentheses and may hold anything: start after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}
