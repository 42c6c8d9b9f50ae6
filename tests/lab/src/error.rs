//! The errors of a lab.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// An error of the lab; each names its subject.
#[derive(thiserror::Error)]
pub enum LabError {
    /// A file or folder could not be read or written.
    #[error("{action} {} failed: {reason}", path.display())]
    File {
        /// The operation: `reading`.
        action: &'static str,
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// A program could not be started.
    #[error(
        "starting `{program}` failed: {reason}\nhint: `cargo xtask setup` installs what is missing"
    )]
    Start {
        program: String,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// A command of Slurm or of the lab failed.
    #[error("`{command}` ended with {status}\n{stdout}{stderr}")]
    Command {
        /// The command with its arguments.
        command: String,
        /// Exit status in words.
        status: String,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
    },
    /// The state of the lab is not as expected.
    #[error("{what}: {found}")]
    Unexpected {
        /// The subject: a command, a file, a state.
        what: String,
        /// The state that was found.
        found: String,
    },
    /// A daemon ended unexpectedly.
    #[error("{daemon} ended; the last lines of its log say why:\n{logs}")]
    Ended {
        daemon: String,
        /// The last lines of the logs.
        logs: String,
    },
    /// A condition did not become true in time.
    #[error("{what}: not within {limit:?}; the last lines of each log:\n{logs}")]
    Deadline {
        what: String,
        /// The time limit.
        limit: Duration,
        /// The last lines of the logs.
        logs: String,
    },
    /// The Slurm cannot run such a lab; a test with this error counts as not run.
    #[error("not run: {why}")]
    NotHere { why: &'static str },
    /// The machine lacks something that a lab needs.
    #[error("{what}\nhint: {hint}")]
    Machine {
        /// The missing thing.
        what: String,
        hint: String,
    },
}

impl fmt::Debug for LabError {
    /// As for people: tests print returned errors in this way, and logs need line breaks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LabError {
    /// An error about a file, for `map_err`.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |reason| Self::File {
            action,
            path,
            reason,
        }
    }
}
