//! The release of a plugin that Slurm loaded earlier. Slurm compared this plugin's release with its own; and a loaded
//! plugin stays the same when an upgrade replaces the files on the disk.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Release, Series};

const TYPE: &CStr = c"plugin_type";
const VERSION: &CStr = c"plugin_version";
/// Longer than any plugin type of Slurm, in bytes.
const KIND_LENGTH: usize = 64;
/// A function of Slurm's library.
const FUNCTION: &CStr = c"slurm_xfree";
/// Of these plugins Slurm only compares the series.
const SPANK: &[u8] = b"spank";

/// The host's release; None if it has no plugin yet. `own` is the version symbol of the plugin that asks.
pub(super) fn release(own: *const u32) -> Option<Release> {
    libraries().iter().find_map(|library| plugin(library, own))
}

/// The folder on disk of the Slurm that this process belongs to; None if its library is not loaded.
pub(super) fn folder() -> Option<PathBuf> {
    // SAFETY: dlsym with RTLD_DEFAULT only searches what is loaded.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, FUNCTION.as_ptr()) };
    let loaded = libraries();
    let library = loaded.iter().find(|library| library.holds(function))?;
    let path = Path::new(OsStr::from_bytes(library.path.as_bytes()));
    path.parent().map(Path::to_path_buf)
}

/// A loaded library.
struct Loaded {
    path: CString,
    /// The address ranges of its segments.
    segments: Vec<Range<usize>>,
}

impl Loaded {
    /// Whether an address is in the library. dladdr would also answer, but searches all symbols of the library first;
    /// for Slurm's library that takes longer than everything else here.
    fn holds(&self, address: *const c_void) -> bool {
        let holds = |segment: &Range<usize>| segment.contains(&address.addr());
        self.segments.iter().any(holds)
    }

    /// Slurm's plugins are named by type and name; the libraries that they need are named `lib...`.
    fn may_be_plugin(&self) -> bool {
        let path = self.path.to_bytes();
        let name = path.rsplit(|byte| *byte == b'/').next();
        !name.is_some_and(|name| name.starts_with(b"lib") || name.starts_with(b"ld-"))
    }
}

/// All loaded libraries that are files.
fn libraries() -> Vec<Loaded> {
    let mut found: Vec<Loaded> = Vec::new();
    // SAFETY: `note` is called before this returns, with the pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(exported::note), (&raw mut found).cast()) };
    found
}

crate::for_slurm! {
    // 1 ends the iteration.
    silent fn note(object: *mut libc::dl_phdr_info, size: usize, found: *mut c_void) -> c_int, or 1;
}

/// # Safety
/// Only `libraries` calls it.
unsafe fn note(object: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: as `libraries` calls it; the loader's name is NULL or NUL-terminated, and it has as many headers as it
    // says.
    unsafe {
        let object = &*object;
        // The main program has an empty name; names of objects that are not files have no slash.
        if object.dlpi_name.is_null()
            || !CStr::from_ptr(object.dlpi_name).to_bytes().contains(&b'/')
        {
            return 0;
        }
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        let in_memory = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let segments = in_memory.map(|header| {
            let start = (object.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start..start.saturating_add(header.p_memsz as usize)
        });
        (*found.cast::<Vec<Loaded>>()).push(Loaded {
            path: CStr::from_ptr(object.dlpi_name).to_owned(),
            segments: segments.collect(),
        });
    }
    0
}

/// The release of a library, if it is a plugin of Slurm.
fn plugin(library: &Loaded, own: *const u32) -> Option<Release> {
    if !library.may_be_plugin() {
        return None;
    }
    // SAFETY: with RTLD_NOLOAD nothing is loaded: either the library is there, or the answer is NULL. The handle keeps
    // it there until it is closed, and its symbols are read only before that.
    unsafe {
        let handle = libc::dlopen(library.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let found = symbols(library, handle).and_then(|(kind, version)| {
            let kind = kind_of(kind)?;
            let other = kind != SPANK && version.cast_const() != own;
            other
                .then(|| Release(version.read_volatile()))
                .filter(is_plausible)
        });
        libc::dlclose(handle);
        found
    }
}

/// The text of a `plugin_type`, such as `job_submit/lua`; None for other data, because another library may have a
/// symbol of this name.
///
/// # Safety
/// `start` is a symbol of a loaded library.
unsafe fn kind_of(start: *const c_char) -> Option<Vec<u8>> {
    let mut kind = Vec::new();
    for position in 0..KIND_LENGTH {
        // SAFETY: by the contract of this function, and all before was text: the array goes on at least to its NUL.
        let byte = unsafe { start.cast::<u8>().add(position).read() };
        match byte {
            0 => return Some(kind),
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/' => kind.push(byte),
            _ => return None,
        }
    }
    None
}

/// `plugin_type` and `plugin_version` of a library itself, not of a library that it needs.
///
/// # Safety
/// `handle` is that of `library`.
unsafe fn symbols(library: &Loaded, handle: *mut c_void) -> Option<(*const c_char, *mut u32)> {
    // SAFETY: by the contract of this function; dlsym only searches.
    let find = |name: &CStr| unsafe {
        let symbol = libc::dlsym(handle, name.as_ptr());
        library.holds(symbol).then_some(symbol)
    };
    Some((find(TYPE)?.cast(), find(VERSION)?.cast()))
}

/// Whether a Slurm can have this release: from 20.02 on releases are named by year and month.
fn is_plausible(release: &Release) -> bool {
    let Series(major, minor) = release.series();
    release.number() >> 24 == 0 && major >= 20 && minor <= 12
}
