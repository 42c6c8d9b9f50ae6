//! External programs with a deadline: a program that drives a GPU can hang with it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::pause::Pause;

/// What a program came to.
pub enum Outcome {
    /// It ended.
    Ended(Ended),
    /// It did not end in time, and was killed.
    Silent,
}

/// How a program ended, and what it printed.
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Ended {
    /// stdout, then stderr, without the blanks around both.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr).trim().to_owned()
    }
}

/// For programs that look for others.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Of each stream no more is read: a program that prints on without end fills its pipe, and not our memory.
const MOST_BYTES: usize = 64 << 20;

/// Runs a command for as long as `limit`.
///
/// # Errors
/// The program cannot be started, or not be waited for.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> std::io::Result<Outcome> {
    let first = Pause::new(Duration::from_micros(200), Duration::from_millis(10));
    let mut child = command
        .stdin(stored(input)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let start = Instant::now();
    let mut pause = first.clone();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = loop {
        let status = child.try_wait()?;
        let printed =
            drain(child.stdout.as_mut(), &mut stdout) + drain(child.stderr.as_mut(), &mut stderr);
        if let Some(status) = status {
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
        // More may wait for room in the pipe.
        if printed > 0 {
            pause = first.clone();
        }
        pause.sleep(limit - waited);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Outcome::Ended(Ended {
        status,
        stdout: text(&stdout),
        stderr: text(&stderr),
    }))
}

/// A file in memory: a program that reads nothing of it holds nobody up, as it would with a pipe.
fn stored(input: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create(c"gpufrac-input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// Takes what a child has printed by now; says how much. A daemon that the child left may hold the other end open, so
/// the end of the stream is not waited for.
fn drain(stream: Option<&mut (impl Read + AsFd)>, bytes: &mut Vec<u8>) -> usize {
    let Some(stream) = stream else { return 0 };
    if fcntl(&*stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_err() {
        return 0;
    }
    let before = bytes.len();
    let mut buffer = [0; 4096];
    while bytes.len() < MOST_BYTES
        && let Ok(length @ 1..) = stream.read(&mut buffer)
    {
        bytes.extend_from_slice(&buffer[..length]);
    }
    bytes.len() - before
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
        let Outcome::Ended(ended) = outcome else {
            panic!("it ended");
        };
        assert_eq!(
            (ended.status.code(), ended.text().as_str()),
            (Some(3), "said")
        );
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn more_than_a_pipe_holds_is_read_from_both_streams() {
        let text = "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; echo end";
        let Outcome::Ended(ended) = shell(text, Duration::from_secs(60)) else {
            panic!("it ended");
        };
        assert_eq!((ended.stdout.len(), ended.stderr.len()), (300_004, 200_000));
        assert!(ended.stdout.ends_with("end\n"));
    }
}
