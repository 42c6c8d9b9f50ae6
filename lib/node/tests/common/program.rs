//! Processes of users.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Whether a process runs; a zombie does not.
pub fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with('Z'))
}

/// Waits for a condition, longer than it can take.
#[track_caller]
pub fn eventually(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed when this is dropped.
pub struct Program(Child);

impl Program {
    pub fn start(command: &mut Command) -> Program {
        loop {
            match command.spawn() {
                // A process that another test forked still has the copied program open for writing.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                child => return Program(child.unwrap()),
            }
        }
    }

    /// A process of a user that does nothing.
    pub fn of(user: u32) -> Program {
        let mut command = Command::new("sleep");
        Program::start(command.arg("1000").uid(user).stdin(Stdio::null()))
    }

    /// A process of a user that holds a device. Without a driver a device can only be opened as a path.
    pub fn holding(user: u32, device: &Path) -> Program {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(nix::libc::O_PATH);
        let file = file.open(device).unwrap();
        Program::start(Command::new("sleep").arg("1000").uid(user).stdin(file))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// The child process with its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    pub fn lives(&self) -> bool {
        lives(self.pid())
    }

    pub fn end(&mut self) -> ExitStatus {
        let _ = self.0.kill();
        self.0.wait().unwrap()
    }

    #[track_caller]
    pub fn was_killed(&mut self) {
        let status = self.0.try_wait().unwrap().expect("it ended");
        assert_eq!(status.signal(), Some(9));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}
