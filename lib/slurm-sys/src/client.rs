//! libslurm, loaded at run time: what a program on a node asks of slurmctld.
//!
//! Programs do not link libslurm, so that a prolog for a job without a fraction never pays
//! for it. Signatures differ by release (26.05 takes a step id where earlier ones take a job
//! id); bindgen gives those of the headers, and this module hides the difference.
//!
//! Never call this from a plugin inside slurmctld: an RPC to oneself under locks hangs.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;

use serde::{Deserialize, Serialize};

use crate::release::{Release, Series};
use crate::{raw, text};

mod conf;
mod node;

pub use conf::{HookLimits, SpankFiles};
pub use node::Drained;

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
const LIBRARY: &str = match Release::BUILT_FOR.series() {
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

/// Where it was when this was built, for a Slurm with a prefix of its own (`/opt/slurm`) that the dynamic loader does not
/// search. Empty if there was none beside the headers.
const FOLDER: &str = env!("GPUFRAC_SLURM_LIB");

/// The prefix (`/opt/slurm`) of the Slurm whose headers were bound, where its libraries are beside them; not in Debian.
#[must_use]
pub fn prefix() -> Option<&'static Path> {
    Path::new(FOLDER).parent()
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// What slurmctld says of a job. A text that there is not is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Slurm's id of the job.
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
    /// What is asked for per task; it is in `tres_elsewhere` too.
    pub tres_per_task: Option<String>,
    /// What it holds of GRES on each node of `nodes`, in their order, such as
    /// `gpufrac(CNT:50),shard:50(50/50,0/50)`. Empty unless it has nodes.
    pub gres_of_nodes: Vec<String>,
    /// Is it a batch job? Only these can be requeued.
    pub batch: bool,
    /// How many times it was requeued.
    pub restart_count: u32,
    /// Its name.
    pub name: String,
    /// Its quality of service; without accounting Slurm knows none.
    pub qos: String,
    /// Its account.
    pub account: String,
    /// Its reservation.
    pub reservation: String,
    /// The nodes that it has, as Slurm's hostlist; of a pending job none.
    pub nodes: String,
    /// How many nodes it has, or asks for while it is pending.
    pub node_count: u32,
    /// The array and the number in it, of an array's task. None also for the record of those tasks
    /// that still wait: it has the array's number, and none of its own.
    pub array: Option<(u32, u32)>,
    /// The het job of which it is a component: the first component's number. 0 if none.
    pub het_job_id: u32,
    /// When it started, or is expected to: seconds since 1970.
    pub start_unix: u64,
    /// When its time limit ends it; for a job without one a time far off.
    pub end_unix: u64,
    /// When it was last suspended or resumed; 0 if never.
    pub suspend_unix: u64,
    /// Whether it is a batch job and its user lets it be requeued.
    pub can_requeue: bool,
    /// The recipient of Slurm's mail. Where the user names nobody slurmctld puts the user's name there, with
    /// `MailDomain`; it may be empty all the same.
    pub mail_user: String,
    /// What admins wrote on it.
    pub admin_comment: String,
}

impl JobInfo {
    /// What slurmctld takes for this job alone.
    ///
    /// The last task of an array that starts has the array's own number, and that number alone
    /// means all tasks; the numbers of other tasks are refused (`job_str_signal` of Slurm 22.05) or
    /// taken, depending on the call. `ARRAY_TASK` is the one form that all of them understand.
    fn title(&self) -> String {
        match self.array {
            Some((array, task)) => format!("{array}_{task}"),
            None => self.job_id.to_string(),
        }
    }

    /// As [`JobInfo::title`] for an update: the number of a het job's first component means all
    /// components there.
    fn title_for_update(&self) -> String {
        match self.het_job_id == self.job_id {
            true => format!("{}+0", self.job_id),
            false => self.title(),
        }
    }

    /// As [`JobInfo::title`] for a requeue: components go back together or not at all, and only by
    /// the number of the first.
    fn title_for_requeue(&self) -> String {
        match self.het_job_id {
            0 => self.title(),
            first => first.to_string(),
        }
    }
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
            use libloading::os::unix::Library;
            let beside = (!FOLDER.is_empty())
                .then(|| Library::open(Some(Path::new(FOLDER).join(LIBRARY)), flags).ok())
                .flatten();
            let loaded = match beside {
                Some(loaded) => loaded,
                None => Library::open(Some(LIBRARY), flags)?,
            };
            library::LibSlurm::from_library(loaded)
        }?;
        // SAFETY: NULL means the default configuration file.
        unsafe { library.slurm_init(ptr::null()) };
        Ok(Self { library })
    }

    /// The libslurm of the slurmstepd that loaded this as a plugin, which has set it up.
    ///
    /// # Errors
    /// It lacks a function.
    #[cfg(feature = "plugin")]
    pub fn of_host() -> Result<Self, ClientError> {
        // SAFETY: nothing is loaded. slurmstepd takes SPANK plugins of its own series alone, so the functions have the types of
        // the headers.
        let library =
            unsafe { library::LibSlurm::from_library(libloading::os::unix::Library::this()) }?;
        Ok(Self { library })
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), ClientError> {
        if code == raw::SLURM_SUCCESS as i32 {
            return Ok(());
        }
        let code = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(code);
        Err(self.failure(call, code))
    }

    fn failure(&self, call: &'static str, code: i32) -> ClientError {
        // SAFETY: the text is static inside libslurm.
        let message = unsafe { text::read(self.library.slurm_strerror(code)) }.unwrap_or_default();
        ClientError::Call {
            call,
            code,
            message,
        }
    }

    /// The result of a call that may answer for each task of an array, or with one code.
    ///
    /// # Safety
    /// `answer` is NULL or what libslurm gave; it is freed here.
    unsafe fn check_answer(
        &self,
        call: &'static str,
        code: i32,
        answer: *mut raw::job_array_resp_msg_t,
    ) -> Result<(), ClientError> {
        // Before anything else that could set errno.
        let result = self.check(call, code);
        // SAFETY: by the contract of this function; the array has as many codes as it says.
        unsafe {
            let codes = match answer.as_ref() {
                Some(answer) if !answer.error_code.is_null() => {
                    std::slice::from_raw_parts(answer.error_code, answer.job_array_count as usize)
                }
                _ => &[],
            };
            let refused = codes.iter().find(|code| **code != raw::SLURM_SUCCESS);
            let result = result.and(match refused {
                Some(code) => Err(self.failure(call, code.cast_signed())),
                None => Ok(()),
            });
            if !answer.is_null() {
                self.library.slurm_free_job_array_resp(answer);
            }
            result
        }
    }

    /// As [`Client::job`] for a job that must be there.
    ///
    /// # Errors
    /// As [`Client::job`], and when Slurm does not know the job.
    pub fn known_job(&self, job_id: u32) -> Result<JobInfo, ClientError> {
        self.job(job_id)?
            .ok_or_else(|| self.failure("slurm_load_job", raw::ESLURM_INVALID_JOB_ID as i32))
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
                (raw::GPUFRAC_SHOW_ALL | raw::GPUFRAC_SHOW_DETAIL) as u16,
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
            let mut records = records.iter();
            let found = records.find(|job| record_id(job) == job_id);
            let found = found.map(|job| read_record(job_id, job));
            self.library.slurm_free_job_info_msg(answer);
            Ok(found)
        }
    }

    /// Puts a batch job that runs back in the queue, held or not. Its epilog runs on this node. slurmctld does nothing,
    /// and says no error, for a job that does not run any more (`_job_requeue_op` of 22.05 to 26.05): without the flag for it
    /// a job that its user cancelled would run again.
    ///
    /// Of a het job all components go back, whichever is given: slurmctld refuses the number of any
    /// but the first (`ESLURM_NOT_HET_JOB_LEADER`, `_job_requeue` of 22.05), and that one stands for all.
    ///
    /// # Errors
    /// As [`ClientError::cannot_requeue`] tells for interactive jobs, or slurmctld did not answer.
    pub fn requeue(&self, job: &JobInfo, hold: bool) -> Result<(), ClientError> {
        let id = c_text(&job.title_for_requeue());
        let held = if hold {
            raw::GPUFRAC_JOB_REQUEUE_HOLD
        } else {
            0
        };
        let flags = raw::GPUFRAC_JOB_RUNNING | held;
        let mut answer: *mut raw::job_array_resp_msg_t = ptr::null_mut();
        // SAFETY: `id` outlives the call (libslurm only reads it); the answer is freed.
        unsafe {
            let code = self
                .library
                .slurm_requeue2(id.as_ptr().cast_mut(), flags, &raw mut answer);
            self.check_answer("slurm_requeue2", code, answer)
        }
    }

    /// Cancels a job as scancel does.
    ///
    /// Of a het job that runs this component alone ends, unless it is the first, with which all
    /// end, or `SchedulerParameters` has `whole_hetjob`.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn cancel(&self, job: &JobInfo) -> Result<(), ClientError> {
        self.kill(job, libc::SIGKILL as u16, 0)
    }

    /// Sends a signal to a running job: to the shell of its batch script alone (not to what the
    /// script started; `scancel --batch`), or to all its steps but the script (plain
    /// `scancel --signal`). SIGKILL ends those processes and not the job as such. Components of a het
    /// job as in [`Client::cancel`].
    ///
    /// # Errors
    /// slurmctld refused (`ESLURM_JOB_SCRIPT_MISSING`: there is no script) or did not answer. That the
    /// signal arrived is not known: slurmctld sends it on after it answered.
    pub fn signal(&self, job: &JobInfo, signal: u8, batch_only: bool) -> Result<(), ClientError> {
        let flags = if batch_only {
            raw::GPUFRAC_KILL_JOB_BATCH
        } else {
            raw::GPUFRAC_KILL_STEPS_ONLY
        };
        let sent = self.kill(job, u16::from(signal), flags);
        match sent {
            // With other tasks of the array still pending, slurmctld sends the signal and answers
            // this all the same (`job_str_signal`, 22.05 to 25.11); it is true only of a task that does not run.
            Err(ClientError::Call { code, .. })
                if code == raw::ESLURM_TRANSITION_STATE_NO_UPDATE as i32
                    && job.array.is_some()
                    && self.known_job(job.job_id)?.state == JobState::Running =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn kill(&self, job: &JobInfo, signal: u16, flags: u16) -> Result<(), ClientError> {
        let id = c_text(&job.title());
        // SAFETY: `id` outlives the call; no sibling cluster.
        let code = unsafe {
            self.library
                .slurm_kill_job2(id.as_ptr(), signal, flags, ptr::null())
        };
        self.check("slurm_kill_job2", code)
    }

    /// Writes what admins see of a job (`AdminComment`), instead of what was there; only root may. It goes
    /// before what ends the job.
    ///
    /// # Errors
    /// slurmctld refused (the job is over: `ESLURM_JOB_FINISHED`) or did not answer.
    pub fn set_admin_comment(&self, job: &JobInfo, comment: &str) -> Result<(), ClientError> {
        let id = c_text(&job.title_for_update());
        let comment = c_text(comment);
        let mut change = MaybeUninit::<raw::job_desc_msg_t>::zeroed();
        let mut answer: *mut raw::job_array_resp_msg_t = ptr::null_mut();
        // SAFETY: all zeros are a job description, and libslurm then sets every field to "no
        // change". Both texts outlive the call, which reads them; nothing of the description is
        // freed by it. The answer is freed.
        unsafe {
            self.library.slurm_init_job_desc_msg(change.as_mut_ptr());
            let change = change.assume_init_mut();
            change.job_id_str = id.as_ptr().cast_mut();
            change.admin_comment = comment.as_ptr().cast_mut();
            let code = self
                .library
                .slurm_update_job2(&raw mut *change, &raw mut answer);
            self.check_answer("slurm_update_job2", code, answer)
        }
    }

    /// Writes a line to the terminal of an interactive job, or to the output of a batch job.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn notify(&self, job: &JobInfo, line: &str) -> Result<(), ClientError> {
        let line = c_text(line);
        // SAFETY: libslurm copies the text into the message before it returns. This call looks for
        // the one record of that number, also in an array.
        let code = unsafe {
            self.library.slurm_notify_job(
                job_argument(job.job_id),
                line.as_ptr().cast_mut().cast::<c_char>(),
            )
        };
        self.check("slurm_notify_job", code)
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// # Safety
/// The texts of `job` are NULL or NUL-terminated, and its lists as long as they say.
unsafe fn read_record(job_id: u32, job: &raw::slurm_job_info_t) -> JobInfo {
    // SAFETY: by the contract of this function.
    let optional = |text| unsafe { text::read(text) };
    let text = |text| optional(text).unwrap_or_default();
    let elsewhere = [job.tres_per_job, job.tres_per_socket, job.tres_per_task];
    let time = |seconds: i64| u64::try_from(seconds).unwrap_or(0);
    let is_task = job.array_job_id != 0 && job.array_task_id != raw::GPUFRAC_NO_VAL;
    JobInfo {
        job_id,
        user_id: job.user_id,
        state: state_of(job.job_state),
        partition: text(job.partition),
        tres_per_node: optional(job.tres_per_node),
        tres_elsewhere: elsewhere
            .into_iter()
            .filter_map(|tres| optional(tres))
            .collect(),
        tres_per_task: optional(job.tres_per_task),
        // SAFETY: by the contract of this function.
        gres_of_nodes: unsafe { text::read_list(job.gres_detail_str, job.gres_detail_cnt) },
        batch: job.batch_flag != 0,
        restart_count: u32::from(job.restart_cnt),
        name: text(job.name),
        qos: text(job.qos),
        account: text(job.account),
        reservation: text(job.resv_name),
        nodes: text(job.nodes),
        node_count: job.num_nodes,
        array: is_task.then_some((job.array_job_id, job.array_task_id)),
        het_job_id: job.het_job_id,
        start_unix: time(job.start_time),
        end_unix: time(job.end_time),
        suspend_unix: time(job.suspend_time),
        can_requeue: job.batch_flag != 0 && job.requeue != 0,
        mail_user: text(job.mail_user),
        admin_comment: text(job.admin_comment),
    }
}

#[cfg(not(calls_by_step_id))]
fn job_argument(job_id: u32) -> u32 {
    job_id
}

#[cfg(calls_by_step_id)]
fn job_argument(job_id: u32) -> raw::slurm_step_id_t {
    // `SLURM_STEP_ID_INITIALIZER` of slurm.h, which bindgen cannot see.
    raw::slurm_step_id_t {
        sluid: 0,
        job_id,
        step_het_comp: raw::GPUFRAC_NO_VAL,
        step_id: raw::GPUFRAC_NO_VAL,
    }
}

#[cfg(not(records_by_step_id))]
fn record_id(job: &raw::slurm_job_info_t) -> u32 {
    job.job_id
}

#[cfg(records_by_step_id)]
fn record_id(job: &raw::slurm_job_info_t) -> u32 {
    job.step_id.job_id
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
