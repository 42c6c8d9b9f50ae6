//! What the prolog asks of Slurm after a failure: to drain the node, or to requeue, hold or cancel the job.

use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::config::Config;
use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::layout::Side;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;

use super::error::{CarveError, Fault, Reaction};
use super::times::{AFTER_REQUEUE, LONGEST_PAUSE, SILENCE};
use crate::job::environment::JobEnv;
use crate::job::slurmctld::{Slurm, SlurmError};
use crate::node::{Node, NodeError};
use crate::slice::drain::drain;
use crate::slice::release;
use crate::state::outcomes::{Ending, Outcome};
use crate::state::put_back::{self, PutBack};
use crate::state::stuck::{self, Lost, Stuck};

/// How many nodes a job tries whose files do not agree with slurmctld's, before it stays held.
const MOST_NODES: u32 = 3;

/// Requeues a job with a fraction on a node whose configuration cannot be used.
pub fn give_back(job: &JobEnv, error: NodeError, slurm: &dyn Slurm, log: &JobLog) -> Exit {
    let node = Node::new(Config::empty(), &job.node);
    let (error, start) = (CarveError::Config(error), slurm.now());
    let failure = Failure {
        job,
        node: &node,
        slurm,
        log,
        error: &error,
        device: None,
        start,
    };
    let (exit, ending) = failure.react();
    Outcome::new(ending, start.elapsed(), Duration::ZERO).count(&node, log);
    exit
}

/// The failure of a prolog to make the slices of a job.
pub(super) struct Failure<'a> {
    pub(super) job: &'a JobEnv,
    pub(super) node: &'a Node,
    pub(super) slurm: &'a dyn Slurm,
    pub(super) log: &'a JobLog,
    pub(super) error: &'a CarveError,
    /// The device on which it failed; None before the attempts.
    pub(super) device: Option<DeviceIndex>,
    /// When the prolog began.
    pub(super) start: Instant,
}

impl Failure<'_> {
    /// Asks Slurm for what the error needs. Returns the prolog's exit code, and what became of the job.
    pub(super) fn react(&self) -> (Exit, Ending) {
        let (log, error) = (self.log, self.error);
        match error.reaction() {
            Reaction::Drain => {
                // The node cannot make slices. The node is drained. Cure: Follow the text and the hint; then `scontrol
                // update NodeName=NODE State=RESUME`.
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
                // The job can never get its slice here, by its own request. It is cancelled. Cure: The user submits the
                // job again as the text says.
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
    fn leave_drained_node(&self, drained: bool) -> (Exit, Ending) {
        if !drained {
            return (Exit::Broken, Ending::Unserved(self.error.cause()));
        }
        self.note(false);
        match self.slurm.requeue(self.job.job_id, false) {
            Ok(()) => {
                // The job of a node that cannot make slices starts on another node. Cure: Nothing for the job; the
                // node's reason has the cause.
                self.log.warning("requeued, because the node is drained");
                sleep(AFTER_REQUEUE);
                (Exit::Done, Ending::Requeued(self.error.cause()))
            }
            Err(_) => (Exit::Broken, Ending::Unserved(self.error.cause())),
        }
    }

    /// Notes the job for gpufrac-reaperd, which sends it to another node; before slurmctld can start the job again.
    fn note(&self, held: bool) {
        let noted = PutBack::now(self.job.job_id, self.job.restart_count, held);
        if let Err(error) = put_back::note(self.node, &noted) {
            // `/var/lib/gpufrac` cannot be written, so gpufrac-reaperd does not send the job to another node. Cure:
            // Follow the text: free space, or mount it writable.
            self.log.warning(format!(
                "the job may come back to this node, because noting it failed: {error}"
            ));
        }
    }

    /// Counts the failure for the place that is at fault.
    fn count_failure(&self) {
        let device = self.device.or(self.job.devices.first().copied());
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
            // The same: the place is not known as stuck. Cure: The same.
            self.log
                .warning(format!("counting the failure failed: {error}"));
        }
    }

    /// Requeues the job; held, if the job or a file must be changed first.
    fn requeue(&self, hold: bool) -> (Exit, Ending) {
        let (job_id, log, error) = (self.job.job_id, self.log, self.error);
        // If the files of so many nodes are wrong, an admin must look.
        let is_tried = hold && self.job.restart_count >= MOST_NODES;
        if !is_tried && error.leaves_node() {
            self.note(hold);
        }
        loop {
            let refused = match self.slurm.requeue(job_id, hold) {
                Ok(()) => {
                    let (how, ending) = if hold {
                        ("requeued and held", Ending::Held(self.error.cause()))
                    } else {
                        ("requeued", Ending::Requeued(self.error.cause()))
                    };
                    log.warning(format!("{how}: {error}"));
                    sleep(AFTER_REQUEUE);
                    return (Exit::Done, ending);
                }
                Err(refused) => refused,
            };
            if refused.cannot_requeue() {
                // Slurm cannot requeue this job, so it is cancelled. Cure: The user submits the job again.
                log.warning(format!("cancelled, because it cannot be requeued: {error}"));
                return self.end();
            }
            if self.is_given_up() {
                // Another node of the job, or the user, was faster. Cure: Nothing.
                log.warning(format!("the job was already requeued or ended: {error}"));
                return (Exit::Done, Ending::Unserved(self.error.cause()));
            }
            if let Some(exit) = self.is_over("requeue", &refused) {
                return (exit, Ending::Unserved(self.error.cause()));
            }
            sleep(LONGEST_PAUSE);
        }
    }

    /// Cancels the job, and informs its user: on its terminal or in its output, and in Slurm's record.
    fn end(&self) -> (Exit, Ending) {
        let (job_id, log) = (self.job.job_id, self.log);
        self.explain();
        let line = format!("gpufrac: no slice on {}: {}", self.job.node, self.error);
        if let Err(error) = self.slurm.notify(job_id, &line) {
            // slurmctld did not pass the message on. Cure: Nothing: the reason is in the node's syslog.
            log.warning(format!("informing the user failed: {error}"));
        }
        loop {
            let refused = match self.slurm.cancel(job_id) {
                Ok(()) => return (Exit::Done, Ending::Cancelled(self.error.cause())),
                Err(refused) => refused,
            };
            if self.is_given_up() {
                return (Exit::Done, Ending::Unserved(self.error.cause()));
            }
            if let Some(exit) = self.is_over("cancel the job", &refused) {
                return (exit, Ending::Unserved(self.error.cause()));
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
            // No slice was made, and slurmctld did not answer. Cure: Check `scontrol ping` and the node's syslog.
            log.error(format!(
                "creating the slice failed: {error}; cannot {what}: {refused}"
            ));
            return Some(Exit::Broken);
        }
        if self.slurm.now().duration_since(self.start) < SILENCE {
            return None;
        }
        // No slice was made, and slurmctld did not answer. The SPANK plugin ends the job's tasks. Cure: Check `scontrol
        // ping`. The user submits the job again.
        log.error(format!(
            "creating the slice failed: {error}; cannot {what}: {refused}; the job's tasks do not start without a slice"
        ));
        // Otherwise the job would use a slice of an earlier run.
        if let Err(error) = release::mark_all(self.node, self.job.job_id, log) {
            // A slice of the job's earlier run could not be marked. Cure: Follow the text; the epilog tries again.
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
