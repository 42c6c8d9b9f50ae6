//! The log for admins: `gpufrac: job 123: ...` in syslog (facility daemon), and on stderr, which slurmd writes to its
//! own log. If systemd reads both, the lines go only to syslog.

use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;

use gpufrac_core::ids::JobId;
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

/// The log about one job, or about one command.
pub struct JobLog {
    about: String,
    /// The output besides syslog.
    out: Option<Mutex<Box<dyn Write + Send>>>,
    // Programs that use this log have one thread that logs; the mutex only makes `&self` possible.
    syslog: Mutex<Option<Logger<LoggerBackend, Formatter3164>>>,
}

impl JobLog {
    /// The log of a job. Without a syslog daemon, lines go to stderr only.
    pub fn new(job_id: JobId) -> JobLog {
        Self::about(format!("job {job_id}"))
    }

    /// The log of `gpufrac node-setup`.
    pub fn setup() -> JobLog {
        Self::about("node-setup".into())
    }

    /// The log of a command by which an admin changes something.
    pub fn command(name: &str) -> JobLog {
        Self::about(name.to_owned())
    }

    /// The log of `gpufrac-reaperd`.
    pub fn reaper() -> JobLog {
        Self::about("reaper".into())
    }

    /// A log that only writes to `out`, not to syslog or stderr.
    pub fn to(about: &str, out: impl Write + Send + 'static) -> JobLog {
        JobLog {
            about: about.to_owned(),
            out: Some(Mutex::new(Box::new(out))),
            syslog: Mutex::new(None),
        }
    }

    fn about(about: String) -> JobLog {
        let formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: None,
            process: "gpufrac".into(),
            pid: std::process::id(),
        };
        let syslog = syslog::unix(formatter).ok();
        let stderr = syslog.is_none() || !stderr_is_journal();
        JobLog {
            about,
            out: stderr.then(|| Mutex::new(Box::new(std::io::stderr()) as Box<_>)),
            syslog: Mutex::new(syslog),
        }
    }

    /// Logs a normal event.
    pub fn info(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.info(line)));
    }

    /// Logs an event that an admin may want to know.
    pub fn warning(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.warning(line)));
    }

    /// Logs an event that needs an admin.
    pub fn error(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.err(line)));
    }

    fn write(
        &self,
        text: impl Display,
        send: impl FnOnce(&mut Logger<LoggerBackend, Formatter3164>, &str),
    ) {
        // Control characters are replaced, so that a user's text cannot look like a further entry.
        let text = text.to_string().replace(char::is_control, " ");
        let line = format!("{}: {text}", self.about);
        // One write for each line, because prologs of several jobs share slurmd's log.
        if let Some(out) = &self.out
            && let Ok(mut out) = out.lock()
        {
            let _ = out.write_all(format!("gpufrac: {line}\n").as_bytes());
        }
        if let Ok(mut syslog) = self.syslog.lock()
            && let Some(logger) = syslog.as_mut()
        {
            send(logger, &line);
        }
    }
}

/// Whether stderr is the stream to the journal that systemd gave to this process.
fn stderr_is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let about = nix::sys::stat::fstat(std::io::stderr());
    about.is_ok_and(|about| is_stream(&stream, about.st_dev, about.st_ino))
}

/// Whether a file is the one in `$JOURNAL_STREAM` (systemd.exec(5)): `DEVICE:INODE`. Child processes inherit the
/// variable, and may have another stderr.
fn is_stream(text: &str, device: u64, inode: u64) -> bool {
    let numbers = text.split_once(':');
    numbers.is_some_and(|(left, right)| (left.parse(), right.parse()) == (Ok(device), Ok(inode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journals_stream_is_known_by_its_numbers() {
        assert!(is_stream("9:43210", 9, 43210));
        for other in ["9:43211", "8:43210", "43210", "9:", ":", "", "9:43210:1"] {
            assert!(!is_stream(other, 9, 43210), "{other}");
        }
    }
}
