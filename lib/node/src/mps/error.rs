//! The errors of control daemons, and whether a retry can help.

use std::path::PathBuf;

use gpufrac_host::files::FileError;

use crate::fault::{Cause, Caused, Facts, of_system_call};

/// The reasons why a daemon could not be used.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The program cannot be run.
    #[error("starting `{}` failed: {source}", program.display())]
    Run {
        program: PathBuf,
        source: std::io::Error,
    },
    /// The control daemon of MPS did not start; the text is its own.
    /// Cure: Install the driver's `nvidia-cuda-mps-control`; a multi-user server needs driver 555 or later.
    #[error("`{} {options}` did not start a control daemon: {reason}", program.display())]
    Start {
        program: PathBuf,
        options: String,
        reason: String,
    },
    /// The control daemon hangs.
    /// Cure: It is replaced when its jobs end.
    #[error("the control daemon of `{}` does not answer `{command}`", folder.display())]
    Silent { folder: PathBuf, command: String },
    /// The control daemon died.
    /// Cure: The next job starts a new one.
    #[error("no control daemon answers in `{}`", folder.display())]
    Absent { folder: PathBuf },
    /// The control daemon did not take a setting.
    /// Cure: Compare the versions of driver and control daemon.
    #[error("the control daemon of `{}` did not apply {what} {wanted}: it reports `{found}`", folder.display())]
    Limit {
        folder: PathBuf,
        /// The kind of limit.
        what: &'static str,
        /// The limit that was set.
        wanted: String,
        /// The limit that it reports.
        found: String,
    },
    // No static partition was created. A killed prolog may have left one that uses the chunks; it ends with the
    // daemon.
    /// The control daemon has no static partitions of this size.
    /// Cure: Remove `sm_chunks`, or install a newer driver.
    #[error("the control daemon of `{}` did not create a partition of {chunks} chunks: it reports `{found}`", folder.display())]
    Partition {
        folder: PathBuf,
        /// The requested number of chunks.
        chunks: u32,
        /// The daemon's answer.
        found: String,
    },
    /// The settings of the control daemon are old, and jobs still use it.
    /// Cure: Nothing: it is replaced when these jobs end.
    #[error(
        "{what}; its servers still have clients of jobs {jobs}, so it is replaced when these end"
    )]
    Occupied {
        /// The fault of the daemon.
        what: String,
        jobs: String,
    },
    /// Processes of MPS hang in the driver.
    /// Cure: Look for Xid errors; the node is drained. Reboot if they stay.
    #[error("the daemon of `{}` or its servers did not end; still running: processes {pids:?}", folder.display())]
    Undead {
        folder: PathBuf,
        pids: Vec<i32>,
        /// Whether they wait in the kernel for a driver; otherwise the machine is busy.
        stuck: bool,
    },
}

impl Caused for MpsError {
    fn facts(&self) -> Facts {
        match self {
            MpsError::File(error) => error.facts(),
            MpsError::Run { source, .. } => of_system_call(source),
            // The program reports an unknown option. Without space or processes it prints nothing.
            MpsError::Start { reason, .. } if reason.is_empty() => Facts::passes(Cause::Root),
            MpsError::Start { .. } | MpsError::Limit { .. } => Facts::lasts(Cause::Root),
            MpsError::Silent { .. }
            | MpsError::Absent { .. }
            | MpsError::Partition { .. }
            | MpsError::Occupied { .. } => Facts::passes(Cause::User),
            // These are root's processes; only the kernel can keep them from ending.
            MpsError::Undead { .. } => Facts::passes(Cause::Hardware),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufrac_nvml::ErrorClass;

    use super::*;

    #[test]
    fn resources_that_users_exhaust_drain_no_node() {
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
