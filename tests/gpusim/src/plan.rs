//! The arguments of the fake CUDA program, and the reasons why it cannot run.

use std::time::Duration;

use nvidia_ml::pattern::Pattern;
use nvidia_ml::store::StoreError;

use crate::mps;

/// The reasons why the program cannot run; each has its exit status.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// CUDA error 100.
    #[error("no CUDA-capable device is detected ({0})")]
    NoDevice(String),
    /// CUDA error 2.
    #[error(
        "out of memory: asked for {asked_mib} MiB, {free_mib} MiB of {total_mib} MiB are free on {device}"
    )]
    OutOfMemory {
        device: String,
        /// The requested memory in MiB.
        asked_mib: u64,
        /// The free memory in MiB.
        free_mib: u64,
        /// The memory of the device in MiB.
        total_mib: u64,
    },
    /// CUDA error 46.
    #[error("all CUDA-capable devices are busy or unavailable ({0})")]
    Unavailable(String),
    /// CUDA errors 806, 807 and 810.
    #[error(transparent)]
    Mps(#[from] mps::MpsError),
    /// The node's folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed.
    #[error("waiting for signals: {0}")]
    Signals(#[from] nix::Error),
    /// This process is not in /proc.
    #[error("this process has no /proc/self/stat")]
    NoProc,
}

impl ProgramError {
    /// The exit status: CUDA's error number if there is one, the last eight bits of a larger one.
    pub fn status(&self) -> u8 {
        match self {
            ProgramError::NoDevice(_) => 100,
            ProgramError::OutOfMemory { .. } => 2,
            ProgramError::Unavailable(_) => 46,
            ProgramError::Mps(error) => error.number() as u8,
            ProgramError::Store(_) | ProgramError::Signals(_) | ProgramError::NoProc => 1,
        }
    }
}

/// The arguments of the program.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `CUDA_VISIBLE_DEVICES`; `None` when it is not set.
    pub visible: Option<String>,
    /// The memory to allocate in MiB.
    pub memory_mib: u64,
    /// The running time; None until a signal.
    pub time: Option<Duration>,
    /// The pattern of activity.
    pub pattern: Pattern,
    /// The command name in NVML.
    pub name: String,
    /// The variables of MPS.
    pub mps: mps::Settings,
}
