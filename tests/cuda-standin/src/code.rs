//! Error numbers.

use std::ffi::CStr;

use gpusim::program::ProgramError;

/// An error number of `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

/// The error numbers with their names, of cuda.h.
pub const NAMES: [(i32, &CStr); 16] = [
    (1, c"CUDA_ERROR_INVALID_VALUE"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, c"CUDA_ERROR_NO_DEVICE"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY"),
    (805, c"CUDA_ERROR_MPS_CONNECTION_FAILED"),
    (806, c"CUDA_ERROR_MPS_RPC_FAILURE"),
    (807, c"CUDA_ERROR_MPS_SERVER_NOT_READY"),
    (810, c"CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    (500, c"CUDA_ERROR_NOT_FOUND"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

impl From<ProgramError> for Code {
    fn from(error: ProgramError) -> Code {
        Code(match error {
            ProgramError::NoDevice(_) => 100,
            ProgramError::OutOfMemory { .. } => 2,
            ProgramError::Unavailable(_) => 46,
            ProgramError::Mps(error) => error.number().into(),
            ProgramError::Store(_) | ProgramError::Signals(_) | ProgramError::NoProc => 999,
        })
    }
}
