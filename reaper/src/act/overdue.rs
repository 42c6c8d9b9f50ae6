//! What other runs left: leases that are being released and do not come to an end, leases of jobs
//! that are over, instances that no lease names. Whatever is not known for certain stays.

use std::collections::BTreeMap;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::node::Node;
use slurm_sys::client::{JobInfo, JobState};

use crate::act::slices::SliceError;
use crate::act::slurm::SlurmError;
use crate::measure::sample::Sampler;
use crate::outside::Outside;
use crate::report::errors::{ErrorReports, Topic};
use crate::rhythm;

/// Rounds between two questions to Slurm about a job that has no processes here.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 30;

/// Why a lease of a job that seems to be over could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum OverdueError {
    /// Slurm did not say whether the job is over.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The slice could not be ended.
    #[error(transparent)]
    Slice(#[from] SliceError),
}

/// What other runs left, as far as it is known.
#[derive(Default)]
pub(crate) struct Cleanup {
    /// Instances that no lease names, in words.
    unleased: Vec<String>,
    /// Processes that compute where their jobs have no lease, in words.
    strangers: Vec<String>,
    /// Leases that are being released, and those of jobs that are over.
    overdue: u32,
    /// The round in which Slurm is asked at the earliest whether a job without processes is over, by job id.
    next_question: BTreeMap<JobId, u64>,
}

impl Cleanup {
    /// How many instances no lease names.
    pub(crate) fn unleased(&self) -> u32 {
        self.unleased.len() as u32
    }

    /// How many processes compute where their jobs have no lease.
    pub(crate) fn strangers(&self) -> u32 {
        self.strangers.len() as u32
    }

    /// How many leases are of jobs that are over, in any state.
    pub(crate) fn overdue(&self) -> u32 {
        self.overdue
    }

    /// Ends what other runs left among all leases of the node, and looks for instances that no lease names.
    pub(crate) fn run(
        &mut self,
        outside: &Outside,
        node: &Node,
        leases: &[Lease],
        round: u64,
        reports: &mut ErrorReports,
    ) {
        let began = outside.clock.now();
        let repaired = outside.slices.repair(node, leases, &outside.log);
        reports.report_once(&outside.log, Topic::Overdue, repaired.err());
        let releasing = |lease: &&Lease| lease.state == LeaseState::Releasing;
        self.overdue = leases.iter().filter(releasing).count() as u32;
        let seem_over = seem_over(outside.sampler.as_ref(), leases);
        self.next_question
            .retain(|job, _| seem_over.contains_key(job));
        // None: Slurm was not asked, though there was something to ask.
        let mut answer = seem_over.is_empty().then_some(Ok(()));
        for (job, leases) in seem_over {
            if self.next_question.get(&job).is_some_and(|at| *at > round) {
                continue;
            }
            self.next_question
                .insert(job, round + ROUNDS_BETWEEN_QUESTIONS);
            match end_if_over(outside, node, &leases) {
                Ok(over) => {
                    self.overdue += over;
                    answer = Some(Ok(()));
                }
                Err(error) => {
                    answer = Some(Err(error));
                    break;
                }
            }
            if rhythm::is_late(outside.clock.as_ref(), began, node.config.reaper.interval) {
                break;
            }
        }
        if let Some(answer) = answer {
            reports.report_once(&outside.log, Topic::OverJobs, answer.err());
        }
        self.find_unleased(outside, node, reports);
        self.find_strangers(outside, node, reports);
    }

    /// An alarm and no more: whose fault it is, an admin has to find out.
    fn find_strangers(&mut self, outside: &Outside, node: &Node, reports: &mut ErrorReports) {
        let found = match outside.slices.strangers(node) {
            Ok(found) => found,
            Err(error) => return reports.report_once(&outside.log, Topic::Strangers, Some(error)),
        };
        for process in found.iter().filter(|p| !self.strangers.contains(p)) {
            outside.log.error(format!(
                "{process} computes without a lease of its job; a process of another job may have passed it an open device"
            ));
        }
        self.strangers = found;
        reports.report_once(&outside.log, Topic::Strangers, None::<SliceError>);
    }

    fn find_unleased(&mut self, outside: &Outside, node: &Node, reports: &mut ErrorReports) {
        let found = match outside.slices.unleased(node) {
            Ok(Some(found)) => found,
            // Another program works on a GPU: this run skips it.
            Ok(None) => return,
            Err(error) => return reports.report_once(&outside.log, Topic::Unleased, Some(error)),
        };
        for instance in found.iter().filter(|i| !self.unleased.contains(i)) {
            outside.log.warning(format!(
                "{instance}: no lease names it; it is not gpufrac's, and stays"
            ));
        }
        self.unleased = found;
        reports.report_once(&outside.log, Topic::Unleased, None::<SliceError>);
    }
}

/// The active leases of jobs without processes here, by job: those with several slices too, which are not watched.
fn seem_over<'a>(sampler: &dyn Sampler, leases: &'a [Lease]) -> BTreeMap<JobId, Vec<&'a Lease>> {
    let mut found: BTreeMap<JobId, Vec<&Lease>> = BTreeMap::new();
    let active = leases.iter();
    let active = active.filter(|lease| lease.state == LeaseState::Active);
    for lease in active.filter(|lease| !sampler.has_processes(lease)) {
        found.entry(lease.job_id).or_default().push(lease);
    }
    found
}

/// Ends those of the active leases of one job that Slurm says is over, or is another run of. Says how many there were.
fn end_if_over(outside: &Outside, node: &Node, leases: &[&Lease]) -> Result<u32, OverdueError> {
    let Some(first) = leases.first() else {
        return Ok(0);
    };
    // Asked without the lock: an answer can take long.
    let job = outside.slurm.job(first.job_id)?;
    let is_over = |lease: &Lease| {
        let over = |job: &JobInfo| {
            job.state == JobState::Finished || job.restart_count > lease.restart_count
        };
        job.as_ref().is_none_or(over)
    };
    let (mut over, mut outcome) = (0, Ok(()));
    for lease in leases.iter().filter(|lease| is_over(lease)) {
        match outside.slices.end(node, lease, &outside.log) {
            Ok(was) => over += u32::from(was),
            // The others can go all the same.
            Err(error) => outcome = outcome.and(Err(error.into())),
        }
    }
    outcome.map(|()| over)
}
