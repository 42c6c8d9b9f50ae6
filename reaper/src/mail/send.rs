//! Letters leave the node through programs of the site.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::reaper::Mail;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::message::message;
use super::{Letter, is_address};
use crate::words::{clipped, plain};

/// Where programs look for others.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of what a program complains of is told.
const COMPLAINT: usize = 400;
/// A pipe holds no more.
const MOST_COMPLAINT: u64 = 64 << 10;

/// Why a letter was not sent.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// Nobody to send it to.
    #[error("the letter has no recipient")]
    NoRecipient,
    /// What is no address is not given to a program.
    #[error("`{0}` is not an address")]
    Address(String),
    /// The program could not be run.
    #[error("cannot run `{program}`: {source}")]
    Run {
        /// Its path.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It failed.
    #[error("`{program}` failed with {status}: {said}")]
    Failed {
        /// Its path.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said on stderr.
        said: String,
    },
    /// It did not end in time, and was killed.
    #[error("`{program}` did not end within {} s", limit.as_secs_f32())]
    Hung {
        /// Its path.
        program: String,
        /// How long it had.
        limit: Duration,
    },
}

/// Sends a letter, in `deadline` at most. Where no program is configured nothing is sent, and that is no error.
pub fn send(mail: &Mail, letter: &Letter, deadline: Duration) -> Result<(), MailError> {
    if mail.sendmail.is_none() && mail.program.is_none() {
        return Ok(());
    }
    if letter.to.is_empty() {
        return Err(MailError::NoRecipient);
    }
    if let Some(wrong) = letter.to.iter().find(|address| !is_address(address)) {
        return Err(MailError::Address(plain(wrong)));
    }
    match (&mail.sendmail, &mail.program) {
        (Some(program), _) => {
            let arguments = sendmail_arguments(mail, letter);
            run(program, &arguments, &message(mail, letter), deadline)
        }
        (None, Some(program)) => mail_prog(program, letter, deadline),
        (None, None) => Ok(()),
    }
}

fn sendmail_arguments(mail: &Mail, letter: &Letter) -> Vec<String> {
    // A line with a single dot does not end the message.
    let mut arguments = vec!["-i".to_owned()];
    if let Some(from) = mail.from.as_ref().filter(|from| is_address(from)) {
        arguments.extend(["-f".to_owned(), from.clone()]);
    }
    arguments.push("--".to_owned());
    arguments.extend(letter.to.iter().cloned());
    arguments
}

/// One call for each recipient, as slurmctld does it. Who can be reached gets the letter.
fn mail_prog(program: &str, letter: &Letter, deadline: Duration) -> Result<(), MailError> {
    let start = Instant::now();
    let mut done = Ok(());
    for address in &letter.to {
        let arguments = ["-s".to_owned(), plain(&letter.subject), address.clone()];
        let left = deadline.saturating_sub(start.elapsed());
        let sent = run(program, &arguments, letter.text.as_bytes(), left);
        done = done.and(sent);
    }
    done
}

/// Runs a program without a shell, without our environment, and not longer than `limit`.
fn run(
    program: &str,
    arguments: &[String],
    input: &[u8],
    limit: Duration,
) -> Result<(), MailError> {
    let hung = || MailError::Hung {
        program: program.to_owned(),
        limit,
    };
    if limit.is_zero() {
        // Others before it took all the time. What is killed at once may have sent half a letter.
        return Err(hung());
    }
    let failed = |source| MailError::Run {
        program: program.to_owned(),
        source,
    };
    let input = stored(input).map_err(failed)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    match wait(&mut child, limit).map_err(failed)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(MailError::Failed {
            program: program.to_owned(),
            status,
            said: child.stderr.take().map(said).unwrap_or_default(),
        }),
        None => Err(hung()),
    }
}

/// A file in memory: a program that reads nothing of it holds nobody up, as it would with a pipe.
fn stored(text: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"gpufrac-mail", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file)
}

/// How the program ended; None if it had to be killed, with what it started.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            break;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    // Its group has its own number, as it was started.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// What has been said. Something that the program left behind may hold the pipe open: its end is not waited for.
fn said(stderr: ChildStderr) -> String {
    let mut text = Vec::new();
    if fcntl(&stderr, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        // Where there is nothing more to read now, what was read is in `text`.
        let _ = stderr.take(MOST_COMPLAINT).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    clipped(&text.trim().replace('\n', " / "), COMPLAINT)
}
