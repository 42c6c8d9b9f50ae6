//! Changes what Slurm starts on this node: jobs that leave it and come back, its drain, units that nobody gets.

use crate::job::reserve;
use crate::state::put_back::PutBack;
use gpufrac_core::ids::JobId;
use serde::{Deserialize, Serialize};
use slurm_sys::client::{
    Client, ClientError, Drained, Drainer, JobInfo, JobState, Reserve, with_node, without_node,
};
use slurm_sys::release::{Release, Series};

use crate::node::now_unix;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Sends jobs that the node gave back to other nodes, each if another node could start it.
    Leave(Vec<PutBack>),
    /// Lets jobs that were sent away come back.
    Return(Vec<JobId>),
    /// Drains the node for this reason.
    Drain(String),
    /// Takes the drain for this reason back.
    Undrain(String),
    /// Changes nothing: asks whether the node is to have no more jobs, because an admin drains or reboots it.
    AskIfEmptied,
    /// Submits a job of root that takes units of a device out of Slurm's count, unless Slurm could preempt a job for it
    /// or it for a job.
    Reserve {
        /// A partition of the node.
        partition: String,
        /// As `--gres` takes it.
        gres: String,
        /// Why, for `scontrol show job`.
        comment: String,
    },
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// Of each job, in the order of the request.
    Jobs(Vec<Way>),
    /// Whether the node is drained, or was, for the reason; or is emptied.
    Node(bool),
    /// The submitted job.
    Reserved(JobId),
    /// No job was submitted, because Slurm preempts jobs here.
    Preempts,
}

/// The way of a job that the node gave back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Its last run has not ended on all nodes, or Slurm has not carried the requeue out.
    NotYet,
    /// It ended, was changed, or started again.
    Over,
    /// It runs, so its nodes cannot be changed.
    Runs,
    /// It waits, without this node.
    Elsewhere,
    /// It waits; no other node could start it.
    Nowhere,
    /// It waits; slurmctld refused to change it.
    Refused(String),
    /// It waits, for any node.
    Back,
}

/// In the process that asks Slurm.
pub(super) fn carry_out(
    client: &Client,
    node: &str,
    change: Change,
) -> Result<Changed, ClientError> {
    let each = |jobs: Vec<Result<Way, ClientError>>| {
        jobs.into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map(Changed::Jobs)
    };
    match change {
        Change::Leave(jobs) => each(jobs.iter().map(|job| leave(client, node, job)).collect()),
        Change::Return(jobs) => each(
            jobs.iter()
                .map(|job| come_back(client, node, *job))
                .collect(),
        ),
        Change::Drain(reason) => {
            let drained = client.drain(node, &reason, Drainer::Reaper)?;
            Ok(Changed::Node(drained == Drained::Done))
        }
        Change::Undrain(reason) => client.undrain(node, &reason).map(Changed::Node),
        Change::AskIfEmptied => client.is_emptied(node).map(Changed::Node),
        Change::Reserve { .. } if client.preempts() != Some(false) => Ok(Changed::Preempts),
        Change::Reserve {
            partition,
            gres,
            comment,
        } => {
            let request = Reserve {
                name: reserve::NAME,
                node,
                partition: &partition,
                gres: &gres,
                comment: &comment,
                script: reserve::SCRIPT,
            };
            client.reserve(&request).map(JobId).map(Changed::Reserved)
        }
    }
}

fn leave(client: &Client, node: &str, noted: &PutBack) -> Result<Way, ClientError> {
    let Some(job) = client.job(noted.job_id.0)? else {
        return Ok(Way::Over);
    };
    match job.state {
        JobState::Pending if job.restart_count > noted.restart_count => {
            send_away(client, node, &job, noted.held)
        }
        JobState::Finished => Ok(Way::Over),
        JobState::Running | JobState::Suspended if job.restart_count > noted.restart_count => {
            // An earlier answer was lost: it waits without this node when it waits again.
            Ok(if is_excluded(&job, node) { Way::Elsewhere } else { Way::Over })
        }
        _ => Ok(Way::NotYet),
    }
}

/// Excludes this node for a job that waits, if another node could start it. What an earlier question left, whose
/// process was killed or whose answer was lost, changes nothing: no user excludes the node on which the job ran.
/// Errors: it is not known whether the node is excluded; the question can be repeated.
fn send_away(
    client: &Client,
    node: &str,
    job: &JobInfo,
    release: bool,
) -> Result<Way, ClientError> {
    let users = without_node(&job.excluded_nodes, node);
    if let Err(refused) = client.set_excluded_nodes(job, &with_node(&users, node))
        && !is_excluded(&client.known_job(job.job_id)?, node)
    {
        return Ok(Way::Refused(refused.to_string()));
    }
    // Slurm would hold a job that no node can start.
    let could_start = client.could_start(job);
    if !matches!(could_start, Ok(true)) {
        if client.set_excluded_nodes(job, &users).is_err() {
            // It comes back with the jobs that are away.
            return Ok(Way::Elsewhere);
        }
        return Ok(
            could_start.map_or_else(|error| Way::Refused(error.to_string()), |_| Way::Nowhere)
        );
    }
    if starts_soon(job) {
        let now = i64::try_from(now_unix()).unwrap_or(0);
        // Otherwise it starts after Slurm's two minutes.
        let _ = client.start_soon(job, now, release);
    }
    Ok(Way::Elsewhere)
}

fn is_excluded(job: &JobInfo, node: &str) -> bool {
    without_node(&job.excluded_nodes, node) != job.excluded_nodes
}

/// Slurm lets a requeued job wait for two minutes because its nodes still know its last run; the node that is excluded
/// now does not matter. slurmd before 23.11 may start a job without its prolog where it knows the last run.
fn starts_soon(job: &JobInfo) -> bool {
    let is_alone = job.node_count <= 1 || Release::BUILT_FOR.series() >= Series(23, 11);
    job.het_job_id == 0 && is_alone
}

fn come_back(client: &Client, node: &str, job_id: JobId) -> Result<Way, ClientError> {
    let Some(job) = client.job(job_id.0)? else {
        return Ok(Way::Over);
    };
    match job.state {
        JobState::Pending => {
            client.set_excluded_nodes(&job, &without_node(&job.excluded_nodes, node))?;
            Ok(Way::Back)
        }
        JobState::Finished => Ok(Way::Over),
        JobState::Running | JobState::Suspended | JobState::Completing => Ok(Way::Runs),
    }
}
