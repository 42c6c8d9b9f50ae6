//! What can go wrong in a lab.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::Folder;
use crate::patience::Patience;

/// An error of the lab; each says on what it happened.
#[derive(thiserror::Error)]
pub enum LabError {
    /// A file or folder could not be read or written.
    #[error("{action} {}: {reason}", path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        reason: std::io::Error,
    },
    /// A program could not be started.
    #[error(
        "cannot start `{program}`: {reason}\nhint: `cargo xtask setup` installs what is missing"
    )]
    Start {
        /// The program.
        program: String,
        /// The system's answer.
        reason: std::io::Error,
    },
    /// A command of Slurm or of the lab failed.
    #[error("`{command}` ended with {status}\n{stdout}{stderr}")]
    Command {
        /// The command with its arguments.
        command: String,
        /// Exit status in words.
        status: String,
        /// What it wrote to stdout.
        stdout: String,
        /// What it wrote to stderr.
        stderr: String,
    },
    /// Something is not as the lab has to find it.
    #[error("{what}: {found}")]
    Unexpected {
        /// What was looked at: a command, a file, a state.
        what: String,
        /// What was found.
        found: String,
    },
    /// A daemon ended though nobody asked it to.
    #[error("{daemon} ended; the last lines of its log say why:\n{logs}")]
    Ended {
        /// The daemon.
        daemon: String,
        /// The last lines of the logs.
        logs: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {limit:?}; the last lines of each log:\n{logs}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// The last lines of the logs.
        logs: String,
    },
    /// The machine cannot carry a lab.
    #[error("{what}\nhint: {hint}")]
    Machine {
        /// What is missing.
        what: String,
        /// What to do.
        hint: String,
    },
}

impl fmt::Debug for LabError {
    /// As for people: a test that returns an error prints it this way, and logs need their lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LabError {
    /// An error about a wait that was to take `limit` at most and took several times as long.
    pub(crate) fn deadline(what: &str, limit: Duration, folder: &Folder) -> Self {
        Self::Deadline {
            what: what.into(),
            limit: Patience::new(limit).most(),
            logs: folder.log_tails(15),
        }
    }

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
