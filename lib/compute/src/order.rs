//! The orders to a client process and its answers, each a line of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An order to a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Lists the devices, without a context: [`Seen`].
    Look,
    /// Makes a context on the first device and loads the kernels: [`Begun`].
    Begin,
    /// Counts the multiprocessors on which blocks run: a number.
    Blocks,
    /// Looks for the largest allocation: [`Largest`].
    Largest,
    /// Allocates MiB of memory until the end of the process.
    Hold(u64),
    /// Computes for seconds. Answers twice: after the first kernels, and with [`Computed`].
    Compute(f64),
    /// Writes to an address without memory.
    Fault,
    /// Runs a short kernel.
    Work,
    /// Opens a file, to write if the bool is true: [`Opened`].
    Open(PathBuf, bool),
}

/// The reasons why a client did not do what it was ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A call of CUDA's driver API failed, with its name and number.
    /// Cure: The number is explained in the driver API's list of results.
    #[error("{call} failed: {name} ({code})")]
    Cuda {
        /// The function of cuda.h.
        call: String,
        /// The number of CUresult.
        code: i32,
        /// The name of that number, `CUDA_ERROR_...`.
        name: String,
    },
    /// libcuda.so.1 is not on this host. What needs it is not measured.
    /// Cure: Install the driver's compute library.
    #[error("loading the driver's library failed: {0}")]
    Library(String),
    /// A call of the driver hangs.
    /// Cure: `nvidia-smi` and the kernel's log (Xid) say more.
    #[error("the client gave no answer in {seconds} s")]
    Silent {
        /// The limit in seconds.
        seconds: u64,
    },
    /// A program of the measurement ended by itself, for example killed for memory.
    /// Cure: The page says what was not measured; run it again.
    #[error("the client ended: {0}")]
    Ended(String),
    /// The process could not be started or its answer not be read.
    #[error("{0}")]
    Process(String),
}

impl Failure {
    /// CUDA's number; None for other failures.
    pub fn code(&self) -> Option<i32> {
        match self {
            Failure::Cuda { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// The devices that a process sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The version of the driver API, 12040 for 12.4 (`cuDriverGetVersion`).
    pub cuda: i32,
    /// The devices in CUDA's order.
    pub devices: Vec<Device>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The name (`cuDeviceGetName`).
    pub name: String,
    /// `GPU-...` or `MIG-...` (`cuDeviceGetUuid_v2`, the instance's own under MIG). No record keeps it.
    pub uuid: String,
    /// The memory in MiB (`cuDeviceTotalMem_v2`).
    pub memory_mib: u64,
    /// The multiprocessors (`CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`).
    pub multiprocessors: u32,
    /// The compute mode (`CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`), 0 for the default.
    pub compute_mode: i32,
}

/// A process with a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Milliseconds from `cuInit` to the context.
    pub ms: f64,
    /// The multiprocessors of the device by attribute, asked with the context.
    pub multiprocessors: u32,
    /// The multiprocessors of the context (`cuCtxGetExecAffinity`); None without an answer, as on GPUs without MPS.
    pub affinity: Option<u32>,
    /// The memory of the device in MiB (`cuMemGetInfo_v2`).
    pub memory_mib: u64,
    /// The free memory in MiB.
    pub free_mib: u64,
}

/// The memory that a process gets. It is freed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Largest {
    /// The largest single allocation in MiB, exact to 2 MiB.
    pub single_mib: u64,
    /// The sum of allocations of 1 GiB down to 2 MiB, in MiB; at most the device's memory.
    pub pieces_mib: u64,
}

/// The result of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// Its length in seconds.
    pub seconds: f64,
    /// 10^12 operations with numbers of 32 bits a second.
    pub tflops: f64,
}

/// The result of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The number of errno; None if the file was opened.
    pub errno: Option<i32>,
}

impl Opened {
    /// Whether permissions or the device control group forbid it (EPERM, EACCES).
    pub fn is_denied(self) -> bool {
        matches!(self.errno, Some(1 | 13))
    }

    /// Whether there is no such file (ENOENT).
    pub fn is_missing(self) -> bool {
        self.errno == Some(2)
    }
}
