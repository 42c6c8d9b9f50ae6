//! Errors of NVML, and whether a retry can help.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError as WrapperError;

/// NVML's return codes, by the names of nvml.h without `NVML_ERROR_`.
pub mod codes {
    #![allow(missing_docs, reason = "nvml.h describes them")]

    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    pub const IRQ_ISSUE: u32 = 11;
    pub const LIBRARY_NOT_FOUND: u32 = 12;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const CORRUPTED_INFOROM: u32 = 14;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    pub const IN_USE: u32 = 19;
    pub const MEMORY: u32 = 20;
    pub const NO_DATA: u32 = 21;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    pub const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    pub const NOT_READY: u32 = 27;
    pub const GPU_NOT_FOUND: u32 = 28;
    pub const INVALID_STATE: u32 = 29;
    pub const UNKNOWN: u32 = 999;
}

/// The function that makes GPU instances.
const CREATE_GPU_INSTANCE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The error may pass in a moment: a process that is ending, a busy driver.
    Transient,
    /// An admin must look at the node.
    Broken,
}

/// A call of NVML that failed.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The driver is not loaded, or its library is missing.
    /// Cure: Load the driver: `nvidia-smi` must work.
    #[error("starting NVML (`{}`) failed: {source}", path.display())]
    Start { path: PathBuf, source: WrapperError },
    /// The driver is older than gpufrac needs for MIG.
    /// Cure: Install a newer driver; [versions](../versions.md).
    #[error("`{}` has no {call}; the driver is too old for gpufrac with MIG", library.display())]
    Missing {
        call: &'static str,
        library: PathBuf,
    },
    /// A call returned an error.
    #[error("{call} on {subject}: {} ({code})", code_name(*code))]
    Call {
        call: &'static str,
        /// The GPU or instance of the call.
        subject: String,
        /// NVML's return code.
        code: u32,
    },
}

impl NvmlError {
    /// NVML's return code; None if no call was made.
    pub fn code(&self) -> Option<u32> {
        match self {
            NvmlError::Start { source, .. } => Some(code_of(source)),
            NvmlError::Missing { .. } => None,
            NvmlError::Call { code, .. } => Some(*code),
        }
    }

    pub(super) fn has_code(&self, wanted: &[u32]) -> bool {
        self.code().is_some_and(|code| wanted.contains(&code))
    }

    /// Whether the instance is still in use.
    pub fn is_in_use(&self) -> bool {
        self.has_code(&[codes::IN_USE])
    }

    /// Whether counters of activity cannot be read because another program probably has them. The open kernel module
    /// has one profiling subscription for a GPU, and refuses a second one as an invalid state
    /// (gpu_instance_subscription.c); whether GPM of an instance is one, and the code that NVML makes of it, are not
    /// public.
    pub fn counters_are_taken(&self) -> bool {
        self.has_code(&[
            codes::INVALID_STATE,
            codes::IN_USE,
            codes::INSUFFICIENT_RESOURCES,
        ])
    }

    /// An error of reading counters of activity, with its likely cause.
    pub fn of_counters(&self) -> String {
        if self.counters_are_taken() {
            format!(
                "{self}: DCGM's profiling, or another profiler, probably has the counters of the GPU; take DCGM_FI_PROF_* out of dcgm-exporter's list of fields"
            )
        } else {
            self.to_string()
        }
    }

    /// Whether the GPU fell off the bus.
    pub fn is_lost(&self) -> bool {
        self.code() == Some(codes::GPU_IS_LOST)
    }

    /// What an admin can do about a state of the driver that lasts.
    pub fn hint(&self) -> Option<&'static str> {
        match self.code()? {
            codes::LIB_RM_VERSION_MISMATCH => Some(
                "the driver's library is newer than the loaded kernel module: reboot the node, or end its jobs, load the module again and run `gpufrac node-setup`",
            ),
            codes::GPU_IS_LOST => Some(
                "the kernel's log has its Xid (79: it fell off the bus): reboot the node, and have the GPU looked at if it is lost again",
            ),
            codes::RESET_REQUIRED => Some(
                "end the jobs on the GPU, then `nvidia-smi --gpu-reset -i N`, or reboot the node",
            ),
            _ => None,
        }
    }

    /// Whether the driver refused to create a GPU instance, because there is no room or MIG is off. It created none
    /// then.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            NvmlError::Call {
                call: CREATE_GPU_INSTANCE,
                code: codes::INSUFFICIENT_RESOURCES | codes::NOT_SUPPORTED,
                ..
            }
        )
    }

    /// Whether a driver may answer so where it does not make the first instance of a GPU that something uses: sources
    /// do not tell the code.
    pub fn may_be_busy(&self) -> bool {
        self.has_code(&[codes::IN_USE, codes::INVALID_STATE, codes::UNKNOWN])
    }

    /// Whether a retry can help.
    pub fn class(&self) -> ErrorClass {
        match self.code() {
            Some(
                codes::IN_USE
                | codes::INSUFFICIENT_RESOURCES
                // A list grew between two calls, which users' processes can cause.
                | codes::INSUFFICIENT_SIZE
                | codes::TIMEOUT
                | codes::IRQ_ISSUE
                | codes::OPERATING_SYSTEM
                | codes::MEMORY
                | codes::NO_DATA
                | codes::NOT_READY
                | codes::INVALID_STATE
                | codes::NOT_FOUND
                | codes::UNINITIALIZED
                | codes::UNKNOWN,
            ) => match self {
                // A failure to load the library does not pass.
                NvmlError::Start { source, .. } if is_load_failure(source) => ErrorClass::Broken,
                _ => ErrorClass::Transient,
            },
            _ => ErrorClass::Broken,
        }
    }
}

fn is_load_failure(error: &WrapperError) -> bool {
    matches!(
        error,
        WrapperError::LibloadingError(_)
            | WrapperError::FailedToLoadSymbol(_)
            | WrapperError::NulError(_)
            | WrapperError::Utf8Error(_)
    )
}

/// The return code behind an error of nvml-wrapper.
pub(super) fn code_of(error: &WrapperError) -> u32 {
    match error {
        WrapperError::Uninitialized => codes::UNINITIALIZED,
        WrapperError::InvalidArg => codes::INVALID_ARGUMENT,
        WrapperError::NotSupported => codes::NOT_SUPPORTED,
        WrapperError::NoPermission => codes::NO_PERMISSION,
        WrapperError::NotFound => codes::NOT_FOUND,
        WrapperError::InsufficientSize(_) => codes::INSUFFICIENT_SIZE,
        WrapperError::DriverNotLoaded => codes::DRIVER_NOT_LOADED,
        WrapperError::Timeout => codes::TIMEOUT,
        WrapperError::IrqIssue => codes::IRQ_ISSUE,
        WrapperError::LibraryNotFound => codes::LIBRARY_NOT_FOUND,
        WrapperError::FunctionNotFound => codes::FUNCTION_NOT_FOUND,
        WrapperError::CorruptedInfoROM => codes::CORRUPTED_INFOROM,
        WrapperError::GpuLost => codes::GPU_IS_LOST,
        WrapperError::ResetRequired => codes::RESET_REQUIRED,
        WrapperError::OperatingSystem => codes::OPERATING_SYSTEM,
        WrapperError::LibRmVersionMismatch => codes::LIB_RM_VERSION_MISMATCH,
        WrapperError::InUse => codes::IN_USE,
        WrapperError::InsufficientMemory => codes::MEMORY,
        WrapperError::NoData => codes::NO_DATA,
        WrapperError::UnexpectedVariant(code) => *code,
        _ => codes::UNKNOWN,
    }
}

/// A word for a return code; `error` for one that nvml.h does not have.
pub fn code_name(code: u32) -> &'static str {
    match code {
        codes::UNINITIALIZED => "not initialised",
        codes::INVALID_ARGUMENT => "invalid argument",
        codes::NOT_SUPPORTED => "not supported",
        codes::NO_PERMISSION => "no permission",
        codes::NOT_FOUND => "not found",
        codes::INSUFFICIENT_SIZE => "insufficient size",
        codes::DRIVER_NOT_LOADED => "driver not loaded",
        codes::TIMEOUT => "timeout",
        codes::IRQ_ISSUE => "interrupt issue",
        codes::LIBRARY_NOT_FOUND => "library not found",
        codes::FUNCTION_NOT_FOUND => "function not found",
        codes::CORRUPTED_INFOROM => "corrupted infoROM",
        codes::GPU_IS_LOST => "GPU is lost",
        codes::RESET_REQUIRED => "reset required",
        codes::OPERATING_SYSTEM => "blocked by the operating system",
        codes::LIB_RM_VERSION_MISMATCH => "driver and library versions differ",
        codes::IN_USE => "in use",
        codes::MEMORY => "insufficient memory",
        codes::NO_DATA => "no data",
        codes::INSUFFICIENT_RESOURCES => "insufficient resources",
        codes::ARGUMENT_VERSION_MISMATCH => "argument version mismatch",
        codes::NOT_READY => "not ready",
        codes::GPU_NOT_FOUND => "GPU not found",
        codes::INVALID_STATE => "invalid state",
        codes::UNKNOWN => "unknown error",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: u32) -> NvmlError {
        NvmlError::Call {
            call: "nvmlGpuInstanceDestroy",
            subject: "GPU 0".into(),
            code,
        }
    }

    #[test]
    fn only_passing_errors_are_retried() {
        for code in [19, 23, 10, 999, 29, 7] {
            assert_eq!(call(code).class(), ErrorClass::Transient, "{code}");
        }
        for code in [3, 4, 9, 15, 16, 18, 2] {
            assert_eq!(call(code).class(), ErrorClass::Broken, "{code}");
        }
        let absent = NvmlError::Start {
            path: "/nowhere".into(),
            source: WrapperError::FailedToLoadSymbol("x".into()),
        };
        assert_eq!(absent.class(), ErrorClass::Broken);
    }

    #[test]
    fn a_refusal_is_of_a_gpu_instance() {
        let made = |call: &'static str, code| NvmlError::Call {
            call,
            subject: "GPU 0".into(),
            code,
        };
        assert!(made(CREATE_GPU_INSTANCE, 23).is_refusal());
        assert!(made(CREATE_GPU_INSTANCE, 3).is_refusal());
        assert!(!made(CREATE_GPU_INSTANCE, 999).is_refusal());
        assert!(!made("nvmlGpuInstanceCreateComputeInstance", 23).is_refusal());
    }

    #[test]
    fn a_message_names_call_gpu_and_code() {
        assert_eq!(
            call(19).to_string(),
            "nvmlGpuInstanceDestroy on GPU 0: in use (19)"
        );
    }
}
