//! Cleans up after jobs that ended irregularly: leases whose release does not finish, leases of jobs that have ended,
//! instances without a lease. Everything that is not known for certain stays.

use std::collections::BTreeMap;

use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_view::{Place, Seen};
use slurm_sys::client::JobInfo;

use crate::act::slices::{SliceError, Unleased};
use crate::measure::sample::Sampler;
use crate::outside::Outside;
use crate::report::errors::topic;
use crate::round::Round;
use gpufrac_node::job::slurmctld::is_over_on_node;
use gpufrac_node::slurm_call::SlurmError;

/// Rounds between two questions to Slurm about a job without processes on this node.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 30;

/// The reasons why the lease of a job that seems to have ended was kept.
#[derive(Debug, thiserror::Error)]
pub enum OverdueError {
    /// Slurm did not say whether the job has ended.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The slice could not be removed.
    #[error(transparent)]
    Slice(#[from] SliceError),
}

#[derive(Default)]
pub(crate) struct Cleanup {
    /// Instances without a lease.
    pub(crate) unleased: Vec<Unleased>,
    /// For each GPU its MIG mode, or why it cannot be used.
    modes: BTreeMap<GpuIndex, Result<bool, String>>,
    /// Descriptions of processes that compute although their job has no lease.
    pub(crate) strangers: Vec<String>,
    /// The number of leases that are being released, or whose job has ended.
    pub(crate) overdue: u32,
    /// For each job without processes the first round in which Slurm is asked whether it has ended.
    next_question: BTreeMap<JobId, u64>,
}

impl Cleanup {
    /// What the driver says of a GPU.
    pub(crate) fn seen(&self, gpu: GpuIndex) -> Seen {
        let mode = self.modes.get(&gpu);
        let unleased = self.unleased.iter().filter(|it| it.gpu_index == gpu);
        Seen {
            mig: mode.and_then(|mode| mode.as_ref().ok().copied()),
            fault: mode.and_then(|mode| mode.as_ref().err().cloned()),
            lost: Vec::new(),
            unleased: unleased
                .map(|it| Place {
                    start: it.place.start,
                    size: it.place.size,
                })
                .collect(),
        }
    }

    /// Ends overdue leases of the node, and looks for instances without a lease.
    pub(crate) fn run(&mut self, round: &mut Round, leases: &[Lease]) {
        let began = round.now();
        let Outside { slices, log, .. } = &round.outside;
        let repaired = slices.repair(&round.node, leases, log);
        round.report(topic::OVERDUE, repaired);
        let releasing = |lease: &&Lease| lease.state == LeaseState::Releasing;
        self.overdue = leases.iter().filter(releasing).count() as u32;
        let seem_over = seem_over(round.outside.sampler.as_ref(), leases);
        self.next_question
            .retain(|job, _| seem_over.contains_key(job));
        // None: a question was due, but Slurm was not asked.
        let mut answer = seem_over.is_empty().then_some(Ok(()));
        for (job, leases) in seem_over {
            let next = self.next_question.get(&job);
            if next.is_some_and(|at| *at > round.number) {
                continue;
            }
            let next = round.number + ROUNDS_BETWEEN_QUESTIONS;
            self.next_question.insert(job, next);
            match end_if_over(round, &leases) {
                Ok(over) => {
                    self.overdue += over;
                    answer = Some(Ok(()));
                }
                Err(error) => {
                    answer = Some(Err(error));
                    break;
                }
            }
            if round.is_late(began) {
                break;
            }
        }
        if let Some(answer) = answer {
            round.report(topic::OVER_JOBS, answer);
        }
        self.find_unleased(round);
        self.find_strangers(round);
        let modes = round.outside.slices.modes(&round.node).into_iter();
        let modes = modes.map(|(gpu, mode)| (gpu, mode.map_err(|error| error.to_string())));
        self.modes = modes.collect();
    }

    /// Reports such processes to the admin; it takes no action, because the cause is not known.
    fn find_strangers(&mut self, round: &mut Round) {
        let found = round.outside.slices.strangers(&round.node);
        round.report(topic::STRANGERS, found.as_ref());
        let Ok(found) = found else { return };
        for process in found.iter().filter(|p| !self.strangers.contains(p)) {
            // A process has a device of a slice that is not its job's. Cure: End the process; ask its user.
            round.outside.log.error(format!(
                "{process} computes without a lease of its job; a process of another job may have passed it an open device"
            ));
        }
        self.strangers = found;
    }

    fn find_unleased(&mut self, round: &mut Round) {
        // None: another program works on a GPU, so this run skips the check.
        let Some(found) = round.outside.slices.unleased(&round.node).transpose() else {
            return;
        };
        round.report(topic::UNLEASED, found.as_ref());
        let Ok(found) = found else { return };
        for instance in found.iter().filter(|i| !self.unleased.contains(i)) {
            // An MIG instance was made by hand. Cure: `gpufrac clean` if it is not needed.
            round.outside.log.warning(format!(
                "{instance}: no lease names it; gpufrac did not create it and leaves it"
            ));
        }
        self.unleased = found;
    }
}

/// The active leases of jobs without processes on this node, by job, including jobs with several slices.
fn seem_over<'a>(sampler: &dyn Sampler, leases: &'a [Lease]) -> BTreeMap<JobId, Vec<&'a Lease>> {
    let mut found: BTreeMap<JobId, Vec<&Lease>> = BTreeMap::new();
    let active = leases.iter();
    let active = active.filter(|lease| lease.state == LeaseState::Active);
    for lease in active.filter(|lease| !sampler.has_processes(lease)) {
        found.entry(lease.job_id).or_default().push(lease);
    }
    found
}

/// Ends the active leases of one job if Slurm says that the job has ended or runs again. Returns the number of these
/// leases.
fn end_if_over(round: &Round, leases: &[&Lease]) -> Result<u32, OverdueError> {
    let Round { outside, node, .. } = round;
    let Some(first) = leases.first() else {
        return Ok(0);
    };
    // Asked without the lock, because an answer can take long.
    let job = outside.slurm.job(first.job_id)?;
    let is_over = |lease: &Lease| {
        let over = |job: &JobInfo| is_over_on_node(job, lease);
        job.as_ref().is_none_or(over)
    };
    let (mut over, mut outcome) = (0, Ok(()));
    for lease in leases.iter().filter(|lease| is_over(lease)) {
        match outside.slices.end(node, lease, &outside.log) {
            Ok(was) => over += u32::from(was),
            // The other leases can still be ended.
            Err(error) => outcome = outcome.and(Err(error.into())),
        }
    }
    outcome.map(|()| over)
}
