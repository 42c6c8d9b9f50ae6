//! Sends mail messages through programs of the site.

use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use gpufrac_core::policy::Mail;
use gpufrac_host::subprocess::{self, Outcome, PATH};
use gpufrac_page::words::{clipped, plain};

use super::mime::mime;
use super::{Message, is_address};

/// The most characters of a program's output in an error.
const MOST_COMPLAINT_CHARS: usize = 400;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// The job's user has no address.
    /// Cure: Set `domain` in `[reaper.mail]`.
    #[error("the mail message has no recipient")]
    NoRecipient,
    /// The address contains characters that a mail program could take for something else.
    /// Cure: The user corrects `--mail-user`.
    #[error("`{0}` is not an address")]
    Address(String),
    /// The mail program is missing.
    /// Cure: Install it, or correct `[reaper.mail]`.
    #[error("starting `{program}` failed: {source}")]
    Run { program: String, source: io::Error },
    /// The mail program returned an error.
    /// Cure: Follow its text.
    #[error("`{program}` failed with {status}: {said}")]
    Failed {
        program: String,
        status: ExitStatus,
        said: String,
    },
    /// The daemon ended while it sent a mail message.
    /// Cure: Nothing: a warning also stands in the job's output.
    #[error("the daemon ends")]
    DaemonEnds,
    /// The mail program hangs.
    /// Cure: Look at the mail service of the node.
    #[error("`{program}` did not end within {} s", limit.as_secs_f32())]
    Hung { program: String, limit: Duration },
}

/// Sends a message within `deadline`. Without a configured program nothing is sent; that is no error.
pub fn send(mail: &Mail, message: &Message, deadline: Duration) -> Result<(), MailError> {
    if mail.sendmail.is_none() && mail.program.is_none() {
        return Ok(());
    }
    if message.to.is_empty() {
        return Err(MailError::NoRecipient);
    }
    if let Some(wrong) = message.to.iter().find(|address| !is_address(address)) {
        return Err(MailError::Address(plain(wrong)));
    }
    match (&mail.sendmail, &mail.program) {
        (Some(program), _) => {
            let arguments = sendmail_arguments(mail, message);
            run(program, &arguments, &mime(mail, message), deadline)
        }
        (None, Some(program)) => mail_prog(program, message, deadline),
        (None, None) => Ok(()),
    }
}

fn sendmail_arguments(mail: &Mail, message: &Message) -> Vec<String> {
    // With `-i` a line with a single dot does not end the message.
    let mut arguments = vec!["-i".to_owned()];
    if let Some(from) = mail.from.as_ref().filter(|from| is_address(from)) {
        arguments.extend(["-f".to_owned(), from.clone()]);
    }
    arguments.push("--".to_owned());
    arguments.extend(message.to.iter().cloned());
    arguments
}

/// One call for each recipient, as slurmctld does it. An error of one recipient does not stop the others.
fn mail_prog(program: &str, message: &Message, deadline: Duration) -> Result<(), MailError> {
    let start = Instant::now();
    let mut done = Ok(());
    for address in &message.to {
        let arguments = ["-s".to_owned(), plain(&message.subject), address.clone()];
        let left = deadline.saturating_sub(start.elapsed());
        let sent = run(program, &arguments, message.text.as_bytes(), left);
        done = done.and(sent);
    }
    done
}

/// Runs a program without a shell and without this process's environment, for at most `limit`.
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
        // Earlier recipients used up the time. A program that is killed at once may have sent half a message.
        return Err(hung());
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", PATH);
    let outcome = subprocess::run(command.current_dir("/"), input, limit);
    let outcome = outcome.map_err(|source| MailError::Run {
        program: program.to_owned(),
        source,
    })?;
    match outcome {
        Outcome::Silent => Err(hung()),
        Outcome::Ended(ended) if ended.status.success() => Ok(()),
        Outcome::Ended(ended) => Err(MailError::Failed {
            program: program.to_owned(),
            status: ended.status,
            said: clipped(&ended.text().replace('\n', " / "), MOST_COMPLAINT_CHARS),
        }),
    }
}
