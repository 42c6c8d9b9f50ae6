//! The login environment, which `sbatch --get-user-env` and `--export=NONE` request from slurmd.
//!
//! slurmd starts a login shell of the user for it, outside of the job's control groups (`_get_user_env` of
//! `src/slurmd/slurmd/req.c`). Programs that the user's profile starts there are not fenced, can use every GPU of the
//! node, and outlive the job.

use std::ffi::{CStr, c_char};

use slurm_sys::raw;

/// The variable, exactly as slurmd compares it.
const REQUESTED: &CStr = c"SLURM_GET_USER_ENV=1";

pub const NOTE: &str = "gpufrac: partitions with shared GPUs do not load the login environment (--get-user-env, --export=NONE); begin the script with #!/bin/bash -l";

/// Whether a job requests its login environment.
///
/// # Safety
/// The environment in `job` is NULL or Slurm's.
pub unsafe fn is_requested(job: &raw::job_desc_msg_t) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { variables(job) }.next().is_some()
}

/// Removes the request. The other variables of the job stay the same.
///
/// # Safety
/// As [`is_requested`], and nobody else uses `job` meanwhile.
pub unsafe fn withdraw(job: &mut raw::job_desc_msg_t) {
    // SAFETY: by the contract of this function.
    for variable in unsafe { variables(job) } {
        let value = REQUESTED.count_bytes() - 1;
        // SAFETY: the variable is as long as REQUESTED, and its last byte is the value.
        unsafe { variable.add(value).write(b'0' as c_char) };
    }
}

/// The variables with the request.
///
/// # Safety
/// As [`is_requested`].
unsafe fn variables(job: &raw::job_desc_msg_t) -> impl Iterator<Item = *mut c_char> {
    let list = job.environment;
    let count = if list.is_null() { 0 } else { job.env_size };
    (0..count as usize)
        // SAFETY: by the contract of `is_requested`, the list has so many pointers.
        .map(move |position| unsafe { *list.add(position) })
        .filter(|variable| !variable.is_null())
        // SAFETY: by the contract of `is_requested`. The comparison ends at the first byte that differs.
        .filter(|variable| unsafe { libc::strcmp(*variable, REQUESTED.as_ptr()) } == 0)
}
