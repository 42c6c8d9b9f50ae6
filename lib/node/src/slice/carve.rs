//! The prolog's work: makes a slice for a job, or for each of its tasks on this node, or several whole GPUs, before
//! the job starts.

mod attempt;
pub(super) mod error;
mod failure;
pub(super) mod other_pools;
pub(super) mod times;

use std::time::Duration;

use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::lease::Lease;

pub use attempt::Carved;
pub use error::{CarveError, Fault, Reaction};
pub use failure::give_back;
pub use other_pools::OtherPools;

use crate::cdi;
use crate::gpu::mig_mode::SwitchError;
use crate::gpu::shared_session;
use crate::job::admin_comment::is_explained;
use crate::job::environment::JobEnv;
use crate::job::plugstack;
use crate::job::reserve;
use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::slice::agreement::job_record::JobRecord;
use crate::slice::agreement::order::{self, Request};
use crate::slice::keep;
use crate::slice::release;
use crate::slice::waiting::{Hook, Waiting};
use crate::state::leases::LeaseStore;
use crate::state::locks::LockError;
use crate::state::outcomes::{Ending, Outcome};
use crate::state::stuck::{self, Lost};
use crate::state::without;
use attempt::Attempt;
use failure::Failure;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;
use gpufrac_host::pause::Pause;
use gpufrac_nvml::{NvmlError, Session};
use times::{FIRST_PAUSE, LONGEST_PAUSE, PATIENCE};

/// Why a job gets no slices.
struct Failed {
    error: CarveError,
    /// The device on which it failed; None before the attempts.
    device: Option<DeviceIndex>,
}

impl<E: Into<CarveError>> From<E> for Failed {
    fn from(error: E) -> Self {
        let (error, device) = (error.into(), None);
        Self { error, device }
    }
}

/// Makes the slices of a job, and retries after temporary errors.
fn carve(
    job: &JobEnv,
    node: &Node,
    slurm: &dyn Slurm,
    log: &JobLog,
    waiting: &mut Waiting<'_>,
) -> Result<Carved, Failed> {
    if !node.has_pools() {
        order::without_pools(job, &node.config.count_name, slurm)?;
        return Ok(Carved::NotConcerned);
    }
    let record = node.record()?;
    let gpu_count = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, gpu_count);
    let held = devices
        .iter()
        .any(|device| job.devices.contains(&device.index));
    if !held && !matches!(job.entry, Ok(Some(_))) {
        // With `--exclusive` Slurm shows the steps of such a job every device of the node, but its prolog only those
        // that it asked for.
        without::note(&node.run, job.job_id, job.user_id)?;
        return Ok(Carved::NotConcerned);
    }
    record.is_of_driver(&node.run, &node.caps())?;
    let entry = job.entry.clone().map_err(CarveError::Entry)?;
    let store = node.leases()?;
    // slurmctld and the driver both need time, so they work in parallel.
    slurm.prefetch(job.job_id);
    let session = entry.is_some().then(|| open(job, node, &store));
    let request = Request::of(job, node, entry, held, slurm, log)?;
    if !needs_slices(&request, &store, held, slurm)? {
        return Ok(Carved::NotConcerned);
    }
    without::forget(&node.run, job.job_id)?;
    if job.loads_login {
        let (job_id, partition) = (job.job_id, job.partition.clone());
        return Err(CarveError::Login { job_id, partition }.into());
    }
    if let Some(files) = slurm.spank_files() {
        plugstack::check(&files)?;
    }
    let order = request.order(&record, &devices)?;
    let old = store.of_job(job.job_id)?;
    if old.iter().any(|old| !order.has_place_of(old)) {
        // The slices of an earlier run of the job, whose epilog did not run, on a GPU whose lock the attempts below
        // do not take, or with the number of a slice on another GPU, which names the file.
        release::release(node, job.job_id, log)?;
    }
    let attempts = order.parts.iter().map(|part| Attempt {
        job,
        node,
        store: &store,
        record: &record,
        device: part.device,
        menu: part.menu,
        count: part.count,
        number: part.first,
        confirmed: request.record.is_some(),
        whole_device: order.whole_device,
        slurm,
        log,
    });
    let attempts: Vec<Attempt<'_>> = attempts.collect();
    carve_each(&attempts, session.and_then(Result::ok), waiting)
}

/// Whether the job gets slices, by Slurm's record. One that does not is noted, so that its steps start without.
fn needs_slices(
    request: &Request<'_>,
    store: &LeaseStore,
    held: bool,
    slurm: &dyn Slurm,
) -> Result<bool, CarveError> {
    let (job, node) = (request.job, request.node);
    if let Some(JobRecord { info, .. }) = &request.record {
        if job.is_over_by(info) {
            // Slurm no longer reports the job's allocation, which would look like an error. The epilog removes the
            // remains of an earlier run.

            // The job ended while its prolog ran. Cure: Nothing.
            request
                .log
                .info("the job has already ended; no slice is created");
            return Ok(false);
        }
        if let Some(device) = job.devices.first()
            && reserve::is_one(job, info)
        {
            without::note(&node.run, job.job_id, job.user_id)?;
            reserve::note_device(node, job.job_id, *device)?;
            return Ok(false);
        }
        if is_explained(info) {
            // The explanation of an earlier start.
            slurm.explain(job.job_id, "");
        }
    }
    let wants = request.wants_gpu();
    if !wants {
        go_without(request, store, held)?;
    }
    Ok(wants)
}

/// Carves on one GPU after the other, in the order of their indexes. The program holds the lock of one GPU at a time,
/// so that no two jobs wait for each other. A job gets all of its GPUs or none.
fn carve_each(
    attempts: &[Attempt<'_>],
    mut session: Option<Session>,
    waiting: &mut Waiting<'_>,
) -> Result<Carved, Failed> {
    let (mut leases, mut is_new) = (Vec::new(), false);
    for (done, attempt) in attempts.iter().enumerate() {
        match try_for_a_while(attempt, &mut session, waiting) {
            Ok(Carved::NotConcerned) => {}
            Ok(Carved::Kept(kept)) => leases.extend(kept),
            Ok(Carved::Made(made)) => {
                leases.extend(made);
                is_new = true;
            }
            Err(error) => {
                for other in attempts[..done].iter().rev() {
                    give_back_gpu(other, &mut session, waiting);
                }
                let device = Some(attempt.device.index);
                return Err(Failed { error, device });
            }
        }
    }
    if is_new { Ok(Carved::Made(leases)) } else { Ok(Carved::Kept(leases)) }
}

/// Removes the slice of a GPU after an attempt failed on another GPU of the job. A slice that cannot be removed is
/// marked, and the job's epilog or the next prolog on the GPU removes it.
fn give_back_gpu(attempt: &Attempt<'_>, session: &mut Option<Session>, waiting: &mut Waiting<'_>) {
    let opened = opened(session, attempt.node).map_err(CarveError::from);
    let given_back = opened.and_then(|session| {
        let locks = attempt.node.locks()?;
        attempt.give_back(session, &mut locks.line(attempt.device.gpu_index)?, waiting)
    });
    if let Err(failed) = given_back {
        // One GPU of a job with several could not be made, and another one that was made could not be taken back at
        // once. Cure: Nothing: the epilog removes the slice.
        attempt.log.warning(format!(
            "taking back GPU {} failed: {failed}; the job's epilog removes its slice",
            attempt.device.gpu_index
        ));
        if let Err(failed) = release::mark_all(attempt.node, attempt.job.job_id, attempt.log) {
            // As above, and the lease could not be written. Cure: See the cause that the line gives.
            attempt
                .log
                .warning(format!("marking the job's slices failed: {failed}"));
        }
    }
}

/// The open session, or a new one.
fn opened<'s>(session: &'s mut Option<Session>, node: &Node) -> Result<&'s Session, NvmlError> {
    let opened = match session.take() {
        Some(opened) => opened,
        None => node.nvml()?,
    };
    Ok(session.insert(opened))
}

/// Starts NVML, unless the job may get a kept instance, about which the daemon's session can be asked.
fn open(job: &JobEnv, node: &Node, store: &LeaseStore) -> Result<Session, NvmlError> {
    let may_take_over = keep::waits_for(node, store, job.user_id, |kept| {
        job.devices.contains(&kept.slice.device_index)
    });
    if may_take_over && shared_session::is_there(&node.run) {
        Ok(node.nvml_later())
    } else {
        node.nvml()
    }
}

/// Leaves the job without a slice; the SPANK plugin closes all GPUs to it. It must not find the lease of another run,
/// or of another job with the same id.
fn go_without(request: &Request<'_>, store: &LeaseStore, held: bool) -> Result<(), CarveError> {
    let (job, node, is_known) = (request.job, request.node, request.record.is_some());
    let old = store.of_job(job.job_id)?;
    if old.iter().any(|old| is_known || !job.is_run_of(old)) {
        release::release(node, job.job_id, request.log)?;
    }
    request.check_no_shares()?;
    // Only if Slurm confirms it: no task of any other job with a device starts.
    if held && is_known {
        without::note(&node.run, job.job_id, job.user_id)?;
    }
    Ok(())
}

/// Tries until it succeeds, an error is permanent, or [`PATIENCE`] is over. `session`: one that was opened already; it
/// stays open after a success. A failed attempt gives the GPU to others until the next attempt, and keeps its place in
/// the queue.
fn try_for_a_while(
    attempt: &Attempt<'_>,
    session: &mut Option<Session>,
    waiting: &mut Waiting<'_>,
) -> Result<Carved, CarveError> {
    let locks = attempt.node.locks()?;
    let mut line = locks.line(attempt.device.gpu_index)?;
    let mut pause = Pause::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut said = String::new();
    loop {
        let carved = opened(session, attempt.node)
            .map_err(CarveError::from)
            .and_then(|session| attempt.run(session, &mut line, waiting));
        let error = match carved {
            Err(error) if error.reaction() == Reaction::Wait => error,
            other => return other,
        };
        *session = None;
        // The wait for a turn that did not come was long enough.
        let left = match error {
            CarveError::Lock(LockError::Timeout { .. })
            | CarveError::Switch(SwitchError::Fabric { .. }) => Duration::ZERO,
            _ => waiting.heals_within(PATIENCE),
        };
        if left.is_zero() {
            waiting.give_up(&error);
            return Err(error);
        }
        let why = error.to_string();
        if why != said {
            // The prolog waits for the reason that follows. Cure: Nothing, unless it repeats for minutes: then follow
            // the text.
            attempt.log.info(format!("waiting: {why}"));
            said = why;
        }
        pause.sleep(left);
    }
}

/// Makes the slices, and converts the result into a request to Slurm.
pub fn prolog(job: &JobEnv, node: &Node, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    let start = slurm.now();
    let mut waiting = Waiting::new(Hook::Prolog, job.job_id, node, Some(slurm), log);
    let carved = carve(job, node, slurm, log, &mut waiting);
    let waited = waiting.waited();
    if carved.is_ok() {
        slurm.flush();
    }
    if let Ok(Carved::Made(leases) | Carved::Kept(leases)) = &carved {
        works_again(node, leases, log);
        if let Err(error) = cdi::write(node, leases) {
            // A container that asks for the job's device of CDI does not start. Cure: Follow the text; `paths.cdi` must
            // be a folder that root alone can change.
            log.error(format!("writing the job's file of CDI failed: {error}"));
        }
    }
    let failed = match carved {
        Ok(Carved::NotConcerned) => return Exit::Done,
        Ok(carved) => {
            told(&carved, log);
            Outcome::new(Ending::Served, start.elapsed(), waited).count(node, log);
            return Exit::Done;
        }
        Err(failed) => failed,
    };
    let failure = Failure {
        job,
        node,
        slurm,
        log,
        error: &failed.error,
        device: failed.device,
        start,
    };
    let took = start.elapsed();
    let (exit, ending) = failure.react();
    Outcome::new(ending, took, waited).count(node, log);
    exit
}

/// The node and the devices of these leases can be used.
fn works_again(node: &Node, leases: &[Lease], log: &JobLog) {
    let devices = leases.iter().map(|lease| lease.slice.device_index);
    stuck::forget(node, devices.map(Lost::Device).chain([Lost::Node]), log);
}

fn told(carved: &Carved, log: &JobLog) {
    let (what, leases) = match carved {
        Carved::NotConcerned => return,
        Carved::Made(leases) => ("carved", leases),
        Carved::Kept(leases) => ("kept", leases),
    };
    for lease in leases {
        log.info(format!("{what} {}", summary(lease)));
    }
}

fn summary(lease: &Lease) -> String {
    format!(
        "{} of {} for user {}, {}",
        lease.place(),
        lease.slice.gpu_uuid,
        lease.user,
        lease.slice.cuda_device().unwrap_or("no instance")
    )
}
