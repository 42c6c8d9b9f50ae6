//! Calls Slurm in a separate process: libslurm ends its process if slurm.conf is wrong, waits for minutes if
//! slurmctld does not answer, and uses much memory.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_host::exit::Exit;
use gpufrac_host::subprocess::{self, Outcome};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use slurm_sys::client::{
    Client, ClientError, Drained, Drainer, HookLimits, JobInfo, PrivateValues, SpankFiles,
};

use crate::job::admin_comment::explained_in;
use node_control::{Change, Changed};

pub mod node_control;
pub mod private_data;
pub(crate) mod session;

/// The argument with which a program becomes this process.
const CALL_ARGUMENT: &str = "slurm-call";
/// The time limit of a call.
const LONGEST_CALL: Duration = Duration::from_secs(15);

/// The reasons why Slurm gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// slurmctld did not answer.
    /// Cure: Check `scontrol ping`; nothing is ended until then.
    #[error("asking Slurm failed: {0}")]
    Run(#[from] std::io::Error),
    /// slurmctld is down or overloaded.
    /// Cure: Check `scontrol ping`; nothing is ended until then.
    #[error("slurmctld did not answer within {} s", LONGEST_CALL.as_secs())]
    TooSlow,
    // The process ended without a reply; with its output.
    /// libslurm ended its process: it cannot use slurm.conf, for example; the text is libslurm's.
    /// Cure: Correct slurm.conf on the node; otherwise look for the kernel's messages.
    #[error("libslurm ended: {0}")]
    Ended(String),
    /// This libslurm has no symbol `slurm_conf`.
    /// Cure: Report the release of Slurm.
    #[error("libslurm does not show its configuration")]
    Hidden,
    /// slurmctld refused, or could not be reached.
    #[error("{0}")]
    Refused(String),
}

impl SlurmError {
    fn other_answer() -> SlurmError {
        SlurmError::Ended("with another answer".to_owned())
    }
}

/// The reason why Slurm did not carry out an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct ActionError(pub String);

/// An action on a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlurmAction {
    /// Writes a line to the job's terminal or output.
    Notify(String),
    /// Sets the admin comment.
    Comment(String),
    /// Sends a signal to the batch script; without a script, to the steps.
    Signal(u8),
    Requeue {
        /// Whether the job is held.
        hold: bool,
    },
    Cancel,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Call {
    /// Reads Slurm's records of jobs.
    Look(Vec<JobId>),
    /// Carries out actions on a run of a job; no other run is changed.
    Act {
        job_id: JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    },
    /// Reads `PrivateData` in this host's slurm.conf; slurmctld is not asked.
    PrivateData,
    /// Changes what Slurm starts on this node.
    Node { node: String, change: Change },
    /// Carries an action out on the job of a hook, whose run is the present one.
    Request { job_id: JobId, action: SlurmAction },
    /// Writes why the job does not start into its admin comment, or removes it.
    Explain { job_id: JobId, why: String },
    /// Drains a node for a hook.
    Drain { node: String, reason: String },
    /// Reads the time limits of hooks in this host's slurm.conf.
    Limits,
    /// Reads the paths of SPANK plugins in this host's slurm.conf.
    Spank,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The records, in the order of the question.
    Seen(Vec<Option<JobInfo>>),
    /// The results of the actions, in their order.
    Done(Vec<Result<(), ActionError>>),
    /// The values; None if libslurm does not show them.
    Private(Option<PrivateValues>),
    /// The result of a change of the node.
    Changed(Changed),
    /// A request of a hook was carried out.
    Carried,
    Drained(Drained),
    Limits(Option<HookLimits>),
    Spank(Option<SpankFiles>),
}

/// The reason why the separate process has no reply.
#[derive(Serialize, Deserialize, thiserror::Error, Debug)]
pub(crate) enum Failed {
    #[error("{0}")]
    NotLoaded(ClientError),
    #[error("{0}")]
    Client(#[from] ClientError),
}

/// The daemon's access to Slurm.
pub trait JobControl {
    /// The job with this id; None if Slurm knows none.
    fn job(&self, job_id: JobId) -> Result<Option<JobInfo>, SlurmError> {
        let jobs = self.jobs(&[job_id])?;
        Ok(jobs.into_iter().next().flatten())
    }

    /// The jobs with these ids, in their order.
    fn jobs(&self, jobs: &[JobId]) -> Result<Vec<Option<JobInfo>>, SlurmError>;

    /// Carries out actions on a run of a job; returns the result of each.
    fn act(
        &self,
        job_id: JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError>;
}

/// Slurm, called in a separate process.
pub struct SlurmProcess;

impl SlurmProcess {
    fn call(call: &Call) -> Result<Reply, SlurmError> {
        // This path works even if the program's file was replaced meanwhile.
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
                // libslurm may also print lines.
                let mut lines = text.lines();
                let reply: Option<Result<Reply, Failed>> =
                    lines.find_map(|line| serde_json::from_str(line).ok());
                let reply = reply.ok_or_else(|| SlurmError::Ended(text.clone()))?;
                reply.map_err(|failed| SlurmError::Refused(failed.to_string()))
            }
        }
    }
}

/// The values of `PrivateData` in this host's slurm.conf. Errors: libslurm is not there, or cannot read the file.
fn slurm_private_data() -> Result<PrivateValues, SlurmError> {
    match SlurmProcess::call(&Call::PrivateData)? {
        Reply::Private(Some(values)) => Ok(values),
        Reply::Private(None) => Err(SlurmError::Hidden),
        _ => Err(SlurmError::other_answer()),
    }
}

/// The daemon's access to Slurm's state of the node.
pub trait NodeControl {
    /// Carries a change out. Errors: slurmctld refused, or did not answer.
    fn change(&self, node: &str, change: Change) -> Result<Changed, SlurmError>;
}

impl NodeControl for SlurmProcess {
    fn change(&self, node: &str, change: Change) -> Result<Changed, SlurmError> {
        let node = node.to_owned();
        match SlurmProcess::call(&Call::Node { node, change })? {
            Reply::Changed(changed) => Ok(changed),
            _ => Err(SlurmError::other_answer()),
        }
    }
}

impl JobControl for SlurmProcess {
    fn jobs(&self, jobs: &[JobId]) -> Result<Vec<Option<JobInfo>>, SlurmError> {
        match SlurmProcess::call(&Call::Look(jobs.to_vec()))? {
            Reply::Seen(seen) => Ok(seen),
            _ => Err(SlurmError::other_answer()),
        }
    }

    fn act(
        &self,
        job_id: JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
        let call = Call::Act {
            job_id,
            restart_count,
            actions,
        };
        match SlurmProcess::call(&call)? {
            Reply::Done(results) => Ok(results),
            _ => Err(SlurmError::other_answer()),
        }
    }
}

/// The end of a program that was started as the separate process; None for other arguments.
pub fn served() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1);
    first
        .is_some_and(|word| word == CALL_ARGUMENT)
        .then(|| match serve() {
            Ok(()) => Exit::Done.into(),
            Err(error) => {
                eprintln!("{error}");
                Exit::Broken.into()
            }
        })
}

/// The separate process: reads calls on stdin, a line each, and writes a line to stdout as the reply to each.
/// Errors: a call cannot be read, or a reply cannot be written.
fn serve() -> std::io::Result<()> {
    // A hook that ends, or that slurmd kills, leaves no process behind that waits for slurmctld.
    set_pdeathsig(Signal::SIGKILL)?;
    let mut client = None;
    for line in std::io::stdin().lines() {
        let call: Call = serde_json::from_str(&line?)?;
        let reply = match client.get_or_insert_with(Client::connect) {
            Ok(client) => reply(client, call).map_err(Failed::from),
            Err(error) => Err(Failed::NotLoaded(error.clone())),
        };
        let text = serde_json::to_string(&reply)?;
        std::io::stdout().write_all(format!("{text}\n").as_bytes())?;
    }
    Ok(())
}

fn reply(client: &Client, call: Call) -> Result<Reply, ClientError> {
    let (job_id, restart_count, actions) = match call {
        Call::Look(jobs) => {
            let seen = jobs.iter().map(|job| client.job(job.0));
            return Ok(Reply::Seen(seen.collect::<Result<_, _>>()?));
        }
        Call::PrivateData => return Ok(Reply::Private(client.private_data())),
        Call::Node { node, change } => {
            return node_control::carry_out(client, &node, change).map(Reply::Changed);
        }
        Call::Request { job_id, action } => {
            // The id alone does not identify a task of an array.
            let job = client.known_job(job_id.0)?;
            return perform(client, &job, action).map(|()| Reply::Carried);
        }
        Call::Explain { job_id, why } => {
            let job = client.known_job(job_id.0)?;
            let comment = explained_in(&job.admin_comment, &why);
            if comment != job.admin_comment {
                client.set_admin_comment(&job, &comment)?;
            }
            return Ok(Reply::Carried);
        }
        Call::Drain { node, reason } => {
            let drained = client.drain(&node, &reason, Drainer::Hook)?;
            return Ok(Reply::Drained(drained));
        }
        Call::Limits => return Ok(Reply::Limits(client.hook_limits())),
        Call::Spank => return Ok(Reply::Spank(client.spank_files())),
        Call::Act {
            job_id,
            restart_count,
            actions,
        } => (job_id, restart_count, actions),
    };
    let none = |why: &str| Reply::Done(vec![Err(ActionError(why.to_owned())); actions.len()]);
    let Some(info) = client.job(job_id.0)? else {
        return Ok(none("there is no such job"));
    };
    if restart_count != info.restart_count {
        return Ok(none("it was requeued meanwhile"));
    }
    let results = actions.into_iter().map(|action| {
        let done = perform(client, &info, action);
        done.map_err(|error| ActionError(error.to_string()))
    });
    Ok(Reply::Done(results.collect()))
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
