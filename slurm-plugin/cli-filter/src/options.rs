//! The options of a client command.
//!
//! `slurm_opt_t` is not a public structure; Slurm itself gives these functions to its Lua plugin. Prototypes:
//! `src/common/slurm_opt.h`, the same from 22.05 to 26.05.

use std::ffi::{CStr, CString, c_char, c_int};

use slurm_sys::memory;

/// Slurm's own structure, only used by pointer.
#[repr(C)]
pub struct SlurmOptions {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn slurm_option_get(options: *mut SlurmOptions, name: *const c_char) -> *mut c_char;
    fn slurm_option_set(
        options: *mut SlurmOptions,
        name: *const c_char,
        value: *const c_char,
        early: bool,
    ) -> c_int;
    fn slurm_option_reset(options: *mut SlurmOptions, name: *const c_char) -> bool;
    fn slurm_option_isset(options: *mut SlurmOptions, name: *const c_char) -> bool;
}

/// The options of this command, from the command line, the script and the environment.
pub struct Options(*mut SlurmOptions);

impl Options {
    /// # Safety
    /// `options` is the pointer that Slurm passed to the hook, and `Options` does not outlive the call.
    pub const unsafe fn new(options: *mut SlurmOptions) -> Self {
        Self(options)
    }

    /// The value of an option, if it was given and this command has it.
    pub fn get(&self, name: &CStr) -> Option<String> {
        // SAFETY: by the contract of `new`; the returned string is a copy that the caller owns.
        unsafe {
            if !slurm_option_isset(self.0, name.as_ptr()) {
                return None;
            }
            memory::take(slurm_option_get(self.0, name.as_ptr()))
        }
    }

    /// Sets an option. False if Slurm refuses the value.
    pub fn set(&self, name: &CStr, value: &str) -> bool {
        let Ok(value) = CString::new(value) else {
            return false;
        };
        // SAFETY: by the contract of `new`; Slurm copies the value.
        unsafe { slurm_option_set(self.0, name.as_ptr(), value.as_ptr(), false) == 0 }
    }

    /// Resets an option, as if it had not been given.
    pub fn reset(&self, name: &CStr) {
        // SAFETY: by the contract of `new`. The return value says whether the option was set before.
        unsafe { slurm_option_reset(self.0, name.as_ptr()) };
    }
}
