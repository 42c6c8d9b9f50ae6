//! Arguments of calls.

use std::ffi::{CStr, c_char, c_uint};

use crate::code::{Answer, Code};

/// A caller's text.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: nvml.h demands a C string, which lives at least as long as the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
    }
}

/// The arguments of a call that determine its GPU.
#[derive(Clone, Copy, Default)]
pub(crate) struct Target {
    /// The address of a handle, the first of several.
    pub handle: Option<usize>,
    /// A number, the first of several.
    pub number: Option<c_uint>,
    pub text: Option<Text>,
}
