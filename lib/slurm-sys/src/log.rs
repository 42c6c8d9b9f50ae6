//! Slurm's log, inside its processes: slurmctld.log, slurmd.log, the user's terminal in sbatch, salloc and srun.

use std::ffi::CString;

use crate::raw;

/// Logs information. In sbatch, salloc and srun the user sees it on stderr.
pub fn info(line: &str) {
    let line = c_line(line);
    // SAFETY: the format takes exactly one string, and `line` is NUL-terminated and outlives the call.
    unsafe { raw::slurm_info(c"%s".as_ptr(), line.as_ptr()) }
}

/// Logs an error.
pub fn error(line: &str) {
    let line = c_line(line);
    // SAFETY: as in `info`.
    unsafe { raw::slurm_error(c"%s".as_ptr(), line.as_ptr()) }
}

/// Logs a line that only appears with Slurm's debug level.
pub fn debug(line: &str) {
    let line = c_line(line);
    // SAFETY: as in `info`.
    unsafe { raw::slurm_debug(c"%s".as_ptr(), line.as_ptr()) }
}

fn c_line(line: &str) -> CString {
    CString::new(line.replace('\0', " ")).unwrap_or_default()
}
