//! libslurm, loaded at run time: what a program on a node asks of slurmctld.
//!
//! Programs do not link libslurm, so that a prolog for a job without a fraction never pays
//! for it. Signatures differ by release (26.05 takes a step id where earlier ones take a job
//! id); bindgen gives those of the headers, and this module hides the difference.
//!
//! Never call this from a plugin inside slurmctld: an RPC to oneself under locks hangs.

use std::ffi::{CString, c_char};
use std::ptr;

use crate::raw;
use crate::text;

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
mod library {
    include!(concat!(env!("OUT_DIR"), "/client.rs"));
}

/// The library of the Slurm whose headers were bound.
const LIBRARY: &str = match raw::SLURM_VERSION_NUMBER >> 8 {
    0x16_05 => "libslurm.so.38",
    0x17_02 => "libslurm.so.39",
    0x17_0b => "libslurm.so.40",
    0x18_05 => "libslurm.so.41",
    0x18_0b => "libslurm.so.42",
    0x19_05 => "libslurm.so.43",
    0x19_0b => "libslurm.so.44",
    0x1a_05 => "libslurm.so.45",
    _ => "libslurm.so",
};

/// Why slurmctld could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// libslurm is not there, or is another release than the one built for.
    #[error(
        "cannot load `{LIBRARY}`: {0}; install Slurm's library, or rebuild gpufrac for this Slurm"
    )]
    Load(#[from] libloading::Error),
    /// slurmctld answered with an error, or did not answer.
    #[error("{call}: {message} (Slurm error {code})")]
    Call {
        /// The function of the API.
        call: &'static str,
        /// Slurm's number, from `slurm_errno.h`.
        code: i32,
        /// Slurm's text for it.
        message: String,
    },
}

impl ClientError {
    /// Did slurmctld refuse because the job is not a batch job or forbids requeueing?
    #[must_use]
    pub fn cannot_requeue(&self) -> bool {
        matches!(self, Self::Call { code, .. }
            if *code == raw::ESLURM_BATCH_ONLY as i32 || *code == raw::ESLURM_DISABLED as i32)
    }
}

/// The state of a job, as far as a node needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Waits in the queue (also after a requeue).
    Pending,
    /// Runs, or its prolog does.
    Running,
    /// Suspended: it keeps its GRES.
    Suspended,
    /// Ended, but an epilog may still be running somewhere.
    Completing,
    /// Over on every node.
    Finished,
}

/// What slurmctld says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    /// The job.
    pub job_id: u32,
    /// Its owner.
    pub user_id: u32,
    /// Its state.
    pub state: JobState,
    /// Its partition.
    pub partition: String,
    /// The GRES asked for per node, `gres:` or `gres/` form: what `--gres` became.
    pub tres_per_node: Option<String>,
    /// The GRES asked for in the other ways (`--gpus`, `--gpus-per-socket`, `--gpus-per-task`),
    /// each text that is there.
    pub tres_elsewhere: Vec<String>,
    /// Is it a batch job? Only these can be requeued.
    pub batch: bool,
    /// How many times it was requeued.
    pub restart_count: u32,
}

/// A connection to the API of libslurm. One per process.
pub struct Client {
    library: library::LibSlurm,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(LIBRARY)
    }
}

impl Client {
    /// Loads libslurm; it reads slurm.conf (`SLURM_CONF`, else the built-in path).
    ///
    /// # Errors
    /// The library is missing or lacks a function. An unreadable slurm.conf ends the process
    /// inside libslurm: call this only where Slurm itself has started the program.
    pub fn connect() -> Result<Self, ClientError> {
        // RTLD_GLOBAL: the plugins that libslurm loads (auth, hash) take its symbols from the
        // process, as in Slurm's own programs, which link it.
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: libslurm has no initialisers with preconditions; the types of its functions
        // come from the headers of the same release (the soname is part of LIBRARY).
        let library = unsafe {
            let loaded = libloading::os::unix::Library::open(Some(LIBRARY), flags)?;
            library::LibSlurm::from_library(loaded)
        }?;
        // SAFETY: NULL means the default configuration file.
        unsafe { library.slurm_init(ptr::null()) };
        Ok(Self { library })
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), ClientError> {
        if code == raw::SLURM_SUCCESS as i32 {
            return Ok(());
        }
        let code = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(code);
        // SAFETY: the text is static inside libslurm.
        let message = unsafe { text::read(self.library.slurm_strerror(code)) }.unwrap_or_default();
        Err(ClientError::Call {
            call,
            code,
            message,
        })
    }

    /// Asks for one job. `None`: Slurm does not know it (any more).
    ///
    /// # Errors
    /// slurmctld did not answer, or answered with another error.
    pub fn job(&self, job_id: u32) -> Result<Option<JobInfo>, ClientError> {
        let mut answer: *mut raw::job_info_msg_t = ptr::null_mut();
        // SAFETY: `answer` receives a message that is freed below.
        let code = unsafe {
            self.library.slurm_load_job(
                &raw mut answer,
                job_argument(job_id),
                raw::GPUFRAC_SHOW_ALL as u16,
            )
        };
        match self.check("slurm_load_job", code) {
            Err(ClientError::Call { code, .. }) if code == raw::ESLURM_INVALID_JOB_ID as i32 => {
                return Ok(None);
            }
            other => other?,
        }
        // SAFETY: on success the message holds `record_count` records; it is not used after
        // it was freed.
        unsafe {
            let message = &*answer;
            let records = if message.job_array.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(message.job_array, message.record_count as usize)
            };
            let found = records
                .iter()
                .find(|job| record_id(job) == job_id)
                .map(|job| JobInfo {
                    job_id,
                    user_id: job.user_id,
                    state: state_of(job.job_state),
                    partition: text::read(job.partition).unwrap_or_default(),
                    tres_per_node: text::read(job.tres_per_node),
                    tres_elsewhere: [job.tres_per_job, job.tres_per_socket, job.tres_per_task]
                        .into_iter()
                        .filter_map(|tres| text::read(tres))
                        .collect(),
                    batch: job.batch_flag != 0,
                    restart_count: u32::from(job.restart_cnt),
                });
            self.library.slurm_free_job_info_msg(answer);
            Ok(found)
        }
    }

    /// Puts a batch job back in the queue, held or not. Its epilog runs on this node.
    ///
    /// # Errors
    /// As [`ClientError::cannot_requeue`] tells for interactive jobs, or slurmctld did not answer.
    pub fn requeue(&self, job_id: u32, hold: bool) -> Result<(), ClientError> {
        let id = number(job_id);
        let flags = if hold {
            raw::GPUFRAC_JOB_REQUEUE_HOLD
        } else {
            0
        };
        let mut answer: *mut raw::job_array_resp_msg_t = ptr::null_mut();
        // SAFETY: `id` outlives the call (libslurm only reads it); the answer is freed.
        unsafe {
            let code = self
                .library
                .slurm_requeue2(id.as_ptr().cast_mut(), flags, &raw mut answer);
            let result = self.check("slurm_requeue2", code).and_then(|()| {
                let answer = answer.as_ref();
                let refused = answer
                    .filter(|answer| answer.job_array_count > 0 && !answer.error_code.is_null())
                    .map_or(0, |answer| *answer.error_code);
                if refused == 0 {
                    return Ok(());
                }
                let code = refused.cast_signed();
                let message = text::read(self.library.slurm_strerror(code)).unwrap_or_default();
                Err(ClientError::Call {
                    call: "slurm_requeue2",
                    code,
                    message,
                })
            });
            if !answer.is_null() {
                self.library.slurm_free_job_array_resp(answer);
            }
            result
        }
    }

    /// Cancels a job as scancel does.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn cancel(&self, job_id: u32) -> Result<(), ClientError> {
        let id = number(job_id);
        let signal = libc::SIGKILL as u16;
        // SAFETY: `id` outlives the call; no sibling cluster.
        let code = unsafe {
            self.library
                .slurm_kill_job2(id.as_ptr(), signal, 0, ptr::null())
        };
        self.check("slurm_kill_job2", code)
    }

    /// Writes a line to the terminal of an interactive job, or to the output of a batch job.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn notify(&self, job_id: u32, line: &str) -> Result<(), ClientError> {
        let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
        // SAFETY: libslurm copies the text into the message before it returns.
        let code = unsafe {
            self.library.slurm_notify_job(
                job_argument(job_id),
                line.as_ptr().cast_mut().cast::<c_char>(),
            )
        };
        self.check("slurm_notify_job", code)
    }
}

fn number(job_id: u32) -> CString {
    CString::new(job_id.to_string()).unwrap_or_default()
}

fn job_argument(job_id: u32) -> u32 {
    job_id
}

fn record_id(job: &raw::slurm_job_info_t) -> u32 {
    job.job_id
}

fn state_of(word: u32) -> JobState {
    if word & raw::GPUFRAC_JOB_COMPLETING != 0 {
        return JobState::Completing;
    }
    match word & raw::GPUFRAC_JOB_STATE_BASE {
        raw::JOB_PENDING => JobState::Pending,
        raw::JOB_RUNNING => JobState::Running,
        raw::JOB_SUSPENDED => JobState::Suspended,
        _ => JobState::Finished,
    }
}
