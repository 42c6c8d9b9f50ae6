//! Errors of NVML, and whether a retry can help.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError as WrapperError;

/// Each code: its name and number, its word, and the error that nvml-wrapper makes of it, if it knows the code.
macro_rules! codes {
    ($($name:ident = $code:literal, $word:literal $(, $wrapped:ident)?;)*) => {
        /// NVML's return codes, by the names of nvml.h without `NVML_ERROR_`.
        pub mod codes {
            #![allow(missing_docs, reason = "nvml.h describes them")]

            pub const SUCCESS: u32 = 0;
            $(pub const $name: u32 = $code;)*
        }

        /// A word for a return code; `error` for one that nvml.h does not have.
        pub fn code_name(code: u32) -> &'static str {
            match code {
                $(codes::$name => $word,)*
                _ => "error",
            }
        }

        /// The return code behind an error of nvml-wrapper.
        pub(super) fn code_of(error: &WrapperError) -> u32 {
            match error {
                $($(WrapperError::$wrapped { .. } => codes::$name,)?)*
                WrapperError::UnexpectedVariant(code) => *code,
                _ => codes::UNKNOWN,
            }
        }
    };
}

codes! {
    UNINITIALIZED = 1, "not initialised", Uninitialized;
    INVALID_ARGUMENT = 2, "invalid argument", InvalidArg;
    NOT_SUPPORTED = 3, "not supported", NotSupported;
    NO_PERMISSION = 4, "no permission", NoPermission;
    NOT_FOUND = 6, "not found", NotFound;
    INSUFFICIENT_SIZE = 7, "insufficient size", InsufficientSize;
    DRIVER_NOT_LOADED = 9, "driver not loaded", DriverNotLoaded;
    TIMEOUT = 10, "timeout", Timeout;
    IRQ_ISSUE = 11, "interrupt issue", IrqIssue;
    LIBRARY_NOT_FOUND = 12, "library not found", LibraryNotFound;
    FUNCTION_NOT_FOUND = 13, "function not found", FunctionNotFound;
    CORRUPTED_INFOROM = 14, "corrupted infoROM", CorruptedInfoROM;
    GPU_IS_LOST = 15, "GPU is lost", GpuLost;
    RESET_REQUIRED = 16, "reset required", ResetRequired;
    OPERATING_SYSTEM = 17, "blocked by the operating system", OperatingSystem;
    LIB_RM_VERSION_MISMATCH = 18, "driver and library versions differ", LibRmVersionMismatch;
    IN_USE = 19, "in use", InUse;
    MEMORY = 20, "insufficient memory", InsufficientMemory;
    NO_DATA = 21, "no data", NoData;
    INSUFFICIENT_RESOURCES = 23, "insufficient resources";
    ARGUMENT_VERSION_MISMATCH = 25, "argument version mismatch";
    NOT_READY = 27, "not ready";
    GPU_NOT_FOUND = 28, "GPU not found";
    INVALID_STATE = 29, "invalid state";
    UNKNOWN = 999, "unknown error";
}

/// The function that makes GPU instances.
const CREATE_GPU_INSTANCE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
/// The function that gives a GPU's handle.
pub(super) const GET_GPU: &str = "nvmlDeviceGetHandleByPciBusId_v2";

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

    /// Whether the call was for the GPU's handle, which the first call on a GPU needs.
    pub(super) fn is_of_gpu(&self) -> bool {
        matches!(self, NvmlError::Call { call: GET_GPU, .. })
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
