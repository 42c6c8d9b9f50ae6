//! What an admin greps: `gpufrac: job 123: ...` in syslog (facility daemon), and on stderr, which
//! slurmd writes to its own log.

use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;

use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

/// Lines about one job, or about the set-up of the node.
pub struct JobLog {
    about: String,
    // Root's programs here have one thread that logs; the mutex only makes `&self` possible.
    syslog: Mutex<Option<Logger<LoggerBackend, Formatter3164>>>,
}

impl JobLog {
    /// For a job. Without a syslog daemon the lines go to stderr alone.
    pub fn new(job_id: u32) -> JobLog {
        Self::about(format!("job {job_id}"))
    }

    /// For `gpufrac node-setup`.
    pub fn setup() -> JobLog {
        Self::about("node-setup".into())
    }

    /// For `gpufrac-reaperd`.
    pub fn reaper() -> JobLog {
        Self::about("reaper".into())
    }

    fn about(about: String) -> JobLog {
        let formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: None,
            process: "gpufrac".into(),
            pid: std::process::id(),
        };
        JobLog {
            about,
            syslog: Mutex::new(syslog::unix(formatter).ok()),
        }
    }

    /// Something that went as it should.
    pub fn info(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.info(line)));
    }

    /// Something an admin may want to know.
    pub fn warning(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.warning(line)));
    }

    /// Something that needs an admin.
    pub fn error(&self, text: impl Display) {
        self.write(text, |logger, line| drop(logger.err(line)));
    }

    fn write(
        &self,
        text: impl Display,
        send: impl FnOnce(&mut Logger<LoggerBackend, Formatter3164>, &str),
    ) {
        // One line each, so that no text of a user can look like another entry.
        let text = text.to_string().replace(char::is_control, " ");
        let line = format!("{}: {text}", self.about);
        // In one write: prologs of several jobs share slurmd's log.
        let _ = std::io::stderr().write_all(format!("gpufrac: {line}\n").as_bytes());
        if let Ok(mut syslog) = self.syslog.lock()
            && let Some(logger) = syslog.as_mut()
        {
            send(logger, &line);
        }
    }
}
