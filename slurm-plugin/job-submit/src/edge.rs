//! The functions that slurmctld calls (`src/slurmctld/job_submit.c`, later `src/interfaces/job_submit.c`).

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpufrac_core::fraction::Units;
use gpufrac_core::per_gpu::PerGpu;
use gpufrac_core::policy::{Facts, IdleWish, Reaper};
use gpufrac_core::submit::burst;
use gpufrac_core::submit::idle::{self, IdleRefusal};
use gpufrac_core::submit::{
    Existing, JobRequest, Occasion, SitePerGpu, Verdict, decide, may_reach_pools,
};
use slurm_sys::release::{self, Release};
use slurm_sys::{boundary, host, log, memory, raw, text};

use crate::error::SubmitError;
use crate::job_environment::DecisionWithSum;
use crate::texts::Texts;
use crate::{job_environment, limits, login_environment, settings, share};

const SUCCESS: c_int = raw::SLURM_SUCCESS as c_int;
const FAILED: c_int = raw::SLURM_ERROR;
const REFUSED: c_int = raw::ESLURM_INVALID_GRES as c_int;

slurm_sys::for_slurm! {
    export fn init() -> c_int, or SUCCESS;
    export fn fini(), or ();
    export fn job_submit(job: *mut raw::job_desc_msg_t, uid: u32, message: *mut *mut c_char) -> c_int, or REFUSED;
    #[cfg(not(modify_has_message))]
    export fn job_modify(job: *mut raw::job_desc_msg_t, record: *mut c_void, uid: u32) -> c_int, or REFUSED;
    #[cfg(modify_has_message)]
    export fn job_modify(
        job: *mut raw::job_desc_msg_t,
        record: *mut c_void,
        uid: u32,
        message: *mut *mut c_char,
    ) -> c_int, or REFUSED;
}

/// Whether `init` succeeded earlier in this process. After that no older slurmctld waits to continue. A failure says
/// nothing, because Slurm tries to load a plugin several times.
static SERVED: AtomicBool = AtomicBool::new(false);

/// Called when slurmctld loads the plugin. Neither a panic nor a wrong configuration may keep slurmctld from
/// starting: there are then no pools, and only jobs that ask for a fraction are refused. `init` fails only if an
/// older slurmctld continues in place of this one.
fn init() -> c_int {
    boundary::plant("init");
    match release::foreign() {
        Some(foreign) => log::error(&format!("gpufrac: {foreign}")),
        None => {
            tell_release(release::host());
            let replaces = !SERVED.load(Ordering::Relaxed) && host::is_reconfigured();
            if !settings::start() && replaces {
                // gpufrac.toml has a mistake, and this Slurm can refuse a reconfigure. Cure: Correct the file and run
                // `scontrol reconfigure` again.
                log::error("gpufrac: this reconfigure is refused, slurmctld keeps the old pools");
                settings::stop();
                return FAILED;
            }
            SERVED.store(true, Ordering::Relaxed);
        }
    }
    SUCCESS
}

/// Logs the release of the host, if it is not that of the build.
fn tell_release(host: Option<Release>) {
    // slurmctld's release differs from the one of the build, in the same series. Cure: Nothing.
    match host {
        Some(host) if host != Release::BUILT_FOR => log::info(&format!(
            "gpufrac: built for Slurm {}, serving {host}",
            Release::BUILT_FOR
        )),
        _ => {}
    }
}

/// Called before slurmctld unloads the plugin.
fn fini() {
    settings::stop();
    boundary::plant("fini");
}

/// A client submits a job.
///
/// # Safety
/// As in Slurm's job_submit interface: a valid job description, and a place for a message that is NULL or Slurm's.
unsafe fn job_submit(
    job: *mut raw::job_desc_msg_t,
    _submit_uid: u32,
    message: *mut *mut c_char,
) -> c_int {
    if release::foreign().is_some() {
        return SUCCESS;
    }
    let answer = guarded("job_submit", || {
        // SAFETY: by the contract of this function; slurmctld holds its partition lock here.
        unsafe {
            let default_partition = host::controller_default_partition();
            handle(&mut *job, default_partition.as_deref(), Occasion::Submit)
        }
    });
    give(answer, |line| {
        if !message.is_null() {
            // SAFETY: by the contract of this function.
            unsafe { memory::append_line(message, line) };
        }
    })
}

/// A pending or running job is changed. `_record` is slurmctld's own and is not read, because its layout is no
/// interface. Slurm itself checks right after this call that a running job keeps its GRES.
///
/// # Safety
/// As `job_submit`.
#[cfg(not(modify_has_message))]
unsafe fn job_modify(
    job: *mut raw::job_desc_msg_t,
    _record: *mut c_void,
    _submit_uid: u32,
) -> c_int {
    // SAFETY: by the contract of this function.
    let answer = unsafe { modify(job) };
    // This release has no message to the user, so the message goes to the controller's log.
    give(answer, log::info)
}

/// A pending or running job is changed (with a message to the user, from 23.02 on).
///
/// # Safety
/// As `job_submit`.
#[cfg(modify_has_message)]
unsafe fn job_modify(
    job: *mut raw::job_desc_msg_t,
    _record: *mut c_void,
    _submit_uid: u32,
    message: *mut *mut c_char,
) -> c_int {
    // SAFETY: by the contract of this function.
    let answer = unsafe { modify(job) };
    give(answer, |line| {
        if !message.is_null() {
            // SAFETY: by the contract of this function.
            unsafe { memory::append_line(message, line) };
        }
    })
}

/// # Safety
/// As `job_submit`.
unsafe fn modify(job: *mut raw::job_desc_msg_t) -> NoteOrRefusal {
    // In another series `message` may not be an argument of this function, so nothing is read and no message is
    // written.
    if release::foreign().is_some() {
        return Ok(None);
    }
    guarded("job_modify", || {
        // SAFETY: by the contract of this function.
        unsafe { handle(&mut *job, None, Occasion::Modify) }
    })
}

/// The message for the user: the note of an accepted job, or the reason of a refusal.
type NoteOrRefusal = Result<Option<String>, String>;

/// Decides inside the boundary, so that a panic refuses the job. The refusal becomes text there, because formatting
/// could panic as well.
fn guarded(
    name: &str,
    decide: impl FnOnce() -> Result<Option<String>, SubmitError>,
) -> NoteOrRefusal {
    boundary::guard(name, Err(SubmitError::Panicked.to_string()), || {
        boundary::plant(name);
        decide().map_err(|refusal| refusal.to_string())
    })
}

fn give(answer: NoteOrRefusal, show: impl FnOnce(&str)) -> c_int {
    match answer {
        Ok(None) => SUCCESS,
        Ok(Some(note)) => {
            show(&note);
            SUCCESS
        }
        Err(refusal) => {
            show(&refusal);
            REFUSED
        }
    }
}

/// Decides about a job description and changes it. `Ok`: a note for the user. `Err`: the refusal.
///
/// # Safety
/// The strings and lists in `job` are NULL or Slurm's, and slurmctld holds its partition lock.
unsafe fn handle(
    job: &mut raw::job_desc_msg_t,
    default_partition: Option<&str>,
    occasion: Occasion,
) -> Result<Option<String>, SubmitError> {
    // SAFETY: by the contract of this function.
    unsafe { limits::check(job) }?;
    // SAFETY: by the contract of this function.
    let environment = unsafe { text::read_list(job.spank_job_env, job.spank_job_env_size) };
    // SAFETY: by the contract of this function.
    let texts = unsafe { Texts::read(job) };
    let settings = settings::current();
    let known = settings.as_deref().and_then(|read| read.as_ref().ok());
    let config = known.map(|known| &known.config);
    let nodes = known.and_then(|known| known.nodes.as_ref());
    let mut request = texts.request(job, default_partition, nodes);
    // SAFETY: by the contract of this function.
    let exists = |name: &str| unsafe { host::controller_has_partition(name) };
    request.existing = Some(Existing(&exists));
    let per_gpu = |partition: &str| {
        // SAFETY: by the contract of this function.
        let host::PerGpu { cpus, memory } = unsafe { host::per_gpu(partition) };
        PerGpu { cpus, memory }
    };
    request.per_gpu = Some(SitePerGpu(&per_gpu));

    // An update does not contain the options of the submission, and leaves them unchanged.
    let mut asked = None;
    if occasion == Occasion::Submit {
        asked = idle::asked(&environment)?;
        request.burst = burst::asked(&environment)?;
    }

    if let Some(config) = config.filter(|_| texts.asks_for_pools()) {
        return Err(SubmitError::Question(config.pools_sum()));
    }
    let verdict = match settings.as_deref() {
        Some(Ok(known)) => decide(&known.config, &request, occasion).map_err(Box::new)?,
        Some(Err(error)) if request.names_fraction() => {
            return Err(SubmitError::NoConfig(Arc::clone(error)));
        }
        None if request.names_fraction() => return Err(SubmitError::NotRead),
        _ => Verdict::Untouched,
    };

    let (decision, note) = match verdict {
        Verdict::Untouched => (None, without_effect(asked, request.burst)),
        Verdict::Rewritten {
            text,
            mut entry,
            share: with_it,
            note,
        } => {
            if let (Some(wish), Some(config)) = (asked, config) {
                // SAFETY: by the contract of this function.
                unsafe { allow(job, &request, &config.reaper, wish) }?;
                entry.wish = wish;
            }
            let field = if entry.per_task {
                &raw mut job.tres_per_task
            } else {
                &raw mut job.tres_per_node
            };
            // SAFETY: by the contract of this function.
            unsafe { memory::replace(field, Some(&text)) };
            // SAFETY: by the contract of this function.
            unsafe { share::write(job, &with_it, request.form) };
            (config.map(|config| (entry, config.pools_sum())), note)
        }
    };

    // SAFETY: by the contract of this function.
    let login = match config.filter(|_| unsafe { login_environment::is_requested(job) }) {
        None => Login::NotLoaded,
        Some(config) if may_reach_pools(config, &request) => {
            // SAFETY: by the contract of this function.
            unsafe { login_environment::withdraw(job) };
            Login::Withdrawn
        }
        Some(_) => Login::Loaded,
    };
    // SAFETY: by the contract of this function.
    unsafe { mark(job, environment, decision.as_ref(), login == Login::Loaded) };
    Ok(match (note, login) {
        (Some(note), Login::Withdrawn) => Some(format!("{note}\n{}", login_environment::NOTE)),
        (None, Login::Withdrawn) => Some(login_environment::NOTE.to_owned()),
        (note, Login::NotLoaded | Login::Loaded) => note,
    })
}

/// The message for a job that has options for slices and no slice.
fn without_effect(idle: Option<IdleWish>, burst: Option<Units>) -> Option<String> {
    let notes = [
        idle.map(|_| idle::NO_EFFECT),
        burst.map(|_| burst::NO_EFFECT),
    ];
    let notes: Vec<&str> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("\n"))
}

/// Whether slurmd will load the login environment of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Login {
    NotLoaded,
    Withdrawn,
    Loaded,
}

/// Writes the variables for the node, and removes those that a user set under the same names.
///
/// # Safety
/// The lists in `job` are NULL or Slurm's.
unsafe fn mark(
    job: &mut raw::job_desc_msg_t,
    environment: Vec<String>,
    decision: Option<&DecisionWithSum>,
    login: bool,
) {
    let forged = environment
        .iter()
        .any(|variable| job_environment::is_own(variable));
    if !forged && !login && decision.is_none() {
        return;
    }
    let environment = job_environment::rewritten(environment, decision, login);
    // SAFETY: by the contract of this function.
    unsafe {
        memory::replace_list(
            &raw mut job.spank_job_env,
            &raw mut job.spank_job_env_size,
            &environment,
        );
    }
}

/// Checks whether the job may use its value of `--gpufrac-idle`, by the properties that are known now. The user's
/// name is not looked up, because that may wait for a directory server.
///
/// # Safety
/// The strings in `job` are NULL or Slurm's.
unsafe fn allow(
    job: &raw::job_desc_msg_t,
    request: &JobRequest<'_>,
    reaper: &Reaper,
    wish: IdleWish,
) -> Result<(), IdleRefusal> {
    // SAFETY: by the contract of this function.
    let field = |text| unsafe { text::read(text) }.filter(|text: &String| !text.is_empty());
    let partitions = request.partitions.filter(|names| !names.is_empty());
    let partition = partitions.or(request.default_partition);
    let (qos, account) = (field(job.qos), field(job.account));
    let reservation = field(job.reservation).unwrap_or_default();
    let name = field(job.name).unwrap_or_default();
    let facts = Facts {
        pool: None,
        partition: single(partition),
        // slurmctld sets the default QOS and account of accounting later.
        qos: qos.as_deref(),
        account: account.as_deref(),
        user: None,
        reservation: single(Some(&reservation)),
        name: Some(&name),
        interactive: interactive(job),
    };
    idle::allow(reaper, &facts, wish)
}

/// The only name in a list; None if there are several, because it is not known which of them Slurm will choose.
fn single(names: Option<&str>) -> Option<&str> {
    names.filter(|names| !names.contains(','))
}

/// Whether the job has no batch script. Of a heterogeneous job only the first component has the script.
fn interactive(job: &raw::job_desc_msg_t) -> Option<bool> {
    let part = ![raw::GPUFRAC_NO_VAL, 0].contains(&job.het_job_offset);
    (!part).then_some(job.script.is_null())
}
