//! The exit codes of gpufrac's programs. Slurm and systemd act on them, so they are an interface.

/// How a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or nothing to do. Also when a job was put back in the queue or cancelled because
    /// its slice could not be carved now: the node is fine and stays in use.
    Done = 0,
    /// As prolog: this node cannot carve, an admin has to look; Slurm drains it. As command: a
    /// check failed.
    Broken = 1,
    /// The command line or the environment makes no sense.
    Usage = 2,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}
