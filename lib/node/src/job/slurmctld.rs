//! A prolog's questions to slurmctld, with a deadline. libslurm's own timeouts are long, so libslurm runs on a
//! separate thread, and late answers are ignored.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use slurm_sys::client::{
    Client, ClientError, Drained, Drainer, HookLimits, JobInfo, JobState, SpankFiles,
};
use slurm_sys::release::{self, Release, Series};

/// The time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a program that has finished waits until its explanation has reached slurmctld.
const FAREWELL: Duration = Duration::from_secs(1);
/// The first words of a prolog's part of a job's `AdminComment`. The reaper recognises gpufrac's parts by the first
/// word.
const OURS: &str = "gpufrac: prolog: ";
/// The words about a full slice, until the next run.
const FULL: &str = "gpufrac: a task failed with a full slice: ";
/// The separator between the parts.
const PARTS: &str = " | ";

/// The reasons why Slurm gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// slurmctld is down or overloaded. The program tries again.
    /// Cure: Check `scontrol ping`.
    #[error("slurmctld did not answer within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// libslurm could not be loaded.
    #[error("{0}")]
    NotLoaded(Arc<ClientError>),
    /// The node's slurmd is of another series.
    /// Cure: Install the gpufrac of this series.
    #[error("{error}; built for Slurm {built_for}, but slurmd is {found}")]
    OtherSeries {
        error: Box<SlurmError>,
        /// The series of this build.
        built_for: Series,
        found: Release,
    },
    /// The process that calls libslurm ended, for example for lack of memory.
    /// Cure: Look for the kernel's messages; the program tries again.
    #[error("libslurm ended unexpectedly")]
    Gone,
}

impl SlurmError {
    /// Whether the error means that the node has another series of Slurm than this build, and not only that Slurm
    /// does not answer.
    pub fn is_of_other_series(&self) -> bool {
        match self {
            SlurmError::NotLoaded(_) | SlurmError::OtherSeries { .. } => true,
            SlurmError::Client(_) | SlurmError::TooSlow(_) | SlurmError::Gone => false,
        }
    }

    /// Whether the error means that the job cannot be requeued.
    pub fn cannot_requeue(&self) -> bool {
        matches!(self, SlurmError::Client(error) if error.cannot_requeue())
    }
}

/// Whether the run of a lease's job is over on its node by Slurm's record: it has ended, or it goes on without the
/// node, as a job with `--no-kill` does when a node fails (`excise_node_from_job` in `src/slurmctld/node_scheduler.c`).
pub fn is_over_on_node(job: &JobInfo, lease: &Lease) -> bool {
    let runs = matches!(job.state, JobState::Running | JobState::Suspended);
    let has_left = || {
        let nodes = Hostlist::parse(&job.nodes);
        let nodes = nodes.as_ref().map_or(&[][..], |list| list.names());
        !nodes.is_empty() && !nodes.contains(&lease.node)
    };
    job.has_ended_run(lease.restart_count) || runs && has_left()
}

/// The questions and requests to Slurm while a slice is made.
pub trait Slurm {
    /// Sends the question of a later call of [`Slurm::job`] for this job, unless it was sent before.
    fn prefetch(&self, job_id: JobId);
    /// Slurm's record of a job; None if Slurm does not know the id.
    fn job(&self, job_id: JobId) -> Result<Option<JobInfo>, SlurmError>;
    /// Requeues a batch job, held or not; of an array only this task, of a heterogeneous job all components.
    fn requeue(&self, job_id: JobId, hold: bool) -> Result<(), SlurmError>;
    /// Cancels a job; of an array only this task.
    fn cancel(&self, job_id: JobId) -> Result<(), SlurmError>;
    /// Writes a line to the job's terminal or output.
    fn notify(&self, job_id: JobId, line: &str) -> Result<(), SlurmError>;
    /// The time limits of Prolog and Epilog; None while they are not known. Does not wait.
    fn hook_limits(&self) -> Option<HookLimits>;
    /// Drains a node, unless an admin has given a reason.
    fn drain(&self, node: &str, reason: &str) -> Result<Drained, SlurmError>;
    /// The files of SPANK plugins; None if libslurm does not tell.
    fn spank_files(&self) -> Option<SpankFiles>;
    /// Shows users why their job does not start yet; an empty text removes the explanation. Does not wait.
    fn explain(&self, job_id: JobId, why: &str);
    /// Waits a moment until the explanation has arrived.
    fn flush(&self);
    /// The time by which the wait for answers is measured.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

type Work = Box<dyn FnOnce(&Result<Client, Arc<ClientError>>) + Send>;

/// Slurm itself, by libslurm.
pub struct Controller {
    work: OnceLock<Sender<Work>>,
    /// The question that was asked, but not answered yet.
    pending: Mutex<Option<(JobId, Receiver<JobAnswer>)>>,
    limits: Mutex<Limits>,
    /// Asked before the job, because the answer needs no slurmctld.
    spank: Mutex<Option<Receiver<SpankAnswer>>>,
    /// The last explanation.
    explained: Mutex<Option<Receiver<Result<(), SlurmError>>>>,
}

/// The known time limits of prolog and epilog.
enum Limits {
    Unasked,
    Asked(Receiver<Result<Option<HookLimits>, SlurmError>>),
    Known(Option<HookLimits>),
}

type JobAnswer = Result<Option<JobInfo>, SlurmError>;
type SpankAnswer = Result<Option<SpankFiles>, SlurmError>;

impl Default for Controller {
    fn default() -> Self {
        Self::new()
    }
}

impl Controller {
    /// Does nothing yet: libslurm is loaded on a separate thread when it is first needed.
    pub fn new() -> Controller {
        Controller {
            work: OnceLock::new(),
            pending: Mutex::new(None),
            limits: Mutex::new(Limits::Unasked),
            spank: Mutex::new(None),
            explained: Mutex::new(None),
        }
    }

    fn start() -> Sender<Work> {
        let (work, inbox) = channel::<Work>();
        std::thread::spawn(move || {
            // Every request gets this answer.
            let client = Client::connect().map_err(Arc::new);
            for work in inbox {
                work(&client);
            }
        });
        work
    }

    fn send<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Client) -> Result<T, ClientError> + Send + 'static,
    ) -> Receiver<Result<T, SlurmError>> {
        let (reply, answer) = channel();
        let work: Work = Box::new(move |client| {
            let result = match client {
                Ok(client) => ask(client).map_err(SlurmError::from),
                Err(error) => Err(SlurmError::NotLoaded(Arc::clone(error))),
            };
            // The answer is late; the caller no longer waits.
            let _ = reply.send(result);
        });
        // If the thread has ended, it drops the request with the sender of the answer.
        let _ = self.work.get_or_init(Self::start).send(work);
        answer
    }

    /// Carries out a request on one job. Slurm is asked for the job first, because the id alone does not identify a
    /// task of an array.
    fn request(
        &self,
        job_id: JobId,
        act: impl FnOnce(&Client, &JobInfo) -> Result<(), ClientError> + Send + 'static,
    ) -> Result<(), SlurmError> {
        Self::wait(&self.send(move |client| act(client, &client.known_job(job_id.0)?)))
    }

    fn wait<T>(answer: &Receiver<Result<T, SlurmError>>) -> Result<T, SlurmError> {
        match answer.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(SlurmError::TooSlow(PATIENCE)),
            Err(RecvTimeoutError::Disconnected) => Err(SlurmError::Gone),
        }
    }
}

/// A libslurm from before an upgrade gets an answer that does not say so (22.05's libslurm from slurmctld 24.11:
/// "Unexpected message received").
fn explained(error: SlurmError, daemon: Option<Release>) -> SlurmError {
    let built_for = Release::BUILT_FOR.series();
    match daemon {
        Some(found) if found.series() != built_for => SlurmError::OtherSeries {
            error: Box::new(error),
            built_for,
            found,
        },
        _ => error,
    }
}

impl Slurm for Controller {
    fn prefetch(&self, job_id: JobId) {
        let (Ok(mut spank), Ok(mut pending)) = (self.spank.lock(), self.pending.lock()) else {
            return;
        };
        if matches!(*pending, Some((asked, _)) if asked == job_id) {
            return;
        }
        *spank = Some(self.send(|client| Ok(client.spank_files())));
        *pending = Some((job_id, self.send(move |client| client.job(job_id.0))));
    }

    fn job(&self, job_id: JobId) -> JobAnswer {
        let pending = self
            .pending
            .lock()
            .ok()
            .and_then(|mut pending| pending.take());
        let question = match pending {
            Some((asked, question)) if asked == job_id => question,
            _ => self.send(move |client| client.job(job_id.0)),
        };
        let answer = Self::wait(&question);
        if matches!(answer, Err(SlurmError::TooSlow(_)))
            && let Ok(mut pending) = self.pending.lock()
        {
            // A repeated question waits for the answer to the first one.
            *pending = Some((job_id, question));
        }
        answer.map_err(|error| explained(error, release::release_of_parent()))
    }

    fn requeue(&self, job_id: JobId, hold: bool) -> Result<(), SlurmError> {
        self.request(job_id, move |client, job| client.requeue(job, hold))
    }

    fn cancel(&self, job_id: JobId) -> Result<(), SlurmError> {
        self.request(job_id, Client::cancel)
    }

    fn notify(&self, job_id: JobId, line: &str) -> Result<(), SlurmError> {
        let line = line.to_owned();
        self.request(job_id, move |client, job| client.notify(job, &line))
    }

    fn drain(&self, node: &str, reason: &str) -> Result<Drained, SlurmError> {
        let (node, reason) = (node.to_owned(), reason.to_owned());
        Self::wait(&self.send(move |client| client.drain(&node, &reason, Drainer::Hook)))
    }

    fn spank_files(&self) -> Option<SpankFiles> {
        let asked = self.spank.lock().ok().and_then(|mut spank| spank.take());
        let answer = asked.unwrap_or_else(|| self.send(|client| Ok(client.spank_files())));
        Self::wait(&answer).ok().flatten()
    }

    fn hook_limits(&self) -> Option<HookLimits> {
        let mut limits = self.limits.lock().ok()?;
        if let Limits::Unasked = *limits {
            *limits = Limits::Asked(self.send(|client| Ok(client.hook_limits())));
        }
        if let Limits::Asked(answer) = &*limits {
            match answer.try_recv() {
                Err(TryRecvError::Empty) => return None,
                found => *limits = Limits::Known(found.ok().and_then(Result::ok).flatten()),
            }
        }
        match *limits {
            Limits::Known(limits) => limits,
            Limits::Unasked | Limits::Asked(_) => None,
        }
    }

    fn explain(&self, job_id: JobId, why: &str) {
        let why = why.to_owned();
        let answer = self.send(move |client| {
            let job = client.known_job(job_id.0)?;
            let comment = explained_in(&job.admin_comment, &why);
            if comment == job.admin_comment {
                Ok(())
            } else {
                client.set_admin_comment(&job, &comment)
            }
        });
        if let Ok(mut last) = self.explained.lock() {
            *last = Some(answer);
        }
    }

    fn flush(&self) {
        let explained = self.explained.lock().ok();
        if let Some(answer) = explained.and_then(|mut explained| explained.take()) {
            // Nothing depends on the explanation.
            let _ = answer.recv_timeout(FAREWELL);
        }
    }
}

/// The comment with the reason, or without it; text of others stays.
pub fn explained_in(comment: &str, why: &str) -> String {
    let parts = comment.split(PARTS).map(str::to_owned);
    let mut parts: Vec<String> = parts
        .filter(|part| !part.is_empty() && !part.starts_with(OURS) && !part.starts_with(FULL))
        .collect();
    if !why.is_empty() {
        parts.push(format!("{OURS}{}", why.replace(PARTS, ", ")));
    }
    parts.join(PARTS)
}

/// The comment with the words about a task that failed with a full slice; None if it has them.
pub fn full_in(comment: &str, told: &str) -> Option<String> {
    let mut parts: Vec<&str> = comment.split(PARTS).collect();
    parts.retain(|part| !part.is_empty());
    let own = format!("{FULL}{}", told.replace(PARTS, ", "));
    let is_told = parts.iter().any(|part| part.starts_with(FULL));
    parts.push(&own);
    (!is_told).then(|| parts.join(PARTS))
}

/// Whether a prolog explained something to this job's user.
pub fn is_explained(job: &JobInfo) -> bool {
    let mut parts = job.admin_comment.split(PARTS);
    parts.any(|part| part.starts_with(OURS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_slice_is_told_once_and_until_the_next_run() {
        let told = full_in("ticket 7", "used 1 | 2").unwrap();
        let expected = "ticket 7 | gpufrac: a task failed with a full slice: used 1, 2";
        assert_eq!(told, expected);
        assert_eq!(full_in(&told, "used 2"), None);
        assert_eq!(explained_in(&told, ""), "ticket 7");
    }

    #[test]
    fn comments_of_others_on_a_job_stay() {
        for others in [
            "",
            "ticket 7",
            "ticket 7: ask | first",
            "gpufrac: job 7 is idle",
        ] {
            let first = explained_in(others, "the job waits");
            assert!(first.starts_with(others), "{first}");
            assert!(first.ends_with("gpufrac: prolog: the job waits"), "{first}");
            let second = explained_in(&first, "it is | over");
            assert!(second.ends_with("gpufrac: prolog: it is, over"), "{second}");
            assert_eq!(second.matches(OURS).count(), 1);
            assert_eq!(explained_in(&second, ""), others);
        }
    }
}
