//! The prolog's work: makes a slice for a job, or for each of its tasks on this node, or several whole GPUs, before
//! the job starts.

mod attempt;
mod error;
mod order;
mod times;

use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::config::Config;
use gpufrac_core::layout::Side;
use gpufrac_core::lease::Lease;

pub use error::{CarveError, Fault, OtherPools, Reaction};

use crate::gpu::mig_mode::SwitchError;
use crate::gpu::shared_session;
use crate::job::environment::JobEnv;
use crate::job::plugstack;
use crate::job::reserve;
use crate::job::slurmctld::{Slurm, SlurmError, is_explained};
use crate::node::{Node, NodeError};
use crate::slice::drain::drain;
use crate::slice::keep;
use crate::slice::release;
use crate::slice::waiting::{Hook, Waiting};
use crate::state::leases::LeaseStore;
use crate::state::locks::LockError;
use crate::state::put_back::{self, PutBack};
use crate::state::stuck::{self, Lost, Stuck};
use crate::state::without;
use attempt::Attempt;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;
use gpufrac_host::pause::Pause;
use gpufrac_nvml::{NvmlError, Session};
use order::Word;
use times::{AFTER_REQUEUE, FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, SILENCE};

/// How many nodes a job tries whose files do not agree with slurmctld's, before it stays held.
const MOST_NODES: u32 = 3;

/// The outcome of carving.
#[derive(Debug)]
pub enum Carved {
    /// The job does not use a pool of this node.
    NotConcerned,
    /// The slices were made; by number.
    Made(Vec<Lease>),
    /// The slices existed already, because Slurm ran the prolog again.
    Kept(Vec<Lease>),
}

/// Makes the slices of a job, and retries after temporary errors.
pub fn carve(
    job: &JobEnv,
    node: &Node,
    slurm: &dyn Slurm,
    log: &JobLog,
) -> Result<Carved, CarveError> {
    if !node.has_pools() {
        return order::without_pools(job, &node.config.count_name, slurm);
    }
    let waiting = Waiting::new(Hook::Prolog, job.job_id, node, Some(slurm), log);
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
    let entry = job.entry.clone().map_err(CarveError::Entry)?;
    let store = node.leases()?;
    // slurmctld and the driver both need time, so they work in parallel.
    slurm.expect(job.job_id);
    let session = entry.is_some().then(|| open(job, node, &store));
    let word = Word::hear(job, entry, held, &node.config.count_name, slurm, log)?;
    if let Some(info) = &word.said
        && job.is_over_by(info)
    {
        // Slurm no longer reports the job's allocation, which would look like an error. The epilog removes the
        // remains of an earlier run.
        log.info("the job has already ended; no slice is created");
        return Ok(Carved::NotConcerned);
    }
    if let (Some(info), Some(device)) = (&word.said, job.devices.first())
        && reserve::is_one(job, info)
    {
        without::note(&node.run, job.job_id, job.user_id)?;
        reserve::note_device(node, job.job_id, *device)?;
        return Ok(Carved::NotConcerned);
    }
    if word.said.as_ref().is_some_and(is_explained) {
        // The explanation of an earlier start.
        slurm.explain(job.job_id, "");
    }
    if !word.wants_gpu(node) {
        go_without(job, node, &store, &word, held, log)?;
        return Ok(Carved::NotConcerned);
    }
    without::forget(&node.run, job.job_id)?;
    if job.loads_login {
        return Err(CarveError::Login {
            job_id: job.job_id,
            partition: job.partition.clone(),
        });
    }
    if let Some(files) = slurm.spank_files() {
        plugstack::check(&files)?;
    }
    let order = word.order(job, node, &record, &devices, log)?;
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
        confirmed: word.said.is_some(),
        whole_device: order.whole_device,
        slurm,
        log,
    });
    let attempts: Vec<Attempt<'_>> = attempts.collect();
    carve_each(&attempts, session.and_then(Result::ok), waiting)
}

/// Carves on one GPU after the other, in the order of their indexes. The program holds the lock of one GPU at a time,
/// so that no two jobs wait for each other. A job gets all of its GPUs or none.
fn carve_each(
    attempts: &[Attempt<'_>],
    mut session: Option<Session>,
    mut waiting: Waiting<'_>,
) -> Result<Carved, CarveError> {
    let (mut leases, mut is_new) = (Vec::new(), false);
    for (done, attempt) in attempts.iter().enumerate() {
        match try_for_a_while(attempt, &mut session, &mut waiting) {
            Ok(Carved::NotConcerned) => {}
            Ok(Carved::Kept(kept)) => leases.extend(kept),
            Ok(Carved::Made(made)) => {
                leases.extend(made);
                is_new = true;
            }
            Err(error) => {
                for other in attempts[..done].iter().rev() {
                    give_back_gpu(other, &mut session, &mut waiting);
                }
                return Err(error);
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
        attempt.log.warning(format!(
            "taking back GPU {} failed: {failed}; the job's epilog removes its slice",
            attempt.device.gpu_index
        ));
        if let Err(failed) = release::mark_all(attempt.node, attempt.job.job_id, attempt.log) {
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
fn go_without(
    job: &JobEnv,
    node: &Node,
    store: &LeaseStore,
    word: &Word,
    held: bool,
    log: &JobLog,
) -> Result<(), CarveError> {
    let old = store.of_job(job.job_id)?;
    let is_foreign = |old: &Lease| word.asked.is_some() || !job.is_run_of(old);
    if old.iter().any(is_foreign) {
        release::release(node, job.job_id, log)?;
    }
    word.check_no_shares(job)?;
    // Only if Slurm confirms it: no task of any other job with a device starts.
    if held && word.asked.is_some() {
        without::note(&node.run, job.job_id, job.user_id)?;
    }
    Ok(())
}

/// Tries until it succeeds, an error is permanent, or [`PATIENCE`] is over. `session`: one that was opened already; it
/// stays open after a success. A failed attempt gives the GPU to others until the next attempt, and keeps its place in
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
            attempt.log.info(format!("waiting: {why}"));
            said = why;
        }
        pause.sleep(left);
    }
}

/// Requeues a job with a fraction on a node whose configuration cannot be used.
pub fn give_back(job: &JobEnv, error: NodeError, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    let node = Node::new(Config::empty(), &job.node);
    let (error, start) = (CarveError::Config(error), slurm.now());
    GivingBack {
        job,
        node: &node,
        slurm,
        log,
        error: &error,
        start,
    }
    .react()
}

/// Makes the slices, and converts the result into a request to Slurm.
pub fn prolog(job: &JobEnv, node: &Node, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    let start = slurm.now();
    let carved = carve(job, node, slurm, log);
    if carved.is_ok() {
        slurm.part();
    }
    if let Ok(Carved::Made(leases) | Carved::Kept(leases)) = &carved {
        works_again(node, leases, log);
    }
    let error = match carved {
        Ok(Carved::NotConcerned) => return Exit::Done,
        Ok(Carved::Made(leases)) => return told("carved", &leases, log),
        Ok(Carved::Kept(leases)) => return told("kept", &leases, log),
        Err(error) => error,
    };
    GivingBack {
        job,
        node,
        slurm,
        log,
        error: &error,
        start,
    }
    .react()
}

/// The node and the devices of these leases can be used.
fn works_again(node: &Node, leases: &[Lease], log: &JobLog) {
    let devices = leases.iter().map(|lease| lease.slice.device_index);
    let lost = devices.map(Lost::Device).chain([Lost::Node]);
    if let Err(error) = stuck::work(node, lost) {
        log.warning(format!("forgetting earlier failures failed: {error}"));
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
        lease.place(),
        lease.slice.gpu_uuid,
        lease.user,
        lease.slice.cuda_device().unwrap_or("no instance")
    )
}

/// A job that cannot start here now, on a node without a fault.
struct GivingBack<'a> {
    job: &'a JobEnv,
    node: &'a Node,
    slurm: &'a dyn Slurm,
    log: &'a JobLog,
    error: &'a CarveError,
    /// When the prolog began.
    start: Instant,
}

impl GivingBack<'_> {
    fn react(&self) -> Exit {
        let (log, error) = (self.log, self.error);
        match error.reaction() {
            Reaction::Drain => {
                log.error(format!("creating a slice on this node failed: {error}"));
                self.hint();
                self.explain();
                let drained = drain(self.node, self.slurm, &self.reason(), log);
                self.leave_drained_node(drained)
            }
            Reaction::Wait => {
                self.count_failure();
                self.requeue(false)
            }
            Reaction::Hold => {
                self.hint();
                self.explain();
                self.count_failure();
                self.requeue(true)
            }
            Reaction::Refuse => {
                log.warning(format!("the job is refused: {error}"));
                self.end()
            }
        }
    }

    /// The error, and what an admin can do about it.
    fn reason(&self) -> String {
        match self.error.hint() {
            Some(hint) => format!("{}; {hint}", self.error),
            None => self.error.to_string(),
        }
    }

    fn hint(&self) {
        if let Some(hint) = self.error.hint() {
            self.log.error(format!("hint: {hint}"));
        }
    }

    /// Explains the cause to the user, because Slurm's own words on a job that is held, or whose prolog failed, do not.
    fn explain(&self) {
        let why = format!(
            "the job did not start on {}: {}",
            self.job.node,
            self.reason()
        );
        self.slurm.explain(self.job.job_id, &why);
    }

    /// Requeues the job of a node that is drained now, so that it starts elsewhere: Slurm would hold a job whose prolog
    /// failed, except with `nohold_on_prolog_fail`.
    fn leave_drained_node(&self, drained: bool) -> Exit {
        if !drained {
            return Exit::Broken;
        }
        self.note(false);
        match self.slurm.requeue(self.job.job_id, false) {
            Ok(()) => {
                self.log.warning("requeued, because the node is drained");
                sleep(AFTER_REQUEUE);
                Exit::Done
            }
            Err(_) => Exit::Broken,
        }
    }

    /// Notes the job for gpufrac-reaperd, which sends it to another node; before slurmctld can start the job again.
    fn note(&self, held: bool) {
        let noted = PutBack::now(self.job.job_id, self.job.restart_count, held);
        if let Err(error) = put_back::note(self.node, &noted) {
            self.log.warning(format!(
                "the job may come back to this node, because noting it failed: {error}"
            ));
        }
    }

    /// Counts the failure for the place that is at fault.
    fn count_failure(&self) {
        let device = self.job.devices.first().copied();
        let lost = match (self.error.fault(), device) {
            (Some(Fault::Device), Some(device)) => Lost::Device(device),
            (Some(_), _) => Lost::Node,
            (None, _) => return,
        };
        let partition = self.job.partition.clone();
        let mut failure = Stuck::of_node(partition, self.error.to_string());
        failure.by_user = self.error.is_users();
        let gpus = self.node.record().map_or(0, |record| record.gpus.len());
        let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
        let devices = self.node.config.devices_of_node(&self.node.name, gpus);
        if let (Lost::Device(lost), Some(device)) = (
            &lost,
            devices.iter().find(|known| Some(known.index) == device),
        ) {
            failure.place = match device.side {
                Side::Whole => format!("GPU {}", device.gpu_index),
                half => format!("{half} of GPU {}", device.gpu_index),
            };
            failure.gpu_index = Some(device.gpu_index);
            failure.device = Some(*lost);
            failure.units = device.pool.layout.capacity.0;
        }
        failure.lost = lost;
        if let Err(error) = stuck::fail(self.node, failure) {
            self.log
                .warning(format!("counting the failure failed: {error}"));
        }
    }

    /// Requeues the job; held, if the job or a file must be changed first.
    fn requeue(&self, hold: bool) -> Exit {
        let (job_id, log, error) = (self.job.job_id, self.log, self.error);
        // If the files of so many nodes are wrong, an admin must look.
        let is_tried = hold && self.job.restart_count >= MOST_NODES;
        if !is_tried && error.leaves_node() {
            self.note(hold);
        }
        loop {
            let refused = match self.slurm.requeue(job_id, hold) {
                Ok(()) => {
                    let how = if hold { "requeued and held" } else { "requeued" };
                    log.warning(format!("{how}: {error}"));
                    sleep(AFTER_REQUEUE);
                    return Exit::Done;
                }
                Err(refused) => refused,
            };
            if refused.cannot_requeue() {
                log.warning(format!("cancelled, because it cannot be requeued: {error}"));
                return self.end();
            }
            if self.is_given_up() {
                log.warning(format!("the job was already requeued or ended: {error}"));
                return Exit::Done;
            }
            if let Some(exit) = self.is_over("requeue", &refused) {
                return exit;
            }
            sleep(LONGEST_PAUSE);
        }
    }

    /// Cancels the job, and informs its user: on its terminal or in its output, and in Slurm's record.
    fn end(&self) -> Exit {
        let (job_id, log) = (self.job.job_id, self.log);
        self.explain();
        let line = format!("gpufrac: no slice on {}: {}", self.job.node, self.error);
        if let Err(error) = self.slurm.notify(job_id, &line) {
            log.warning(format!("informing the user failed: {error}"));
        }
        loop {
            let refused = match self.slurm.cancel(job_id) {
                Ok(()) => return Exit::Done,
                Err(refused) => refused,
            };
            if self.is_given_up() {
                return Exit::Done;
            }
            if let Some(exit) = self.is_over("cancel the job", &refused) {
                return exit;
            }
            sleep(LONGEST_PAUSE);
        }
    }

    /// The exit code if Slurm did not accept the request in time. The node is not drained: the SPANK plugin starts no
    /// task of a job with a device of a pool and without a lease.
    fn is_over(&self, what: &str, refused: &SlurmError) -> Option<Exit> {
        let (log, error) = (self.log, self.error);
        // The SPANK plugin is then probably of another series, too.
        if refused.is_of_other_series() {
            log.error(format!(
                "creating the slice failed: {error}; cannot {what}: {refused}"
            ));
            return Some(Exit::Broken);
        }
        if self.slurm.now().duration_since(self.start) < SILENCE {
            return None;
        }
        log.error(format!(
            "creating the slice failed: {error}; cannot {what}: {refused}; the job's tasks do not start without a slice"
        ));
        // Otherwise the job would use a slice of an earlier run.
        if let Err(error) = release::mark_all(self.node, self.job.job_id, log) {
            log.warning(format!(
                "removing the job's slice of an earlier run failed: {error}"
            ));
        }
        Some(Exit::Done)
    }

    /// Whether Slurm says that the job no longer runs, because another of its nodes or its user ended it first.
    fn is_given_up(&self) -> bool {
        let answer = self.slurm.job(self.job.job_id);
        answer.is_ok_and(|info| info.is_none_or(|info| self.job.is_over_by(&info)))
    }
}
