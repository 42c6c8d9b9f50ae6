//! Programs of others that print little, run with a deadline: what drives a GPU can hang with it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::pause::Pause;

/// What a program came to.
pub enum Outcome {
    /// It ended, and printed this.
    Ended {
        /// How.
        status: ExitStatus,
        /// stdout, then stderr.
        text: String,
    },
    /// It did not end in time, and was killed.
    Silent,
}

/// For programs that look for others.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a command that prints little, for as long as `limit`.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> std::io::Result<Outcome> {
    let mut child = command
        .stdin(stored(input)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let start = Instant::now();
    let mut pause = Pause::new(Duration::from_micros(200), Duration::from_millis(10));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let waited = start.elapsed();
        if waited > limit {
            // Its group has its own number, as it was started.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            child.kill()?;
            child.wait()?;
            return Ok(Outcome::Silent);
        }
        pause.sleep(limit - waited);
    };
    Ok(Outcome::Ended {
        status,
        text: printed(&mut child),
    })
}

/// A file in memory: a program that reads nothing of it holds nobody up, as it would with a pipe.
fn stored(input: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create(c"gpufrac-input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// What a child printed that has ended. A daemon that it left may hold the other ends open, so no
/// end of them is waited for.
fn printed(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stream) = child.stdout.take() {
        drain(stream, &mut text);
    }
    if let Some(stream) = child.stderr.take() {
        drain(stream, &mut text);
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn drain(mut stream: impl Read + AsFd, text: &mut Vec<u8>) {
    let flags = OFlag::O_NONBLOCK;
    if fcntl(&stream, FcntlArg::F_SETFL(flags)).is_err() {
        return;
    }
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, limit: Duration) -> Outcome {
        run(Command::new("sh").args(["-c", text]), b"", limit).unwrap()
    }

    #[test]
    fn what_hangs_is_killed() {
        let start = Instant::now();
        let outcome = shell("echo begun; sleep 100; true", Duration::from_millis(50));
        assert!(matches!(outcome, Outcome::Silent));
        assert!(start.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn what_a_child_leaves_behind_is_not_waited_for() {
        let start = Instant::now();
        let outcome = shell("sleep 100 & echo said; exit 3", Duration::from_secs(60));
        let Outcome::Ended { status, text } = outcome else {
            panic!("it ended");
        };
        assert_eq!((status.code(), text.as_str()), (Some(3), "said"));
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
