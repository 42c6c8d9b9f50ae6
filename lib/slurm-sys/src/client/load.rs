//! Loads libslurm, and compares its layouts with those of the build.

use std::path::Path;

use libloading::os::unix::Library;

use super::ClientError;
use crate::layout;
use crate::release::{Release, Series};

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    rustdoc::all
)]
pub(super) mod library {
    include!(concat!(env!("OUT_DIR"), "/client.rs"));
}

/// The name of the library in the release of the headers.
pub(super) const LIBRARY: &str = match Release::BUILT_FOR.series() {
    Series(22, 5) => "libslurm.so.38",
    Series(23, 2) => "libslurm.so.39",
    Series(23, 11) => "libslurm.so.40",
    Series(24, 5) => "libslurm.so.41",
    Series(24, 11) => "libslurm.so.42",
    Series(25, 5) => "libslurm.so.43",
    Series(25, 11) => "libslurm.so.44",
    Series(26, 5) => "libslurm.so.45",
    _ => "libslurm.so",
};

/// The folder of the library at build time, for a Slurm with its own prefix (`/opt/slurm`) that the dynamic loader
/// does not search. Empty if no library was beside the headers.
const FOLDER: &str = env!("GPUFRAC_SLURM_LIB");

/// The prefix (`/opt/slurm`) of the Slurm whose headers were bound, if its libraries are beside them; None in Debian.
pub fn prefix() -> Option<&'static Path> {
    Path::new(FOLDER).parent()
}

/// Loads libslurm.
pub(crate) fn load() -> Result<Library, ClientError> {
    // RTLD_GLOBAL, because the plugins that libslurm loads (auth, hash) use its symbols from the process, as in
    // Slurm's own programs, which link it.
    let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
    // SAFETY: libslurm has no initialisers with preconditions.
    let open = |name: &Path| unsafe { Library::open(Some(name), flags) };
    let beside = (!FOLDER.is_empty()).then(|| open(&Path::new(FOLDER).join(LIBRARY)));
    match beside {
        Some(Ok(loaded)) => Ok(loaded),
        _ => Ok(open(Path::new(LIBRARY))?),
    }
}

/// The functions of a libslurm of the build's series, if its layouts are those of the build.
pub(super) fn of_library(loaded: Library) -> Result<library::LibSlurm, ClientError> {
    if let Some(difference) = layout::difference(&loaded) {
        return Err(ClientError::Layout(difference.to_string()));
    }
    // SAFETY: the types of the functions come from the headers of the same series (the soname is part of LIBRARY).
    Ok(unsafe { library::LibSlurm::from_library(loaded) }?)
}
