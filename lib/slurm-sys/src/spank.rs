//! The interface of a SPANK plugin to the slurmstepd that loaded it (`spank.h`).

use std::ffi::{CStr, CString, NulError, c_char, c_int};

use crate::{raw, text};

/// The return value of a hook that succeeded.
pub const OK: c_int = 0;
/// The return value of a hook that failed: negative, because all releases take only negative values as errors.
pub const FAILED: c_int = -1;

/// The size of the first buffer in bytes, enough for nearly every variable of a job.
const VALUE_USUAL: usize = 4096;
/// The largest size of a variable in bytes (the kernel's `MAX_ARG_STRLEN`).
const VALUE_MAX: usize = 128 << 10;

/// An option of srun, sbatch and salloc.
#[derive(Debug, Clone, Copy)]
pub struct CommandOption {
    /// The name without `--`.
    pub name: &'static CStr,
    /// The name of its value in the help.
    pub argument: &'static CStr,
    /// The line in the help.
    pub usage: &'static CStr,
    /// The callback for the value. It is called in the client, where a result other than [`OK`] ends the command, and
    /// in slurmstepd.
    pub check: unsafe extern "C" fn(value: c_int, argument: *const c_char, remote: c_int) -> c_int,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The batch script.
    Batch,
    /// The container step of `PrologFlags=Contain`.
    Extern,
    /// The shell of salloc, with `LaunchParameters=use_interactive_step`.
    Interactive,
    /// A step of srun.
    Numbered(u32),
}

/// The reasons why a call to Slurm failed.
#[derive(Debug, thiserror::Error)]
pub enum SpankError {
    /// Slurm refused.
    #[error("{reason}")]
    Refused {
        /// Slurm's message.
        reason: String,
    },
    /// A variable contains a NUL byte.
    /// Cure: Remove it from the environment.
    #[error("a variable contains a NUL byte")]
    Nul(#[from] NulError),
}

/// The handle of a hook call.
#[derive(Clone, Copy)]
pub struct Spank(raw::spank_t);

impl Spank {
    /// # Safety
    /// `handle` is the one that Slurm passed to the hook, and `Spank` does not outlive the call.
    pub const unsafe fn new(handle: raw::spank_t) -> Self {
        Self(handle)
    }

    /// Whether this process is slurmstepd, on a node of the job.
    pub fn is_remote(self) -> bool {
        // SAFETY: by the contract of `new`.
        unsafe { raw::spank_remote(self.0) == 1 }
    }

    /// Whether this process is slurmd, where most of the API has no answers.
    pub fn is_slurmd() -> bool {
        // SAFETY: a plain question about this process.
        unsafe { raw::spank_context() == raw::S_CTX_SLURMD }
    }

    /// Whether this process is srun, sbatch or salloc.
    pub fn is_command() -> bool {
        // SAFETY: a plain question about this process.
        let context = unsafe { raw::spank_context() };
        [raw::S_CTX_LOCAL, raw::S_CTX_ALLOCATOR].contains(&context)
    }

    /// Adds an option to the commands. Call it only in `slurm_spank_init`, in every process that runs this hook.
    /// Errors: [`SpankError::Refused`].
    pub fn register(self, option: &CommandOption) -> Result<(), SpankError> {
        let mut option = raw::spank_option {
            name: option.name.as_ptr().cast_mut(),
            arginfo: option.argument.as_ptr().cast_mut(),
            usage: option.usage.as_ptr().cast_mut(),
            has_arg: 1,
            val: 0,
            cb: Some(option.check),
        };
        // SAFETY: by the contract of `new`; Slurm copies the option and its texts.
        let code = unsafe { raw::spank_option_register(self.0, &raw mut option) };
        succeeded(code)
    }

    fn number(self, item: raw::spank_item) -> Option<u32> {
        let mut value: u32 = 0;
        // SAFETY: by the contract of `new`; every item that is asked for here takes a
        // pointer to 32 bits (`uint32_t`, `uid_t` or `pid_t`, see spank.h).
        let code = unsafe { raw::spank_get_item(self.0, item, &raw mut value) };
        (code == raw::SLURM_SUCCESS).then_some(value)
    }

    /// The job id (of a heterogeneous job: that of this component).
    pub fn job_id(self) -> Option<u32> {
        self.number(raw::S_JOB_ID)
    }

    /// The user id of the job.
    pub fn user_id(self) -> Option<u32> {
        self.number(raw::S_JOB_UID)
    }

    pub fn step(self) -> Option<Step> {
        Some(match self.number(raw::S_JOB_STEPID)? {
            raw::GPUFRAC_BATCH_SCRIPT => Step::Batch,
            raw::GPUFRAC_EXTERN_CONT => Step::Extern,
            raw::GPUFRAC_INTERACTIVE_STEP => Step::Interactive,
            number => Step::Numbered(number),
        })
    }

    /// The pid of the hook's task; None if the hook is not about a task.
    pub fn task_pid(self) -> Option<u32> {
        self.number(raw::S_TASK_PID)
    }

    /// The number of the hook's task among those of the step on this node; None if the hook is not about a task.
    pub fn task(self) -> Option<usize> {
        usize::try_from(self.number(raw::S_TASK_ID)?).ok()
    }

    /// The status of the task that ended, as `waitpid` gives it.
    pub fn task_status(self) -> Option<i32> {
        self.number(raw::S_TASK_EXIT_STATUS).map(u32::cast_signed)
    }

    /// The number of tasks of the step on this node.
    pub fn local_tasks(self) -> Option<usize> {
        usize::try_from(self.number(raw::S_JOB_LOCAL_TASK_COUNT)?).ok()
    }

    /// The value of a variable of the job's environment.
    pub fn variable(self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let mut size = VALUE_USUAL;
        loop {
            let mut value = vec![0 as c_char; size];
            let length = c_int::try_from(size).ok()?;
            // SAFETY: by the contract of `new`; the buffer is as long as stated.
            let code =
                unsafe { raw::spank_getenv(self.0, name.as_ptr(), value.as_mut_ptr(), length) };
            match code {
                // SAFETY: Slurm terminates what it writes.
                raw::SLURM_SUCCESS => return unsafe { text::read(value.as_ptr()) },
                raw::ESPANK_NOSPACE if size < VALUE_MAX => size = VALUE_MAX,
                _ => return None,
            }
        }
    }

    /// Sets a variable of the job's environment; replaces the user's value.
    /// Errors: Slurm refused, or the name or the value contains a NUL.
    pub fn set_variable(self, name: &str, value: &str) -> Result<(), SpankError> {
        let (name, value) = (CString::new(name)?, CString::new(value)?);
        // SAFETY: by the contract of `new`; Slurm copies both texts.
        let code = unsafe { raw::spank_setenv(self.0, name.as_ptr(), value.as_ptr(), 1) };
        succeeded(code)
    }

    /// Removes a variable from the job's environment. A missing variable is no error.
    pub fn unset_variable(self, name: &CStr) {
        // SAFETY: by the contract of `new`.
        unsafe { raw::spank_unsetenv(self.0, name.as_ptr()) };
    }
}

fn succeeded(code: raw::spank_err_t) -> Result<(), SpankError> {
    if code == raw::SLURM_SUCCESS {
        return Ok(());
    }
    // SAFETY: Slurm's texts for errors are static.
    let reason = unsafe { text::read(raw::spank_strerror(code)) }.unwrap_or_default();
    Err(SpankError::Refused { reason })
}

/// The arguments of the plugin's line in plugstack.conf.
///
/// # Safety
/// `argv` holds `argc` NUL-terminated strings, as Slurm passes them to every hook.
pub unsafe fn arguments(argc: c_int, argv: *mut *mut c_char) -> Vec<String> {
    // SAFETY: by the contract of this function.
    unsafe { text::read_list(argv, u32::try_from(argc).unwrap_or(0)) }
}
