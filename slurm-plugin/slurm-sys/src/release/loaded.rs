//! The release of a plugin of Slurm's that is loaded already. Slurm compared it with its own before it kept
//! it; and what is loaded stays what it was when an upgrade puts other files on the disk.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::Release;

const TYPE: &CStr = c"plugin_type";
const VERSION: &CStr = c"plugin_version";
/// No type of Slurm's is as long.
const KIND_LENGTH: usize = 64;
/// Of these Slurm compares the series alone.
const SPANK: &[u8] = b"spank";

/// The host's release; `None` if it has no plugin yet. `own` is that of the plugin that asks.
pub(super) fn release(own: *const u32) -> Option<Release> {
    objects().iter().find_map(|path| plugin(path, own))
}

/// The files of all loaded libraries, by their paths.
fn objects() -> Vec<CString> {
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `note` is called before this returns, with the pointer to `paths`.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut paths).cast()) };
    paths
}

unsafe extern "C" fn note(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    paths: *mut c_void,
) -> c_int {
    // SAFETY: as `objects` calls it; the loader's name is NULL or NUL-terminated.
    unsafe {
        let name = (*object).dlpi_name;
        // The program itself has no name, and what is not a file no slash.
        if !name.is_null() && CStr::from_ptr(name).to_bytes().contains(&b'/') {
            (*paths.cast::<Vec<CString>>()).push(CStr::from_ptr(name).to_owned());
        }
    }
    0
}

/// The release of one library, if it is a plugin of Slurm's.
fn plugin(path: &CStr, own: *const u32) -> Option<Release> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded: either the library is there, or the answer is NULL. The handle keeps
    // it there until it is closed, and its symbols are read only before that.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let found = symbols(path, handle).and_then(|(kind, version)| {
            let kind = kind_of(kind)?;
            let other = kind != SPANK && version.cast_const() != own;
            other
                .then(|| Release(version.read_volatile()))
                .filter(Release::is_plausible)
        });
        libc::dlclose(handle);
        found
    }
}

/// The text of a `plugin_type`, `job_submit/lua`; None for what is no such text: another library may have a
/// symbol of that name.
///
/// # Safety
/// `start` is a symbol of a library that is loaded.
unsafe fn kind_of(start: *const c_char) -> Option<Vec<u8>> {
    let mut kind = Vec::new();
    for position in 0..KIND_LENGTH {
        // SAFETY: by the contract of this function, and all before was text: the array goes on at least to its NUL.
        let byte = unsafe { start.add(position).read() }.cast_unsigned();
        match byte {
            0 => return Some(kind),
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/' => kind.push(byte),
            _ => return None,
        }
    }
    None
}

/// `plugin_type` and `plugin_version` of a library; not those of a library that it needs.
///
/// # Safety
/// `handle` is the library at `path`.
unsafe fn symbols(path: &CStr, handle: *mut c_void) -> Option<(*const c_char, *mut u32)> {
    // SAFETY: by the contract of this function; dlsym and dladdr only search.
    let find = |name: &CStr| unsafe {
        let symbol = libc::dlsym(handle, name.as_ptr());
        let file = super::stock::file_of(symbol)?;
        (file.as_c_str() == path).then_some(symbol)
    };
    Some((find(TYPE)?.cast(), find(VERSION)?.cast()))
}
