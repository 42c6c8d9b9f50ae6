//! Why a control daemon could not be used, and whether waiting may help.

use std::path::PathBuf;

use gpufrac_host::files::FileError;
use gpufrac_host::shortage::is_shortage;
use gpufrac_nvml::ErrorClass;

use crate::node::class_of_file;

/// Why a daemon could not be used.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// A file or folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The program cannot be run.
    #[error("cannot run `{}`: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It ended without leaving a daemon.
    #[error("`{} {options}` did not start a control daemon: {reason}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Its options.
        options: String,
        /// What it said.
        reason: String,
    },
    /// No answer in time.
    #[error("the control daemon of `{}` does not answer `{command}`", folder.display())]
    Silent {
        /// The daemon's folder.
        folder: PathBuf,
        /// What it was told.
        command: String,
    },
    /// There is no daemon to answer.
    #[error("no control daemon answers in `{}`", folder.display())]
    Absent {
        /// The daemon's folder.
        folder: PathBuf,
    },
    /// What was set is not what it says.
    #[error("the control daemon of `{}` was told {what} {wanted} and says `{found}`", folder.display())]
    Limit {
        /// The daemon's folder.
        folder: PathBuf,
        /// Which limit.
        what: &'static str,
        /// What it was told.
        wanted: String,
        /// What it says.
        found: String,
    },
    /// No static partition was made: chunks may be in one that a killed prolog left; it goes with the
    /// daemon.
    #[error("the control daemon of `{}` made no partition of {chunks} chunks: `{found}`", folder.display())]
    Partition {
        /// The daemon's folder.
        folder: PathBuf,
        /// How many were wanted.
        chunks: u32,
        /// What it says.
        found: String,
    },
    /// It must be replaced, and others use it.
    #[error(
        "{what}; its servers still have clients of jobs {jobs}, so it is replaced when these end"
    )]
    Occupied {
        /// What is wrong with the daemon.
        what: String,
        /// The jobs.
        jobs: String,
    },
    /// Processes of root that do not end.
    #[error("the daemon of `{}` or its servers do not end: processes {pids:?}", folder.display())]
    Undead {
        /// The daemon's folder.
        folder: PathBuf,
        /// The processes.
        pids: Vec<i32>,
        /// Whether they wait in the kernel, for a driver; else the machine is busy.
        stuck: bool,
    },
}

impl MpsError {
    /// Whether waiting may help.
    pub fn class(&self) -> ErrorClass {
        match self {
            MpsError::Silent { .. }
            | MpsError::Absent { .. }
            | MpsError::Partition { .. }
            | MpsError::Occupied { .. }
            | MpsError::Undead { .. } => ErrorClass::Transient,
            MpsError::File(error) => class_of_file(error),
            MpsError::Run { source, .. } if is_shortage(source) => ErrorClass::Transient,
            // What a program does not know it says. If space or processes are used up, it says nothing.
            MpsError::Start { reason, .. } if reason.is_empty() => ErrorClass::Transient,
            MpsError::Run { .. } | MpsError::Start { .. } | MpsError::Limit { .. } => {
                ErrorClass::Broken
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_use_up_is_no_fault_of_the_node() {
        let start = |reason: &str| MpsError::Start {
            program: "control".into(),
            options: "-d".into(),
            reason: reason.into(),
        };
        let run = |errno| MpsError::Run {
            program: "control".into(),
            source: std::io::Error::from_raw_os_error(errno),
        };
        let (again, absent) = (11, 2);
        for (error, class) in [
            (start(""), ErrorClass::Transient),
            (start("Cannot find MPS"), ErrorClass::Broken),
            (run(again), ErrorClass::Transient),
            (run(absent), ErrorClass::Broken),
        ] {
            assert_eq!(error.class(), class, "{error}");
        }
    }
}
