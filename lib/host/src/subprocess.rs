//! External programs with a deadline, because a program that uses a GPU can hang with it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::pause::Pause;
use crate::syscalls::pidfd;

/// The outcome of a program.
pub enum Outcome {
    /// The program ended.
    Ended(Ended),
    /// The program did not end in time, and was killed.
    Silent,
}

/// Exit status and output of a program.
pub struct Ended {
    pub status: ExitStatus,
    /// The text on stdout.
    pub stdout: String,
    /// The text on stderr.
    pub stderr: String,
}

impl Ended {
    /// stdout, then stderr, without surrounding blanks.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr).trim().to_owned()
    }
}

/// `PATH` for programs that run other programs.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a killed program may take to end.
const LONGEST_END: Duration = Duration::from_secs(1);
/// The most bytes that are read of each stream: a program that prints without end fills its pipe, and not this
/// process's memory.
const MOST_BYTES: usize = 64 << 20;

/// Runs a command for at most `limit`. Errors: the program cannot be started, waiting for it failed, or an earlier run
/// of it was killed and has not ended.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> std::io::Result<Outcome> {
    watch(command, input, limit, None)
}

/// Runs a command until it has printed nothing for the time of `silence`. `each` gets the lines of stdout, of any
/// number, as they come; they are not in [`Ended`]. Errors: as [`run`].
pub fn lines(
    command: &mut Command,
    silence: Duration,
    each: &mut dyn FnMut(&str),
) -> std::io::Result<Outcome> {
    watch(command, b"", silence, Some(each))
}

fn watch(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    mut each: Option<&mut dyn FnMut(&str)>,
) -> std::io::Result<Outcome> {
    let program = command.get_program().to_owned();
    refuse_beside_hung_run(&program)?;
    let mut child = command
        .stdin(stored(input)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut start = Instant::now();
    let mut next = Next::of(child.id());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = loop {
        let status = child.try_wait()?;
        let printed = drain(&mut child.stdout, &mut stdout) + drain(&mut child.stderr, &mut stderr);
        if let Some(each) = &mut each {
            let end = stdout.iter().rposition(|byte| *byte == b'\n');
            // The last line may have no end.
            let end = if status.is_some() { stdout.len() } else { end.map_or(0, |at| at + 1) };
            let whole: Vec<u8> = stdout.drain(..end).collect();
            String::from_utf8_lossy(&whole)
                .lines()
                .for_each(&mut **each);
        }
        if let Some(status) = status {
            break status;
        }
        if printed > 0 && each.is_some() {
            start = Instant::now();
        }
        let waited = start.elapsed();
        if waited > limit {
            // The process group has the child's pid, because the child was started as its leader.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            child.kill()?;
            if !ends(&mut child)? {
                left().push((program, child));
            }
            return Ok(Outcome::Silent);
        }
        let has_room = |bytes: &[u8]| bytes.len() < MOST_BYTES;
        let stdout = child.stdout.as_ref().filter(|_| has_room(&stdout));
        let stderr = child.stderr.as_ref().filter(|_| has_room(&stderr));
        let streams = [stdout.map(AsFd::as_fd), stderr.map(AsFd::as_fd)];
        next.wait(streams, limit - waited);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Outcome::Ended(Ended {
        status,
        stdout: text(&stdout),
        stderr: text(&stderr),
    }))
}

/// Programs that were killed and hang in the kernel, as a driver can make them: they end when the driver answers.
static LEFT: Mutex<Vec<(OsString, Child)>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<(OsString, Child)>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Errors: an earlier run of the program hangs; a further one would only be one more.
fn refuse_beside_hung_run(program: &OsStr) -> std::io::Result<()> {
    let mut left = left();
    left.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    if left.iter().any(|(hangs, _)| hangs == program) {
        return Err(std::io::Error::other(
            "an earlier run was killed and hangs in the kernel",
        ));
    }
    Ok(())
}

/// Whether a killed program ends soon.
fn ends(child: &mut Child) -> std::io::Result<bool> {
    let mut pause = Pause::new(Duration::from_micros(200), Duration::from_millis(10));
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > LONGEST_END {
            return Ok(false);
        }
        pause.sleep(LONGEST_END);
    }
    Ok(true)
}

/// The wait for what a program does next.
enum Next {
    Event(OwnedFd),
    /// The kernel has no pidfd.
    Pauses(Pause),
}

impl Next {
    fn of(child: u32) -> Next {
        let pauses = Pause::new(Duration::from_micros(200), Duration::from_millis(10));
        pidfd(child as i32).map_or(Next::Pauses(pauses), Next::Event)
    }

    /// Returns when the program ended, printed or closed one of the streams, or after the time of `left`; without a
    /// pidfd after a pause.
    fn wait(&mut self, streams: [Option<BorrowedFd<'_>>; 2], left: Duration) {
        let end = match self {
            Next::Event(end) => end,
            Next::Pauses(pauses) => {
                pauses.sleep(left);
                return;
            }
        };
        let descriptors = streams.into_iter().flatten().chain([end.as_fd()]);
        let mut events: Vec<PollFd<'_>> = descriptors
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
            .collect();
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut events, left).is_err() {
            // A signal came, or the kernel has no memory for the call.
            sleep(Duration::from_millis(1));
        }
    }
}

/// A file in memory for stdin. With a pipe, a program that does not read its input would block this process.
fn stored(input: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create(c"gpufrac-input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// Reads the output that a child has written so far; returns the number of bytes. It does not wait for the end of the
/// stream, because a daemon that the child started may keep the other end open. After the end the stream is None.
fn drain<S: Read + AsFd>(stream: &mut Option<S>, bytes: &mut Vec<u8>) -> usize {
    let Some(open) = stream else { return 0 };
    if fcntl(&*open, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_err() {
        return 0;
    }
    let before = bytes.len();
    let mut buffer = [0; 4096];
    while bytes.len() < MOST_BYTES {
        match open.read(&mut buffer) {
            Ok(length @ 1..) => bytes.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Ok(_) | Err(_) => {
                *stream = None;
                break;
            }
        }
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
    fn a_program_that_hangs_is_killed() {
        let start = Instant::now();
        let outcome = shell("echo begun; sleep 100; true", Duration::from_millis(50));
        assert!(matches!(outcome, Outcome::Silent));
        assert!(start.elapsed() < Duration::from_secs(100));
    }

    /// Nothing ends a process in a frozen group of version 1, as in a driver that hangs.
    #[test]
    fn a_program_that_cannot_be_killed_is_left() {
        let group = format!("/sys/fs/cgroup/freezer/gpufrac{}", std::process::id());
        if std::fs::create_dir(&group).is_err() {
            test_seed::not_run("no freezer of control groups of version 1");
        }
        let state = format!("{group}/freezer.state");
        let text = format!("echo $$ > {group}/cgroup.procs; echo FROZEN > {state}");
        let begun = Instant::now();
        // Other tests run `sh`.
        let program = "/bin/sh";
        let run = || {
            let mut command = Command::new(program);
            run(command.args(["-c", &text]), b"", Duration::from_millis(300))
        };
        let outcome = run().unwrap();
        let waited = begun.elapsed();
        let again = run().err();
        std::fs::write(&state, "THAWED").unwrap();
        assert!(again.is_some_and(|again| again.to_string().contains("hangs in the kernel")));
        assert!(matches!(outcome, Outcome::Silent));
        assert!(waited < Duration::from_secs(5), "{waited:?}");
        let begun = Instant::now();
        while std::fs::remove_dir(&group).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(5));
            sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn lines_come_one_by_one_until_a_program_is_silent() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done; printf end; exit 3",
        ]);
        let mut each = |line: &str| seen.push(line.to_owned());
        let Outcome::Ended(ended) =
            lines(&mut command, Duration::from_secs(60), &mut each).unwrap()
        else {
            panic!("it ended");
        };
        assert_eq!((ended.status.code(), ended.text().as_str()), (Some(3), ""));
        assert_eq!(seen, ["1", "2", "3", "4", "5", "end"]);
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "for i in 1 2 3 4; do echo $i; sleep 0.3; done; sleep 1000",
        ]);
        let mut seen = 0;
        // The sum of the pauses is longer than the limit, each one is shorter.
        let outcome = lines(&mut command, Duration::from_secs(1), &mut |_| seen += 1).unwrap();
        assert!(matches!(outcome, Outcome::Silent));
        assert_eq!(seen, 4);
    }

    #[test]
    fn grandchildren_are_not_waited_for() {
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
    fn a_program_ends_on_a_kernel_without_pidfd_too() {
        test_seed::without(&[nix::libc::SYS_pidfd_open], || {
            let text = "echo begun; exec >&- 2>&-; sleep 0.1; exit 3";
            let Outcome::Ended(ended) = shell(text, Duration::from_secs(60)) else {
                panic!("it ended");
            };
            assert_eq!(
                (ended.status.code(), ended.text().as_str()),
                (Some(3), "begun")
            );
        });
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
