//! Reads strings and string lists of Slurm.

use std::ffi::{CStr, c_char};

/// Reads a C string of Slurm. None for NULL; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated string.
pub unsafe fn read(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by the contract of this function.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

/// The length of a C string of Slurm in bytes; 0 for NULL. Reads at most `limit + 1` bytes: a longer string has the
/// length `limit + 1`.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated string.
pub unsafe fn length(text: *const c_char, limit: usize) -> usize {
    if text.is_null() {
        return 0;
    }
    // SAFETY: by the contract of this function.
    unsafe { libc::strnlen(text, limit.saturating_add(1)) }
}

/// Reads a counted list of strings; skips NULL entries.
///
/// # Safety
/// `list` is NULL or holds `count` pointers, each NULL or a NUL-terminated string.
pub unsafe fn read_list(list: *mut *mut c_char, count: u32) -> Vec<String> {
    if list.is_null() {
        return Vec::new();
    }
    (0..count as usize)
        // SAFETY: by the contract of this function.
        .filter_map(|position| unsafe { read(*list.add(position)) })
        .collect()
}
