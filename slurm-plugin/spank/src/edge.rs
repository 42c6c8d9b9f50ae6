//! The hooks that Slurm calls (`spank.h`).
//!
//! `init` registers options: `--gpufrac-idle` and `--gpufrac-burst`, which `job_submit` reads, `--gpufrac-visible`,
//! which slurmstepd reads, and one that old commands lack, to refuse it with the reason. It runs in the clients, in
//! slurmstepd and in slurmd. In slurmstepd it is the first hook, as root and before anything of the job; there it
//! reads the slice and sets the variables, so that plugins see them at every later hook, wherever their lines stand in
//! plugstack.conf. The other hooks are for slurmstepd: `task_init` runs as the user in the child that becomes the task,
//! `task_post_fork` as root in slurmstepd while this child waits, `task_exit` in slurmstepd after a task ended.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gpufrac_core::config::LAST_GOOD;
use gpufrac_core::count_name::CountName;
use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_core::lease::visible::{VARIABLE, Visible};
use gpufrac_core::policy::{IdleWish, UnknownWish};
use gpufrac_core::request::names_fraction;
use gpufrac_core::submit::{Refusal, burst};
use gpufrac_core::submit_plugins;
use gpufrac_fence::{self as fence, Closed, DevCgroupError};
use gpufrac_node::job::admin_comment::{explained_in, is_explained};
use gpufrac_node::node::Node;
use gpufrac_node::slice::agreement::job_record::JobRecord;
use gpufrac_node::slice::agreement::step::Unfit;
use gpufrac_node::state::record::NodeRecord;
use slurm_sys::client::Client;
use slurm_sys::spank::{self, CommandOption, FAILED, OK, Spank, Step};
use slurm_sys::{boundary, log, raw, text};

use crate::environment::{self, EnvironmentError};
use crate::reach::{self, Unreached};
use crate::slice::{JobSlice, NODE_NAME, NoMemoryLimit, ReadError, StepOf};
use crate::{failed, given};

const ARGUMENT: &str = "config=";

/// The name of [`start_step`] in messages.
const START: &str = "start of a step";

slurm_sys::for_slurm! {
    export fn slurm_spank_init(handle: raw::spank_t, argc: c_int, argv: *mut *mut c_char) -> c_int, or OK;
    export fn slurm_spank_task_init(handle: raw::spank_t, argc: c_int, argv: *mut *mut c_char) -> c_int, or FAILED;
    export fn slurm_spank_task_post_fork(handle: raw::spank_t, argc: c_int, argv: *mut *mut c_char) -> c_int, or FAILED;
    export fn slurm_spank_task_exit(handle: raw::spank_t, argc: c_int, argv: *mut *mut c_char) -> c_int, or OK;
    callback fn refuse_tasks(value: c_int, argument: *const c_char, remote: c_int) -> c_int, or FAILED;
    callback fn check_idle(value: c_int, argument: *const c_char, remote: c_int) -> c_int, or FAILED;
    callback fn check_burst(value: c_int, argument: *const c_char, remote: c_int) -> c_int, or FAILED;
    callback fn take_visible(value: c_int, argument: *const c_char, remote: c_int) -> c_int, or FAILED;
}

/// Set once in each slurmstepd, which serves one step of one job; the tasks inherit it.
static SLICE: Mutex<Option<Result<JobSlice, Arc<ReadError>>>> = Mutex::new(None);

/// The findings of node-setup, if the job's slice cannot be read.
static RECORD: Mutex<Option<NodeRecord>> = Mutex::new(None);

/// The value of `--gpufrac-visible`, which Slurm tells slurmstepd after `init`.
static VISIBLE: Mutex<Option<Visible>> = Mutex::new(None);

/// The reasons why a hook fails.
#[derive(Debug, thiserror::Error)]
enum HookError {
    /// The slice of the job is not known.
    #[error("{0}")]
    NoSlice(Arc<ReadError>),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Fence(#[from] DevCgroupError),
    #[error(transparent)]
    MemoryLimit(#[from] NoMemoryLimit),
    #[error(transparent)]
    Unreached(#[from] Unreached),
}

/// The option with the user's wish for an idle slice.
const IDLE_OPTION: CommandOption = CommandOption {
    name: c"gpufrac-idle",
    argument: c"default|long|off",
    usage: c"reclaiming of an idle gpufrac slice: default, long (longer windows) or off",
    check: exported::check_idle,
};

/// How much compute a job may have while its neighbours are idle.
const BURST_OPTION: CommandOption = CommandOption {
    name: c"gpufrac-burst",
    argument: c"fraction",
    usage: c"compute that a gpufrac share may use while others are idle, such as 0.75",
    check: exported::check_burst,
};

/// How `CUDA_VISIBLE_DEVICES` names the devices of the job.
const VISIBLE_OPTION: CommandOption = CommandOption {
    name: c"gpufrac-visible",
    argument: c"index|uuid",
    usage: c"how CUDA_VISIBLE_DEVICES names gpufrac slices: uuid, or index where it is certain",
    check: exported::take_visible,
};

/// An option that the commands before Slurm 23.02 do not have; a user who gives it is told the reason.
const TASKS_OPTION: CommandOption = CommandOption {
    name: c"tres-per-task",
    argument: c"list",
    usage: c"from Slurm 23.11 on; refused before",
    check: exported::refuse_tasks,
};

/// # Safety
/// As SPANK calls it.
unsafe fn slurm_spank_init(handle: raw::spank_t, argc: c_int, argv: *mut *mut c_char) -> c_int {
    // `init` never returns an error, which would drain the node, or keep every command from running. The tasks of a
    // step that could not read its slice fail instead.
    hook(START, OK, handle, |spank| {
        // SAFETY: by the contract of this function.
        start_step(spank, &unsafe { spank::arguments(argc, argv) })
    });
    boundary::plant("slurm_spank_init");
    if Spank::is_slurmd() {
        return OK;
    }
    // SAFETY: Slurm gives every hook its handle, and `spank` ends with the call.
    let spank = unsafe { Spank::new(handle) };
    // slurmstepd must have the options, too; it complains about an option that no plugin registered.
    for option in [&IDLE_OPTION, &BURST_OPTION, &VISIBLE_OPTION] {
        if let Err(reason) = spank.register(option) {
            let name = option.name.to_string_lossy();
            // The option was not registered. Jobs start without it. Cure: Admins: the `optional` line of
            // [install](../install.md) in plugstack.conf.
            log::error(&format!("gpufrac: no option --{name}: {reason}"));
        }
    }
    if Spank::is_command()
        && !slurm_sys::has_tres_per_task()
        && let Err(reason) = spank.register(&TASKS_OPTION)
    {
        // Slurm then refuses the option without a reason.
        log::debug(&format!(
            "gpufrac: registering the option --tres-per-task failed: {reason}"
        ));
    }
    OK
}

/// # Safety
/// As SPANK calls it: `argument` is NULL or NUL-terminated.
unsafe fn refuse_tasks(_value: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    // SAFETY: by the contract of this function.
    let list = unsafe { text::read(argument) }.unwrap_or_default();
    let reason = if names_fraction(&list) {
        Refusal::TasksTooEarly.to_string()
    } else {
        "--tres-per-task needs Slurm 23.11 or later".to_owned()
    };
    log::error(&reason);
    FAILED
}

/// Checks the value of `--gpufrac-idle`. job_submit decides whether the job may use it; it reads the value that the
/// client sends.
///
/// # Safety
/// As SPANK calls it: `argument` is NULL or NUL-terminated.
unsafe fn check_idle(_value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    if remote != 0 {
        return OK;
    }
    // SAFETY: by the contract of this function.
    let argument = unsafe { text::read(argument) }.unwrap_or_default();
    let wish: Result<IdleWish, UnknownWish> = argument.parse();
    match wish {
        Ok(_) => OK,
        Err(unknown) => {
            log::error(&format!("gpufrac: {unknown}"));
            FAILED
        }
    }
}

/// The value of `--gpufrac-burst`. Whether the job may have it is job_submit's to say.
///
/// # Safety
/// As SPANK calls it: `argument` is NULL or NUL-terminated.
unsafe fn check_burst(_value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    if remote != 0 {
        return OK;
    }
    // SAFETY: by the contract of this function.
    let argument = unsafe { text::read(argument) }.unwrap_or_default();
    match burst::parse(&argument) {
        Ok(_) => OK,
        Err(unknown) => {
            log::error(&unknown.to_string());
            FAILED
        }
    }
}

/// The value of `--gpufrac-visible`. slurmstepd keeps a value for the tasks, and ignores a wrong one, which only a
/// client without this plugin sends.
///
/// # Safety
/// As SPANK calls it: `argument` is NULL or NUL-terminated.
unsafe fn take_visible(_value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    // SAFETY: by the contract of this function.
    let argument = unsafe { text::read(argument) }.unwrap_or_default();
    match argument.parse::<Visible>() {
        Ok(visible) if remote != 0 => {
            *VISIBLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(visible);
            OK
        }
        Ok(_) => OK,
        Err(_) if remote != 0 => OK,
        Err(unknown) => {
            // The option has another value. Cure: Write `index` or `uuid`.
            log::error(&format!("gpufrac: --gpufrac-visible: {unknown}"));
            FAILED
        }
    }
}

/// CUDA's numbers for the devices of a task, if the option, the user's variable or else the pool asks for them.
/// `is_told`: whether a reason to name devices by UUID nevertheless is logged, once for a step.
fn numbers(spank: Spank, slice: &JobSlice, task: &[Lease], is_told: bool) -> Option<String> {
    let option = *VISIBLE.lock().unwrap_or_else(PoisonError::into_inner);
    let of_variable = || {
        let parsed = spank.variable(VARIABLE)?.parse::<Visible>();
        if let Err(unknown) = &parsed
            && is_told
        {
            // The variable has another value, and is ignored. Cure: Write `index` or `uuid`.
            log::error(&format!("gpufrac: {VARIABLE} is ignored: {unknown}"));
        }
        parsed.ok()
    };
    let visible = option.or_else(of_variable).unwrap_or(slice.pool_visible);
    if visible == Visible::Uuid || task.is_empty() {
        return None;
    }
    let numbers = slice.numbers(task);
    if let Err(reason) = &numbers
        && is_told
    {
        // CUDA's numbers are not certain here. Cure: Nothing, or follow the reason.
        log::error(&format!(
            "gpufrac: CUDA_VISIBLE_DEVICES has UUIDs: {reason}"
        ));
    }
    numbers.ok()
}

/// Reads the slice, and sets the variables of the step: those that Slurm sets for GPUs are there, and those that the
/// step inherited from another job go.
fn start_step(spank: Spank, arguments: &[String]) -> Result<(), HookError> {
    let config = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix(ARGUMENT))
        .unwrap_or(gpufrac_core::config::PATH);
    let slice = read_slice(spank, Path::new(config));
    *SLICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(slice.map_err(Arc::new));
    with_slice(|slice| {
        let slice = slice.ok();
        environment::clear(spank, slice.map_or(&[], |slice| &slice.libraries));
        let leases = slice.map(JobSlice::visible_to_step).unwrap_or_default();
        let numbers = slice.and_then(|slice| numbers(spank, slice, &leases, false));
        Ok(environment::set(spank, &leases, &leases, numbers)?)
    })
}

fn read_slice(spank: Spank, config: &Path) -> Result<JobSlice, ReadError> {
    let node = std::env::var(NODE_NAME).unwrap_or_default();
    let mut slice = match (node.as_str(), step_of(spank)) {
        (node, Some(step)) if !node.is_empty() => JobSlice::read(config, node, step),
        _ => Err(ReadError::NotTold),
    };
    if let Ok(slice) = &mut slice
        && let Some(unfit) = counted_without_slice(spank, &node, slice)
    {
        slice.refuse(unfit);
    }
    match &slice {
        Err(reason) => {
            log::error(&format!("gpufrac: {reason}"));
            let served = Node::load_to_serve(config, &node, Path::new(LAST_GOOD)).ok();
            let record = served.and_then(|served| served.node.record().ok());
            *RECORD.lock().unwrap_or_else(PoisonError::into_inner) = record;
        }
        Ok(slice) => {
            if let Some(unfit) = slice.unfit() {
                log::error(&format!("gpufrac: {unfit}"));
                give_back(spank, unfit);
            }
        }
    }
    slice
}

/// # Safety
/// As SPANK calls it.
unsafe fn slurm_spank_task_init(
    handle: raw::spank_t,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    let prepared = hook("slurm_spank_task_init", FAILED, handle, |spank| {
        with_slice(|slice| match slice {
            // Again: Slurm writes its own numbers where it binds tasks to GPUs, and a container brings variables of
            // its image. A task may have a slice of its own.
            Ok(slice) => {
                let task = task_of_step(spank);
                let own = slice.visible_to(task);
                let numbers = numbers(spank, slice, own, task.unwrap_or(0) == 0);
                let option = *VISIBLE.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(visible) = option {
                    environment::keep_visible(spank, visible)?;
                }
                environment::set(spank, own, &slice.visible_to_step(), numbers)?;
                Ok(reach::require(own)?)
            }
            Err(_) => Ok(()),
        })
    });
    if prepared == FAILED {
        // As in `slurm_spank_task_post_fork`.
        kill(std::process::id());
    }
    prepared
}

/// # Safety
/// As SPANK calls it.
unsafe fn slurm_spank_task_post_fork(
    handle: raw::spank_t,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    let fenced = hook("slurm_spank_task_post_fork", FAILED, handle, |spank| {
        let task = task_pid(spank);
        with_slice(|slice| match slice {
            Ok(slice) => {
                slice.fence()?;
                // Here and not in a hook of the task: if such a hook fails, 22.05 reports a batch job as completed.
                if let Some(unfit) = slice.unfit() {
                    return Err(unfit.into());
                }
                if let Some(pid) = task {
                    slice.limit_memory(pid, task_of_step(spank))?;
                }
                Ok(())
            }
            Err(reason) => refuse_unfenced(spank, reason),
        })
    });
    // SAFETY: as in `hook`.
    let task = task_pid(unsafe { Spank::new(handle) });
    if let (FAILED, Some(task)) = (fenced, task) {
        kill(task);
    }
    OK
}

/// # Safety
/// As SPANK calls it.
unsafe fn slurm_spank_task_exit(
    handle: raw::spank_t,
    _argc: c_int,
    _argv: *mut *mut c_char,
) -> c_int {
    hook("slurm_spank_task_exit", OK, handle, |spank| {
        with_slice(|slice| {
            if let Ok(slice) = slice {
                let task = task_of_step(spank);
                if let Some(task) = task {
                    slice.give_back(task);
                }
                // Last, because slurmctld may take its time.
                failed::explain(spank, slice, slice.visible_to(task));
            }
            Ok(())
        })
    })
}

/// If the slice cannot be read, it is not known which devices to close and which belong to the job. On a node with
/// pools the job then fails, because a job without a fence is worse than a failed one. The extern step has no task
/// that could fail; it is closed as far as the node's record can be read. On a node without pools only jobs that need
/// a slice are stopped.
fn refuse_unfenced(spank: Spank, reason: Arc<ReadError>) -> Result<(), HookError> {
    if !reason.is_on_node_with_pools() {
        return match given::shards(spank) {
            Some(_) => Err(HookError::NoSlice(reason)),
            None => Ok(()),
        };
    }
    let record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(record), Some(job_id)) = (record.as_ref(), spank.job_id().map(JobId)) {
        fence::fence(fence::OWN, job_id, &Closed::alike(record.rules(&[])))?;
    }
    Err(HookError::NoSlice(reason))
}

/// Kills a task that must not start or could not be fenced, before it runs the user's program. A failing hook, Slurm's
/// own way, does not run the program either, but 22.05 then reports a batch job as completed with exit code 0.
fn kill(task: u32) {
    if let Ok(pid) = libc::pid_t::try_from(task) {
        // SAFETY: plain kill; the process is this one, or slurmstepd's own child, which waits for slurmstepd until the
        // hook is over and was not yet waited for, so its number belongs to nobody else.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// The number of the task, if it belongs to a step of srun.
fn task_of_step(spank: Spank) -> Option<usize> {
    match spank.step() {
        Some(Step::Numbered(_)) => spank.task(),
        _ => None,
    }
}

fn task_pid(spank: Spank) -> Option<u32> {
    spank.task_pid().filter(|pid| *pid > 0)
}

/// Runs the body of a hook in slurmstepd; logs an error and turns it into `failure`.
fn hook(
    name: &str,
    failure: c_int,
    handle: raw::spank_t,
    body: impl FnOnce(Spank) -> Result<(), HookError>,
) -> c_int {
    boundary::guard(name, failure, || {
        // SAFETY: Slurm gives every hook its handle, and `spank` ends with the call.
        let spank = unsafe { Spank::new(handle) };
        if !spank.is_remote() {
            return OK;
        }
        boundary::plant(name);
        match body(spank) {
            Ok(()) => OK,
            Err(reason) => {
                log::error(&format!("gpufrac: {reason}"));
                failure
            }
        }
    })
}

/// Runs `body` with the slice. There is none if [`start_step`] panicked.
fn with_slice(
    body: impl FnOnce(Result<&JobSlice, Arc<ReadError>>) -> Result<(), HookError>,
) -> Result<(), HookError> {
    let slice = SLICE.lock().unwrap_or_else(PoisonError::into_inner);
    match slice.as_ref() {
        Some(Ok(slice)) => body(Ok(slice)),
        Some(Err(reason)) => body(Err(Arc::clone(reason))),
        None => body(Err(Arc::new(ReadError::NotRead))),
    }
}

/// The step that is about to start.
fn step_of(spank: Spank) -> Option<StepOf> {
    let (step, given) = (spank.step(), given::to_step(spank));
    let is_numbered = matches!(step, Some(Step::Numbered(_)));
    Some(StepOf {
        job_id: JobId(spank.job_id()?),
        user_id: UserId(spank.user_id()?),
        tasks: (is_numbered && given.is_some()).then(|| spank.local_tasks().unwrap_or(1)),
        is_whole_job: matches!(step, Some(Step::Batch | Step::Interactive)),
        given,
    })
}

/// Writes the reason why the tasks must not run to the job's comment, and requeues a batch job; held if the next run
/// would have the same fault. In other steps srun prints the reason.
fn give_back(spank: Spank, unfit: Unfit) {
    let (Some(step), Some(job_id)) = (spank.step(), spank.job_id()) else {
        return;
    };
    let requeue = |client: &Client| {
        let job = client.known_job(job_id)?;
        // A comment of the prolog about this run stays; a prolog removes the comment of an earlier run.
        let is_said = is_explained(&job);
        if !is_said {
            let comment = explained_in(&job.admin_comment, &unfit.to_string());
            // The comment is optional; the requeue below is not.
            let _ = client.set_admin_comment(&job, &comment);
        }
        if step != Step::Batch {
            return Ok(false);
        }
        // A temporary fault, such as a slurmctld that lost its last seconds, is over by the next run. Without the
        // hold, a job would return for ever to a node without a prolog.
        let hold = !unfit.passes() || is_said;
        client.requeue(&job, hold).map(|()| true)
    };
    match Client::of_host().and_then(|client| requeue(&client)) {
        // The job is requeued, because its slice is missing. Cure: Nothing.
        Ok(true) => log::info(&format!("gpufrac: job {job_id}: requeued")),
        Ok(false) => {}
        // The job ends, because its slice is missing and it cannot be requeued. Cure: Submit the job again.
        Err(refused) => log::error(&format!("gpufrac: job {job_id} ends: {refused}")),
    }
}

/// The usual paths of slurm.conf; the second on nodes that get it from slurmctld.
const SLURM_CONF: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// Whether this host's slurm.conf names job_submit/gpufrac; true if that cannot be told. slurmd passes the path on, if
/// it is not a usual one.
fn job_submit_is_named() -> bool {
    let passed = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let usual = || {
        SLURM_CONF
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
    };
    let Some(path) = passed.or_else(usual) else {
        return true;
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let include = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let text = std::fs::read_to_string(&path).ok();
    text.and_then(|text| submit_plugins::name_gpufrac(&text, &include)) != Some(false)
}

/// slurmctld's record of the job, if it counts gpufrac for the job on this node.
fn counted(spank: Spank, node: &str, name: &CountName) -> Option<JobRecord> {
    let job_id = spank.job_id()?;
    let info = Client::of_host().and_then(|client| client.known_job(job_id));
    let record = JobRecord::of(info.ok()?, node, name);
    record.has_count().then_some(record)
}

/// The fault of a job of this step for which slurmctld counts gpufrac on this node, and the prolog made no slice:
/// either the node has no pool, and its prolog did not run or its failure was ignored, or the job has no GPU.
fn counted_without_slice(spank: Spank, node: &str, slice: &JobSlice) -> Option<Unfit> {
    let job_id = JobId(spank.job_id()?);
    let name = &slice.count_name;
    // Shares and devices alone may be the site's own, and count as such if Slurm does not answer.
    if slice.may_count_in_no_pool() {
        return counted(spank, node, name).map(|_| Unfit::NoPool { job_id });
    }
    // slurmctld is asked only where slurm.conf lacks the plugin, so that jobs without a GPU cost nothing on a site
    // that is in order.
    let may_be_alone = slice.has_nothing_of_pools() && !job_submit_is_named();
    let counted = may_be_alone.then(|| counted(spank, node, name)).flatten();
    counted
        .filter(|record| record.shards() == 0)
        .map(|_| Unfit::CountAlone { job_id })
}
