//! What can go wrong in a lab.

use std::path::PathBuf;
use std::time::Duration;

/// An error of the lab; each says on what it happened.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or folder could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error(
        "cannot start `{program}`: {source}\nhint: `cargo xtask setup` installs what is missing"
    )]
    Start {
        /// The program.
        program: String,
        /// The system's answer.
        source: std::io::Error,
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
    /// A command printed what the lab does not understand.
    #[error("`{command}` printed what the lab cannot read: {output}")]
    Unreadable {
        /// The command with its arguments.
        command: String,
        /// Its output.
        output: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {limit:?}\n{logs}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// The last lines of the logs.
        logs: String,
    },
    /// The machine can not carry a lab.
    #[error("{what}\nhint: {hint}")]
    Machine {
        /// What is missing.
        what: String,
        /// What to do.
        hint: String,
    },
}

impl LabError {
    /// An error about a file, for `map_err`.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
