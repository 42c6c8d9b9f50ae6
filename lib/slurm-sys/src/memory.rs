//! Strings and string lists in Slurm's memory.
//!
//! Slurm frees the values that a plugin leaves in its structures by its own `xfree`, which expects a header before
//! the block. Such memory must come from `slurm_xcalloc`. The prototypes are those of Slurm's `src/common/xmalloc.h`,
//! the same from 22.05 to 26.05.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::text;

unsafe extern "C" {
    fn slurm_xcalloc(
        count: usize,
        size: usize,
        clear: bool,
        try_only: bool,
        file: *const c_char,
        line: c_int,
        function: *const c_char,
    ) -> *mut c_void;
    fn slurm_xfree(item: *mut *mut c_void);
}

fn alloc(bytes: usize) -> *mut c_void {
    // SAFETY: plain allocation; the two texts are static. It never returns NULL: without
    // `try_only` Slurm ends the process itself when there is no memory.
    unsafe {
        slurm_xcalloc(
            1,
            bytes,
            true,
            false,
            c"gpufrac".as_ptr(),
            0,
            c"gpufrac".as_ptr(),
        )
    }
}

/// A new string in Slurm's memory, owned by the receiver. A NUL in `text` ends it.
fn new(text: &str) -> *mut c_char {
    let bytes = text.split('\0').next().unwrap_or_default().as_bytes();
    let copy = alloc(bytes.len() + 1).cast::<u8>();
    // SAFETY: the block is one byte longer than the text and was cleared.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    copy.cast()
}

/// Sets a field of one of Slurm's structures to `text`, and frees the old value.
///
/// # Safety
/// `field` points to a valid `char *` that is NULL or was allocated by Slurm.
pub unsafe fn replace(field: *mut *mut c_char, text: Option<&str>) {
    // SAFETY: by the contract of this function; xfree takes NULL and sets the field to NULL.
    unsafe {
        slurm_xfree(field.cast());
        if let Some(text) = text {
            *field = new(text);
        }
    }
}

/// Adds a line to a message of Slurm that other plugins may have begun.
///
/// # Safety
/// As [`replace`].
pub unsafe fn append_line(field: *mut *mut c_char, line: &str) {
    // SAFETY: by the contract of this function.
    unsafe {
        match text::read(*field).filter(|before| !before.is_empty()) {
            Some(before) => replace(field, Some(&format!("{before}\n{line}"))),
            None => replace(field, Some(line)),
        }
    }
}

/// Reads a string that Slurm passed to the caller, and frees it.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string allocated by Slurm that nobody else owns.
pub unsafe fn take(mut text: *mut c_char) -> Option<String> {
    // SAFETY: by the contract of this function.
    unsafe {
        let copy = text::read(text);
        slurm_xfree((&raw mut text).cast());
        copy
    }
}

/// Replaces a counted list of strings of one of Slurm's structures, and frees the old one.
///
/// # Safety
/// `list` and `count` point to the two fields of one structure; the list is NULL or holds `count` pointers, and it
/// and its strings were allocated by Slurm.
pub unsafe fn replace_list(list: *mut *mut *mut c_char, count: *mut u32, texts: &[String]) {
    // SAFETY: by the contract of this function. The new list is as long as `texts`, and
    // Slurm packs and frees exactly `count` entries.
    unsafe {
        if !(*list).is_null() {
            for position in 0..*count as usize {
                slurm_xfree((*list).add(position).cast());
            }
            slurm_xfree(list.cast());
        }
        *count = 0;
        if texts.is_empty() {
            return;
        }
        *list = alloc(size_of::<*mut c_char>() * (texts.len() + 1)).cast();
        for (position, text) in texts.iter().enumerate() {
            *(*list).add(position) = new(text);
        }
        *count = u32::try_from(texts.len()).unwrap_or(0);
    }
}
