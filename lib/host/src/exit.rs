//! The exit codes of gpufrac's programs. Slurm and systemd act on them, so they are an interface.

/// The exit code of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success, or nothing to do. Also if a job was requeued or cancelled because its slice could not be made now:
    /// the node works and stays in use.
    Done = 0,
    /// Of prolog: this node cannot make slices until an admin corrects it; Slurm drains it. Of a command: a check
    /// failed.
    Broken = 1,
    /// The arguments or the environment are wrong.
    Usage = 2,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
