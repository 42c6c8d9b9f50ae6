//! The prolog's work: a slice for a job, or for each of its tasks here, before the job starts.

mod attempt;
mod error;

use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::config::Device;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::lease::Lease;
use slurm_sys::client::{JobInfo, JobState};

pub use error::{CarveError, Reaction};

use crate::job::environment::JobEnv;
use crate::job::grant::{self, Asked};
use crate::job::slurmctld::{Slurm, SlurmError};
use crate::job::tasks;
use crate::node::Node;
use crate::slice::reconcile::place;
use crate::slice::release;
use crate::state::record::NodeRecord;
use attempt::Attempt;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;
use gpufrac_host::pause::Pause;

/// How long what heals by itself is waited for: a predecessor that is dying, a busy driver.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long slurmctld may be silent for a job of which nothing can be made without its word, from the start of the
/// prolog: a prolog that fails drains the node. It has 60 s (`PrologEpilogTimeout` where it is set), of which each
/// answer may take some.
const SILENCE: Duration = Duration::from_secs(45);
/// The part of it in which the job can still be carved: in the rest it is put back.
const QUESTIONS: Duration = Duration::from_secs(36);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// Without `PrologFlags=DeferBatch` slurmctld needs a moment to take the job back.
const AFTER_REQUEUE: Duration = Duration::from_secs(1);

/// What carving came to.
#[derive(Debug)]
pub enum Carved {
    /// The job has nothing to do with a pool of this node.
    NotConcerned,
    /// The slices are there, by number.
    Made(Vec<Lease>),
    /// They were there already: Slurm ran the prolog again.
    Kept(Vec<Lease>),
}

/// Carves the slice of a job, with patience for what heals by itself.
pub fn carve(
    job: &JobEnv,
    node: &Node,
    slurm: &dyn Slurm,
    log: &JobLog,
) -> Result<Carved, CarveError> {
    if !node.has_pools() {
        return Ok(Carved::NotConcerned);
    }
    let record = node.record()?;
    let gpu_count = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, gpu_count);
    let held = devices
        .iter()
        .any(|device| job.devices.contains(&device.index));
    if !held && !matches!(job.entry, Ok(Some(_))) {
        return Ok(Carved::NotConcerned);
    }
    let mut entry = job.entry.clone().map_err(CarveError::Entry)?;
    let store = node.leases()?;
    // slurmctld and the driver both take their time: let them do so side by side.
    slurm.expect(job.job_id);
    let mut session = entry.is_some().then(|| node.nvml());
    let mut silence = None;
    let said = match ask(job, entry, slurm) {
        Ok(said) => said,
        // Not even an entry says what the job may have: job_submit's plugin is hardly of this Slurm either, and so
        // leaves all entries as users write them.
        Err(error) if error.is_of_other_series() && held => return Err(CarveError::Foreign(error)),
        Err(error) => {
            log.warning(format!(
                "Slurm does not say what the job asked for: {error}"
            ));
            entry = entry.filter(|_| !error.is_of_other_series());
            silence = Some(error.to_string());
            None
        }
    };
    let asked = said.as_ref().map(Asked::from);
    let for_gpu = |asked: &Asked| asked.is_for_gpu(&node.config);
    let wanted = asked.as_ref().map_or(entry.is_some(), for_gpu);
    if !wanted {
        // Without a slice the job reaches no GPU: the SPANK plugin closes them all. So it must
        // not find the lease of another run, or of another job of this number.
        let old = store.of_job(job.job_id)?;
        if old.iter().any(|old| asked.is_some() || !job.is_run_of(old)) {
            release::release(node, job.job_id, log)?;
        }
        return Ok(Carved::NotConcerned);
    }
    // A job can be changed, or come, without job_submit having seen its text.
    if let Some(asked) = &asked {
        let unread = asked.refuse_ambiguous();
        unread.map_err(|source| CarveError::Ambiguous {
            job_id: job.job_id,
            source,
        })?;
    }
    let device = device_of(job, &devices)?;
    check_record(&record, &device)?;
    let units = granted_units(asked.as_ref(), entry, &device, log)?;
    let menu = grant::menu_entry(&device, units).ok_or_else(|| CarveError::TooSmall {
        pool: device.pool.name.clone(),
        units,
    })?;
    if let (Some(info), Some(asked)) = (&said, &asked)
        && let Some(rule) = asked.against_rules(&node.config, &info.partition, &device, units, menu)
    {
        return Err(CarveError::Rule {
            job_id: job.job_id,
            partition: info.partition.clone(),
            rule,
        });
    }
    let count = slices(job, said.as_ref(), asked.as_ref(), entry, units, silence)?;
    let old = store.of_job(job.job_id)?;
    if old
        .iter()
        .any(|old| old.slice.gpu_index != device.gpu_index)
    {
        // From an earlier run of the job, whose epilog never came, on a GPU whose lock the
        // attempts below do not take.
        release::release(node, job.job_id, log)?;
    }
    let attempt = Attempt {
        job,
        node,
        store: &store,
        record: &record,
        device,
        menu,
        count,
        number: 0,
        confirmed: said.is_some(),
        slurm,
        log,
    };
    let start = Instant::now();
    let mut pause = Pause::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut said = String::new();
    loop {
        let left = PATIENCE.saturating_sub(start.elapsed());
        let session = session.take().unwrap_or_else(|| node.nvml());
        let carved = session
            .map_err(CarveError::from)
            .and_then(|session| attempt.run(&session, left));
        match carved {
            Err(error) if error.reaction() == Reaction::Wait && !left.is_zero() => {
                let why = error.to_string();
                if why != said {
                    log.info(format!("waiting: {why}"));
                    said = why;
                }
                pause.sleep(left);
            }
            other => return other,
        }
    }
}

/// Where nothing can be made without Slurm's word, it is asked again.
fn ask(
    job: &JobEnv,
    entry: Option<Entry>,
    slurm: &dyn Slurm,
) -> Result<Option<JobInfo>, SlurmError> {
    let start = slurm.now();
    loop {
        let answer = slurm.job(job.job_id);
        let limit = match &answer {
            Err(error) if is_per_task(entry) && !error.is_of_other_series() => QUESTIONS,
            // The job can be put back, so this is not waited for as long.
            Ok(Some(info)) if lacks_count(info) => PATIENCE,
            _ => Duration::ZERO,
        };
        if slurm.now().duration_since(start) >= limit {
            return answer;
        }
        sleep(LONGEST_PAUSE);
    }
}

fn is_per_task(entry: Option<Entry>) -> bool {
    entry.is_some_and(|entry| entry.per_task)
}

/// Whether Slurm answered without what the job holds on its nodes, although its tasks are to have slices.
fn lacks_count(info: &JobInfo) -> bool {
    let empty = info.gres_of_nodes.iter().all(String::is_empty);
    empty && info.state == JobState::Running && Asked::from(info).is_per_task()
}

/// The device of a pool that Slurm gave to the job.
fn device_of<'a>(job: &JobEnv, devices: &[Device<'a>]) -> Result<Device<'a>, CarveError> {
    let mut ours = devices
        .iter()
        .filter(|device| job.devices.contains(&device.index));
    match (ours.next(), ours.next()) {
        (Some(device), None) => Ok(*device),
        (Some(_), Some(_)) => Err(CarveError::SeveralDevices {
            devices: job.devices.clone(),
        }),
        (None, _) if job.devices.is_empty() => Err(CarveError::NoDevice),
        (None, _) => Err(CarveError::UnknownDevice {
            devices: job.devices.clone(),
            count: devices.len(),
        }),
    }
}

/// The configuration and the record of node-setup must mean the same GPUs.
fn check_record(record: &NodeRecord, device: &Device<'_>) -> Result<(), CarveError> {
    let gpu = record.gpus.get(device.gpu_index.position());
    match gpu.map(|gpu| gpu.pool.as_deref()) {
        Some(Some(pool)) if pool == device.pool.name => Ok(()),
        _ => Err(CarveError::ConfigChanged {
            pool: device.pool.name.clone(),
            gpu_index: device.gpu_index,
        }),
    }
}

fn granted_units(
    asked: Option<&Asked>,
    entry: Option<Entry>,
    device: &Device<'_>,
    log: &JobLog,
) -> Result<Units, CarveError> {
    let offered = device.pool.mechanism;
    if let Some(named) = entry.and_then(|entry| entry.mechanism)
        && named != offered
    {
        // A mechanism that the user named is kept by the Type in Slurm's own text; the entry has it too where no
        // other came into question, and stays what it was when the job is moved.
        if asked.is_none() {
            return Err(CarveError::Mechanism {
                asked: named,
                pool: device.pool.name.clone(),
                offered,
            });
        }
        log.info(format!(
            "the job was changed while it was pending: a slice by {offered}, not {named}"
        ));
    }
    let units = grant::granted(asked, entry, device);
    let units = units.ok_or_else(|| CarveError::NoSize {
        device: device.index,
        tres: asked.map_or(String::new(), |asked| asked.per_node.clone()),
    })?;
    if let Some(entry) = entry
        && entry.units != units
    {
        log.info(format!(
            "the job was changed while it was pending: {units} units, not {}",
            entry.units
        ));
    }
    Ok(units)
}

/// How many slices of these units the job holds here. `silence`: why Slurm did not answer.
fn slices(
    job: &JobEnv,
    info: Option<&JobInfo>,
    asked: Option<&Asked>,
    entry: Option<Entry>,
    units: Units,
    silence: Option<String>,
) -> Result<u32, CarveError> {
    let (Some(info), Some(asked)) = (info, asked) else {
        return match is_per_task(entry) {
            true => Err(CarveError::Uncounted {
                why: silence.unwrap_or_else(|| "it does not know the job".to_owned()),
            }),
            false => Ok(1),
        };
    };
    if asked.is_twice() {
        return Err(CarveError::NodeAndTask {
            per_node: asked.per_node.clone(),
            per_task: asked.per_task.clone(),
        });
    }
    if !asked.is_per_task() {
        return Ok(1);
    }
    tasks::slices(info, &job.node, units).ok_or_else(|| CarveError::Uncounted {
        why: format!("`{}` on `{}`", info.gres_of_nodes.join(" "), info.nodes),
    })
}

/// Carves and turns the result into what Slurm is told.
pub fn prolog(job: &JobEnv, node: &Node, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    let start = slurm.now();
    let error = match carve(job, node, slurm, log) {
        Ok(Carved::NotConcerned) => return Exit::Done,
        Ok(Carved::Made(leases)) => return told("carved", &leases, log),
        Ok(Carved::Kept(leases)) => return told("kept", &leases, log),
        Err(error) => error,
    };
    match error.reaction() {
        Reaction::Drain => {
            log.error(format!("cannot carve on this node: {error}"));
            if let Some(hint) = error.hint() {
                log.error(format!("hint: {hint}"));
            }
            Exit::Broken
        }
        Reaction::Wait => give_back(job, slurm, log, &error, start, false),
        Reaction::Hold => give_back(job, slurm, log, &error, start, true),
        Reaction::Refuse => {
            log.warning(format!("the job is refused: {error}"));
            end(job, slurm, log, &error)
        }
    }
}

fn told(what: &str, leases: &[Lease], log: &JobLog) -> Exit {
    for lease in leases {
        log.info(format!("{what} {}", summary(lease)));
    }
    Exit::Done
}

fn summary(lease: &Lease) -> String {
    format!(
        "{} of {} for user {}, {}",
        place(lease),
        lease.slice.gpu_uuid,
        lease.user,
        lease.slice.cuda_device().unwrap_or("no instance")
    )
}

/// The node is fine, only this job cannot start here now; held, if not before somebody changes it. `start`: when the
/// prolog began.
fn give_back(
    job: &JobEnv,
    slurm: &dyn Slurm,
    log: &JobLog,
    error: &CarveError,
    start: Instant,
    hold: bool,
) -> Exit {
    let entry = job.entry.as_ref().ok().copied().flatten();
    let limit = match is_per_task(entry) {
        true => SILENCE,
        false => Duration::ZERO,
    };
    loop {
        match slurm.requeue(job.job_id, hold) {
            Ok(()) => {
                let how = if hold {
                    "requeued and held"
                } else {
                    "requeued"
                };
                log.warning(format!("{how}: {error}"));
                sleep(AFTER_REQUEUE);
                return Exit::Done;
            }
            Err(refused) if refused.cannot_requeue() => {
                log.warning(format!("cancelled, as it cannot be requeued: {error}"));
                return end(job, slurm, log, error);
            }
            Err(_) if is_given_up(job, slurm) => {
                log.warning(format!("given back already: {error}"));
                return Exit::Done;
            }
            Err(silent)
                if silent.is_of_other_series() || slurm.now().duration_since(start) >= limit =>
            {
                log.error(format!("cannot carve: {error}; cannot requeue: {silent}"));
                return Exit::Broken;
            }
            Err(_) => sleep(LONGEST_PAUSE),
        }
    }
}

fn end(job: &JobEnv, slurm: &dyn Slurm, log: &JobLog, error: &CarveError) -> Exit {
    let line = format!("gpufrac: no slice on {}: {error}", job.node);
    if let Err(error) = slurm.notify(job.job_id, &line) {
        log.warning(format!("the user was not told: {error}"));
    }
    match slurm.cancel(job.job_id) {
        Ok(()) => Exit::Done,
        Err(_) if is_given_up(job, slurm) => Exit::Done,
        Err(error) => {
            log.error(format!("cannot cancel the job: {error}"));
            Exit::Broken
        }
    }
}

/// Whether Slurm says that the job does not run any more: another of its nodes was faster, or its user.
fn is_given_up(job: &JobEnv, slurm: &dyn Slurm) -> bool {
    slurm.job(job.job_id).is_ok_and(|info| {
        info.is_none_or(|info| {
            let running = matches!(info.state, JobState::Running | JobState::Suspended);
            !running || info.restart_count > job.restart_count
        })
    })
}
