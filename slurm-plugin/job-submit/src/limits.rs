//! Limits of the texts of a job, checked before anything is copied.
//!
//! slurmctld holds its locks during the call, so a long text of one user delays all others. And slurmd passes some
//! texts to Prolog and Epilog as variables: Linux starts no program with a variable of 128 KiB (`MAX_ARG_STRLEN` of
//! `linux/binfmts.h`), and a Prolog that does not start drains the node.

use std::ffi::c_char;

use slurm_sys::{raw, text};

/// Bytes of a text with a request. Slurm has the same limit when a job is submitted (`validate_job_create_req` of
/// `job_mgr.c`), but none when it is updated.
const REQUEST: usize = 1024;

/// Bytes of a text that slurmd gives to Prolog and Epilog (`_build_env` of `prep_script_slurmd.c`).
const HANDED_ON: usize = 32 << 10;

/// Variables of `spank_job_env`.
const VARIABLES: u32 = 1024;

/// Bytes of one variable.
const VARIABLE: usize = 64 << 10;

/// Bytes of all variables. Together with the other texts they stay below the 2 MiB that Linux allows for arguments
/// and variables of a program with a stack of 8 MiB (`execve(2)`).
const VARIABLES_TOGETHER: usize = 256 << 10;

/// A job with too much text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// A text of the request is longer than gpufrac reads.
    /// Cure: Write a shorter text.
    #[error("gpufrac: {name} of the job is longer than {most} bytes; write a shorter text")]
    Text {
        /// The field of Slurm's `job_desc_msg_t`.
        name: &'static str,
        /// The limit in bytes.
        most: usize,
    },
    /// Too many SPANK options.
    /// Cure: Use fewer SPANK options.
    #[error(
        "gpufrac: the job has more than {VARIABLES} SPANK variables (spank_job_env); submit it with fewer SPANK options"
    )]
    Variables,
    /// A SPANK option is too long.
    /// Cure: Write a shorter option.
    #[error(
        "gpufrac: a SPANK variable of the job (spank_job_env) is longer than {VARIABLE} bytes; write a shorter SPANK option"
    )]
    Variable,
    /// All SPANK options together are too long.
    /// Cure: Write shorter options.
    #[error(
        "gpufrac: the SPANK variables of the job (spank_job_env) have more than {VARIABLES_TOGETHER} bytes; write shorter SPANK options"
    )]
    Together,
}

/// Checks the lengths of the texts that gpufrac reads, and of those that reach Prolog and Epilog.
///
/// # Errors
/// The first text that is too long.
///
/// # Safety
/// The strings and lists in `job` are NULL or Slurm's.
pub unsafe fn check(job: &raw::job_desc_msg_t) -> Result<(), TooLong> {
    let requests: [(&'static str, *const c_char); 13] = [
        ("partition", job.partition),
        ("reservation", job.reservation),
        ("tres_per_node", job.tres_per_node),
        ("tres_per_job", job.tres_per_job),
        ("tres_per_socket", job.tres_per_socket),
        ("tres_per_task", job.tres_per_task),
        ("cpus_per_tres", job.cpus_per_tres),
        ("mem_per_tres", job.mem_per_tres),
        ("tres_freq", job.tres_freq),
        ("qos", job.qos),
        ("account", job.account),
        ("name", job.name),
        ("mcs_label", job.mcs_label),
    ];
    let handed_on: [(&'static str, *const c_char); 10] = [
        ("comment", job.comment),
        ("extra", job.extra),
        ("features", job.features),
        ("licenses", job.licenses),
        ("req_nodes", job.req_nodes),
        ("std_err", job.std_err),
        ("std_in", job.std_in),
        ("std_out", job.std_out),
        ("selinux_context", job.selinux_context),
        ("work_dir", job.work_dir),
    ];
    let texts = requests
        .map(|(name, text)| (name, text, REQUEST))
        .into_iter()
        .chain(handed_on.map(|(name, text)| (name, text, HANDED_ON)));
    for (name, text, most) in texts {
        // SAFETY: by the contract of this function.
        if unsafe { text::length(text, most) } > most {
            return Err(TooLong::Text { name, most });
        }
    }
    // SAFETY: by the contract of this function.
    unsafe { check_variables(job) }
}

/// # Safety
/// As [`check`].
unsafe fn check_variables(job: &raw::job_desc_msg_t) -> Result<(), TooLong> {
    if job.spank_job_env.is_null() {
        return Ok(());
    }
    if job.spank_job_env_size > VARIABLES {
        return Err(TooLong::Variables);
    }
    let mut together = 0;
    for position in 0..job.spank_job_env_size as usize {
        // SAFETY: by the contract of this function, the list has so many pointers.
        let length = unsafe { text::length(*job.spank_job_env.add(position), VARIABLE) };
        if length > VARIABLE {
            return Err(TooLong::Variable);
        }
        together += length;
        if together > VARIABLES_TOGETHER {
            return Err(TooLong::Together);
        }
    }
    Ok(())
}
