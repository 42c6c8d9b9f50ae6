//! Slurm, asked and told by a process of its own: libslurm ends the process that it is in where
//! slurm.conf is wrong, waits for minutes where slurmctld is silent, and takes memory.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_host::subprocess::{self, Outcome};
use serde::{Deserialize, Serialize};
use slurm_sys::client::{Client, ClientError, JobInfo};

/// The argument that makes the daemon's program that process.
pub const CALL_ARGUMENT: &str = "slurm-call";
/// How long it may take.
const LONGEST_CALL: Duration = Duration::from_secs(15);

/// Why Slurm gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The process could not be run.
    #[error("cannot ask Slurm: {0}")]
    Run(#[from] std::io::Error),
    /// It did not end in time.
    #[error("slurmctld did not answer within {} s", LONGEST_CALL.as_secs())]
    TooSlow,
    /// It ended without a reply, and said this.
    #[error("libslurm ended: {0}")]
    Ended(String),
    /// slurmctld refused, or was not reached.
    #[error("{0}")]
    Refused(String),
}

/// Why an action was not carried out, in the words of Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct ActionError(pub String);

/// Something to be done to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlurmAction {
    /// A line on its terminal or in its output.
    Notify(String),
    /// Its admin comment.
    Comment(String),
    /// A signal to its batch script, or to the steps of a job that has none.
    Signal(u8),
    /// Back to the queue, held or not.
    Requeue {
        /// Held.
        hold: bool,
    },
    /// Its end.
    Cancel,
}

#[derive(Serialize, Deserialize)]
struct Call {
    job_id: JobId,
    /// Which run of it is meant; actions are for no other.
    restart_count: Option<u32>,
    actions: Vec<SlurmAction>,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    job: Option<JobInfo>,
    /// Of the actions, in their order.
    results: Vec<Result<(), ActionError>>,
}

/// Slurm, as the daemon knows it.
pub trait JobControl {
    /// A job; None if Slurm knows none of this id.
    fn job(&self, job_id: JobId) -> Result<Option<JobInfo>, SlurmError>;
    /// Does something to a run of a job; the outcome of each.
    fn act(
        &self,
        job_id: JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError>;
}

/// The real one.
pub struct SlurmProcess;

impl SlurmProcess {
    fn call(call: &Call) -> Result<Reply, SlurmError> {
        // Also where the program was replaced meanwhile.
        let mut child = Command::new(Path::new("/proc/self/exe"));
        child.arg(CALL_ARGUMENT);
        let text = serde_json::to_string(call).map_err(std::io::Error::from)?;
        match subprocess::run(&mut child, text.as_bytes(), LONGEST_CALL)? {
            Outcome::Silent => Err(SlurmError::TooSlow),
            Outcome::Ended(ended) if !ended.status.success() => {
                Err(SlurmError::Ended(ended.text()))
            }
            Outcome::Ended(ended) => {
                let text = ended.text();
                // libslurm may have something to say, too.
                let mut lines = text.lines();
                let reply: Option<Result<Reply, String>> =
                    lines.find_map(|line| serde_json::from_str(line).ok());
                let reply = reply.ok_or_else(|| SlurmError::Ended(text.clone()))?;
                reply.map_err(SlurmError::Refused)
            }
        }
    }
}

impl JobControl for SlurmProcess {
    fn job(&self, job_id: JobId) -> Result<Option<JobInfo>, SlurmError> {
        let call = Call {
            job_id,
            restart_count: None,
            actions: Vec::new(),
        };
        Ok(SlurmProcess::call(&call)?.job)
    }

    fn act(
        &self,
        job_id: JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
        let call = Call {
            job_id,
            restart_count: Some(restart_count),
            actions,
        };
        Ok(SlurmProcess::call(&call)?.results)
    }
}

/// The process: a call on stdin, its reply as a line of stdout.
///
/// # Errors
/// When the call cannot be read or the reply not be written.
pub fn serve() -> std::io::Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let call: Call = serde_json::from_str(&text)?;
    let reply = reply(call).map_err(|error| error.to_string());
    let text = serde_json::to_string(&reply)?;
    std::io::stdout().write_all(format!("{text}\n").as_bytes())
}

fn reply(call: Call) -> Result<Reply, ClientError> {
    let client = Client::connect()?;
    let none = |job: Option<JobInfo>, why: &str| Reply {
        job,
        results: vec![Err(ActionError(why.to_owned())); call.actions.len()],
    };
    let Some(info) = client.job(call.job_id.0)? else {
        return Ok(none(None, "there is no such job"));
    };
    let mut runs = call.restart_count.into_iter();
    if runs.any(|run| run != info.restart_count) {
        return Ok(none(Some(info), "it was requeued meanwhile"));
    }
    let results = call.actions.into_iter().map(|action| {
        let done = perform(&client, &info, action);
        done.map_err(|error| ActionError(error.to_string()))
    });
    Ok(Reply {
        results: results.collect(),
        job: Some(info),
    })
}

fn perform(client: &Client, job: &JobInfo, action: SlurmAction) -> Result<(), ClientError> {
    match action {
        SlurmAction::Notify(line) => client.notify(job, &line),
        SlurmAction::Comment(text) => client.set_admin_comment(job, &text),
        SlurmAction::Signal(signal) => client.signal(job, signal, job.batch),
        SlurmAction::Requeue { hold } => client.requeue(job, hold),
        SlurmAction::Cancel => client.cancel(job),
    }
}
