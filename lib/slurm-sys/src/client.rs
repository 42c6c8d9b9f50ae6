//! libslurm, loaded at run time: the questions of a program on a node to slurmctld.
//!
//! Programs do not link libslurm, so that a prolog for a job without a fraction does not load it. Signatures differ
//! between releases (26.05 takes a step id, earlier ones a job id). bindgen gives those of the headers, and this
//! module hides the difference.
//!
//! Never call this from a plugin inside slurmctld: an RPC to itself, while it holds its locks, hangs.

use std::borrow::Cow;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use serde::{Deserialize, Serialize};

use crate::{raw, text};
use load::{LIBRARY, library, of_library};

/// What a record of a job has. Without `SHOW_LOCAL` libslurm asks first whether the cluster belongs to a federation,
/// and then each cluster of it (`slurm_load_job` of job_info.c).
const SHOWN: u32 = raw::GPUFRAC_SHOW_ALL | raw::GPUFRAC_SHOW_DETAIL | raw::GPUFRAC_SHOW_LOCAL;

mod conf;
mod elsewhere;
mod load;
mod node;
mod reserve;

pub use conf::{HookLimits, PrivateValues, SpankFiles};
pub use elsewhere::{with_node, without_node};
pub(crate) use load::load;
pub use load::prefix;
pub use node::{Drained, Drainer};
pub use reserve::Reserve;

/// The reasons why a question to slurmctld failed.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub enum ClientError {
    /// Slurm's library is missing, or of another series.
    /// Cure: Install it (`libslurm42`, SchedMD: `slurm-smd`).
    #[error(
        "loading `{LIBRARY}` failed: {0}; install Slurm's library, or rebuild gpufrac for this Slurm"
    )]
    Load(String),
    /// Slurm's library was built from other sources than the headers that gpufrac was built for.
    /// Cure: As the text says.
    #[error(
        "`{LIBRARY}` has other layouts than this build: {0}; rebuild gpufrac with the headers of this Slurm"
    )]
    Layout(String),
    /// slurmctld refused the call; the text is Slurm's.
    /// Cure: Look the error up in slurmctld's log.
    #[error("{call}: {message} (Slurm error {code})")]
    Call {
        /// The function of libslurm.
        call: Cow<'static, str>,
        /// The error number of `slurm_errno.h`.
        code: i32,
        /// Slurm's message for the number.
        message: String,
    },
}

impl From<libloading::Error> for ClientError {
    fn from(error: libloading::Error) -> ClientError {
        ClientError::Load(error.to_string())
    }
}

impl ClientError {
    /// Whether slurmctld refused because the job is not a batch job or forbids requeueing.
    pub fn cannot_requeue(&self) -> bool {
        matches!(self, Self::Call { code, .. }
            if *code == raw::ESLURM_BATCH_ONLY as i32 || *code == raw::ESLURM_DISABLED as i32)
    }
}

/// The state of a job, as far as a node needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// The job is pending, possibly after a requeue.
    Pending,
    /// The job runs, or its prolog does.
    Running,
    /// The job is suspended; it keeps its GRES.
    Suspended,
    /// The job has ended, but an epilog may still run on a node.
    Completing,
    /// The job has ended on every node.
    Finished,
}

/// Why Slurm ended a run of a job that did not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedBy {
    /// Another job took its place.
    Preemption,
    /// A node failed, or did not boot.
    NodeFailure,
}

/// slurmctld's record of a job. A missing text is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Slurm's id of the job.
    pub job_id: u32,
    /// The user id of the job.
    pub user_id: u32,
    pub state: JobState,
    pub partition: String,
    /// The GRES requested per node, with `gres:` or `gres/`: the value of `--gres`.
    pub tres_per_node: Option<String>,
    /// The GRES requested by other options (`--gpus`, `--gpus-per-socket`, `--gpus-per-task`), each text that is set.
    pub tres_elsewhere: Vec<String>,
    /// The GRES requested per task; `tres_elsewhere` has this text, too.
    pub tres_per_task: Option<String>,
    /// The GRES that the job holds on each node of `nodes`, in their order, such as
    /// `gpufrac(CNT:50),shard:50(50/50,0/50)`. Empty if the job has no nodes.
    pub gres_of_nodes: Vec<String>,
    /// Whether the job is a batch job; only batch jobs can be requeued.
    pub batch: bool,
    /// How often the job was requeued.
    pub restart_count: u32,
    /// The name of the job.
    pub name: String,
    /// The quality of service; empty without accounting.
    pub qos: String,
    pub account: String,
    pub reservation: String,
    /// The nodes of the job as a hostlist; empty while it is pending.
    pub nodes: String,
    /// The number of nodes that the job has, or requests while it is pending.
    pub node_count: u32,
    /// The id of the array and the index, for a task of an array. None for the record of all pending tasks of an
    /// array, which has the array's id and no index.
    pub array: Option<(u32, u32)>,
    /// The job id of the first component, if the job is a component of a heterogeneous job; otherwise 0.
    pub het_job_id: u32,
    /// The actual or expected start, in seconds since 1970.
    pub start_unix: u64,
    /// The time at which the time limit ends the job, in seconds since 1970; far in the future without a limit.
    pub end_unix: u64,
    /// The time of the last suspension or resumption, in seconds since 1970; 0 if there was none.
    pub suspend_unix: u64,
    /// Why Slurm ended the last run; None while it runs, and where it ended by itself. After a requeue this is known
    /// only until the epilogs of all nodes have ended.
    pub ended_by: Option<EndedBy>,
    /// Whether the last run failed by itself: its exit code was not 0, or it got no more memory. A job that reached its
    /// time limit or was cancelled has another state, whatever its exit code.
    pub failed: bool,
    /// Whether the job is a batch job whose user allows a requeue.
    pub can_requeue: bool,
    /// The recipient of Slurm's mail. If the user names none, slurmctld sets the user's name, with `MailDomain`; it
    /// may also be empty.
    pub mail_user: String,
    pub admin_comment: String,
    /// The nodes that the job must not get (`ExcNodeList`), as a hostlist.
    pub excluded_nodes: String,
    /// Whether an admin, Slurm or the user holds the job.
    pub is_held: bool,
}

impl JobInfo {
    /// Whether the run of the job after this number of requeues has ended, with its epilogs. Slurm counts a requeue
    /// before the epilogs of the run begin (`_job_requeue_op` in `job_mgr.c` of 22.05 to 26.05).
    pub fn has_ended_run(&self, restart_count: u32) -> bool {
        match self.state {
            JobState::Finished => true,
            JobState::Completing => self.restart_count > restart_count.saturating_add(1),
            JobState::Pending | JobState::Running | JobState::Suspended => {
                self.restart_count > restart_count
            }
        }
    }

    /// The job id in the form that stands for this job only.
    ///
    /// The last task of an array that starts has the array's id, and this id alone stands for all tasks. The ids of
    /// other tasks are refused (`job_str_signal` of Slurm 22.05) or accepted, depending on the call. All calls accept
    /// `ARRAY_TASK`.
    fn title(&self) -> String {
        match self.array {
            Some((array, task)) => format!("{array}_{task}"),
            None => self.job_id.to_string(),
        }
    }

    /// As [`JobInfo::title`], for an update: the id of a heterogeneous job's first component would stand for all
    /// components.
    fn title_for_update(&self) -> String {
        if self.het_job_id == self.job_id {
            format!("{}+0", self.job_id)
        } else {
            self.title()
        }
    }

    /// As [`JobInfo::title`], for a requeue: all components are requeued together, and only by the id of the first.
    fn title_for_requeue(&self) -> String {
        match self.het_job_id {
            0 => self.title(),
            first => first.to_string(),
        }
    }
}

/// A connection to the API of libslurm. One for each process.
pub struct Client {
    library: library::LibSlurm,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(LIBRARY)
    }
}

impl Client {
    /// Loads libslurm, which reads slurm.conf (`SLURM_CONF`, otherwise the built-in path).
    ///
    /// # Errors
    /// The library is missing or lacks a function. If slurm.conf cannot be read, libslurm ends the process: call this
    /// only in a process of its own.
    pub fn connect() -> Result<Self, ClientError> {
        let library = of_library(load()?)?;
        // SAFETY: NULL means the default configuration file.
        unsafe { library.slurm_init(ptr::null()) };
        Ok(Self { library })
    }

    /// The libslurm of the slurmstepd that loaded this plugin, already initialised.
    /// Errors: the library lacks a function.
    #[cfg(feature = "plugin")]
    pub fn of_host() -> Result<Self, ClientError> {
        // slurmstepd takes SPANK plugins of its own series alone.
        let library = of_library(libloading::os::unix::Library::this())?;
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
            call: call.into(),
            code,
            message,
        }
    }

    /// The result of a call that returns one code, or one for each task of an array.
    ///
    /// # Safety
    /// `answer` is NULL or comes from libslurm; it is freed here.
    unsafe fn check_answer(
        &self,
        call: &'static str,
        code: i32,
        answer: *mut raw::job_array_resp_msg_t,
    ) -> Result<(), ClientError> {
        // Before any other call, which could set errno.
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

    /// As [`Client::job`], for a job that must exist. Errors: as [`Client::job`], and if Slurm does not know the job.
    pub fn known_job(&self, job_id: u32) -> Result<JobInfo, ClientError> {
        self.job(job_id)?
            .ok_or_else(|| self.failure("slurm_load_job", raw::ESLURM_INVALID_JOB_ID as i32))
    }

    /// The record of a job in this cluster's slurmctld; None if Slurm does not know the job (any more).
    /// Errors: slurmctld did not answer, or returned another error.
    pub fn job(&self, job_id: u32) -> Result<Option<JobInfo>, ClientError> {
        let mut answer: *mut raw::job_info_msg_t = ptr::null_mut();
        // SAFETY: `answer` receives a message that is freed below.
        let code = unsafe {
            self.library
                .slurm_load_job(&raw mut answer, job_argument(job_id), SHOWN as u16)
        };
        match self.check("slurm_load_job", code) {
            Err(ClientError::Call { code, .. }) if code == raw::ESLURM_INVALID_JOB_ID as i32 => {
                return Ok(None);
            }
            other => other?,
        }
        // SAFETY: on success the message holds `record_count` records; it is not used after it was freed.
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

    /// Requeues a running batch job, held or not. The epilog runs on this node. If the job does not run any more,
    /// slurmctld does nothing and reports no error (`_job_requeue_op` of 22.05 to 26.05); without the flag for this,
    /// a job that its user cancelled would run again.
    ///
    /// All components of a heterogeneous job are requeued, whichever is given: slurmctld refuses the id of any but
    /// the first (`ESLURM_NOT_HET_JOB_LEADER`, `_job_requeue` of 22.05), and the first stands for all.
    /// Errors: [`ClientError::cannot_requeue`] is true for interactive jobs; or slurmctld did not answer.
    pub fn requeue(&self, job: &JobInfo, hold: bool) -> Result<(), ClientError> {
        let id = c_text(&job.title_for_requeue());
        let held = if hold { raw::GPUFRAC_JOB_REQUEUE_HOLD } else { 0 };
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

    /// Cancels a job, as scancel does.
    ///
    /// Of a running heterogeneous job only this component ends, unless it is the first one, with which all end, or
    /// `SchedulerParameters` has `whole_hetjob`. Errors: slurmctld refused or did not answer.
    pub fn cancel(&self, job: &JobInfo) -> Result<(), ClientError> {
        self.kill(job, libc::SIGKILL as u16, 0)
    }

    /// Sends a signal to a running job: to the shell of its batch script only, not to its child processes (`scancel
    /// --batch`), or to all steps except the script (`scancel --signal`). SIGKILL ends these processes, but not the
    /// job. For components of a heterogeneous job see [`Client::cancel`].
    ///
    /// # Errors
    /// slurmctld refused (`ESLURM_JOB_SCRIPT_MISSING`: the job has no script) or did not answer. Success does not
    /// mean that the signal arrived: slurmctld sends it after its answer.
    pub fn signal(&self, job: &JobInfo, signal: u8, batch_only: bool) -> Result<(), ClientError> {
        let flags = if batch_only {
            raw::GPUFRAC_KILL_JOB_BATCH
        } else {
            raw::GPUFRAC_KILL_STEPS_ONLY
        };
        let sent = self.kill(job, u16::from(signal), flags);
        match sent {
            // While other tasks of the array are pending, slurmctld sends the signal and still returns this error
            // (`job_str_signal`, 22.05 to 25.11). The error is only right for a task that does not run.
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

    /// Sets the comment of admins (`AdminComment`), replacing the old one; only root may. It must be set before the
    /// job is ended. Errors: slurmctld refused (`ESLURM_JOB_FINISHED`: the job has ended) or did not answer.
    pub fn set_admin_comment(&self, job: &JobInfo, comment: &str) -> Result<(), ClientError> {
        let comment = c_text(comment);
        self.update(job, |change| {
            change.admin_comment = comment.as_ptr().cast_mut();
        })
    }

    /// Changes a job. `set` fills the fields; a text must outlive this call.
    fn update(
        &self,
        job: &JobInfo,
        set: impl FnOnce(&mut raw::job_desc_msg_t),
    ) -> Result<(), ClientError> {
        let id = c_text(&job.title_for_update());
        let mut change = MaybeUninit::<raw::job_desc_msg_t>::zeroed();
        let mut answer: *mut raw::job_array_resp_msg_t = ptr::null_mut();
        // SAFETY: all zeros are a job description, and libslurm then sets every field to "no change". The texts outlive
        // the call, which reads them; nothing of the description is freed by it. The answer is freed.
        unsafe {
            self.library.slurm_init_job_desc_msg(change.as_mut_ptr());
            let change = change.assume_init_mut();
            change.job_id_str = id.as_ptr().cast_mut();
            set(change);
            let code = self
                .library
                .slurm_update_job2(&raw mut *change, &raw mut answer);
            self.check_answer("slurm_update_job2", code, answer)
        }
    }

    /// Writes a line to the terminal of an interactive job, or to the output of a batch job.
    /// Errors: slurmctld refused or did not answer.
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
        ended_by: ended_by(job.job_state, job.preempt_time),
        failed: [raw::JOB_FAILED, raw::JOB_OOM]
            .contains(&(job.job_state & raw::GPUFRAC_JOB_STATE_BASE)),
        can_requeue: job.batch_flag != 0 && job.requeue != 0,
        mail_user: text(job.mail_user),
        admin_comment: text(job.admin_comment),
        excluded_nodes: text(job.exc_nodes),
        is_held: job.priority == 0,
    }
}

#[cfg(not(calls_by_step_id))]
fn job_argument(job_id: u32) -> u32 {
    job_id
}

#[cfg(calls_by_step_id)]
fn job_argument(job_id: u32) -> raw::slurm_step_id_t {
    // `SLURM_STEP_ID_INITIALIZER` of slurm.h, a macro that bindgen does not translate.
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

/// A job that is requeued has another state than its accounting at once, and keeps the time of its preemption until its
/// epilogs have ended (`_job_requeue_op` and `batch_requeue_fini` of 22.05 to 26.05).
fn ended_by(word: u32, preempt_time: i64) -> Option<EndedBy> {
    match word & raw::GPUFRAC_JOB_STATE_BASE {
        raw::JOB_PREEMPTED => Some(EndedBy::Preemption),
        raw::JOB_NODE_FAIL | raw::JOB_BOOT_FAIL => Some(EndedBy::NodeFailure),
        raw::JOB_PENDING if preempt_time != 0 => Some(EndedBy::Preemption),
        _ => None,
    }
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
