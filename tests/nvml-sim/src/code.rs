//! NVML's return codes.

use std::fmt;

use nvml_wrapper_sys::bindings as sys;

/// A return code of NVML other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $number:ident, $text:literal;)*) => {
        impl Code {
            $(#[doc = $text] pub const $name: Code = Code(sys::$number);)*

            /// The code of this name (`INSUFFICIENT_RESOURCES`) or number.
            pub fn parse(text: &str) -> Option<Code> {
                if let Ok(number) = text.parse() {
                    return Some(Code(number));
                }
                let text = text.to_ascii_uppercase();
                match text.strip_prefix("NVML_ERROR_").unwrap_or(&text) {
                    $(stringify!($name) => Some(Code::$name),)*
                    _ => None,
                }
            }

            /// NVML's name of the code, without `NVML_ERROR_`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$name => stringify!($name),)*
                    _ => "?",
                }
            }

            /// The text of `nvmlErrorString` as a C string.
            pub fn c_text(self) -> &'static std::ffi::CStr {
                const NONE: &std::ffi::CStr = c"Unknown Error";
                let bytes: &'static str = match self {
                    Code(0) => "Success\0",
                    $(Code::$name => concat!($text, "\0"),)*
                    _ => return NONE,
                };
                std::ffi::CStr::from_bytes_with_nul(bytes.as_bytes()).unwrap_or(NONE)
            }
        }
    };
}

codes! {
    UNINITIALIZED = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED, "Uninitialized";
    INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument";
    NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, "Not Supported";
    NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION, "Insufficient Permissions";
    ALREADY_INITIALIZED = nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized";
    NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND, "Not Found";
    INSUFFICIENT_SIZE = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size";
    INSUFFICIENT_POWER = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power";
    DRIVER_NOT_LOADED = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded";
    TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT, "Timeout";
    IRQ_ISSUE = nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue";
    LIBRARY_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found";
    CORRUPTED_INFOROM = nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM";
    GPU_IS_LOST = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, "GPU is lost";
    RESET_REQUIRED = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED, "GPU requires reset";
    OPERATING_SYSTEM = nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request.";
    LIB_RM_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch";
    IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE, "In use by another client";
    MEMORY = nvmlReturn_enum_NVML_ERROR_MEMORY, "Insufficient Memory";
    NO_DATA = nvmlReturn_enum_NVML_ERROR_NO_DATA, "No data";
    VGPU_ECC_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "The requested vgpu operation is not available on target device, because ECC is enabled";
    INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources";
    FREQ_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency Not Supported";
    ARGUMENT_VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch";
    DEPRECATED = nvmlReturn_enum_NVML_ERROR_DEPRECATED, "Deprecated";
    NOT_READY = nvmlReturn_enum_NVML_ERROR_NOT_READY, "Not Ready";
    GPU_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND, "GPU Not Found";
    INVALID_STATE = nvmlReturn_enum_NVML_ERROR_INVALID_STATE, "Invalid State";
    UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN, "Unknown Error";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}: {})",
            self.name(),
            self.0,
            self.c_text().to_string_lossy()
        )
    }
}

/// The result of a call of NVML.
pub type Answer<T = ()> = Result<T, Code>;
