//! A prolog's questions to slurmctld, with a deadline. libslurm's own timeouts are long, and it ends its process if it
//! cannot use slurm.conf, so it runs in a separate process. A thread waits for it; late answers are ignored.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use slurm_sys::client::{ClientError, Drained, HookLimits, JobInfo, JobState, SpankFiles};
use slurm_sys::release::{self, Release, Series};

use crate::slurm_call::session::Session;
use crate::slurm_call::{Call, Failed, Reply, SlurmAction};

/// The time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a program that has finished waits until its explanation has reached slurmctld.
const FAREWELL: Duration = Duration::from_secs(1);
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
    NotLoaded(ClientError),
    /// The node's slurmd is of another series.
    /// Cure: Install the gpufrac of this series.
    #[error("{error}; built for Slurm {built_for}, but slurmd is {found}")]
    OtherSeries {
        error: Box<SlurmError>,
        /// The series of this build.
        built_for: Series,
        found: Release,
    },
    /// libslurm ended its process: it cannot use slurm.conf, for example; the text is libslurm's.
    /// Cure: Correct slurm.conf on the node; otherwise look for the kernel's messages.
    #[error("libslurm ended: {0}")]
    Gone(String),
}

impl SlurmError {
    /// Whether the error means that the node has another series of Slurm than this build, and not only that Slurm
    /// does not answer.
    pub fn is_of_other_series(&self) -> bool {
        match self {
            SlurmError::NotLoaded(_) | SlurmError::OtherSeries { .. } => true,
            SlurmError::Client(_) | SlurmError::TooSlow(_) | SlurmError::Gone(_) => false,
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

type Work = Box<dyn FnOnce(&mut Process) + Send>;

/// Slurm itself, by libslurm.
#[derive(Default)]
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
#[derive(Default)]
enum Limits {
    #[default]
    Unasked,
    Asked(Receiver<Result<Option<HookLimits>, SlurmError>>),
    Known(Option<HookLimits>),
}

type JobAnswer = Result<Option<JobInfo>, SlurmError>;
type SpankAnswer = Result<Option<SpankFiles>, SlurmError>;

/// The process with libslurm; None before the first call, and after it ended: slurm.conf may be whole a moment later.
#[derive(Default)]
struct Process(Option<Session>);

impl Process {
    fn call(&mut self, call: &Call) -> Result<Reply, SlurmError> {
        let mut session = match self.0.take() {
            Some(session) => session,
            None => Session::start().map_err(|error| SlurmError::Gone(error.to_string()))?,
        };
        let reply = session.call(call).map_err(SlurmError::Gone)?;
        self.0 = Some(session);
        reply.map_err(SlurmError::from)
    }
}

impl From<Failed> for SlurmError {
    fn from(failed: Failed) -> SlurmError {
        match failed {
            Failed::NotLoaded(error) => SlurmError::NotLoaded(error),
            Failed::Client(error) => SlurmError::Client(error),
        }
    }
}

impl Controller {
    fn start() -> Sender<Work> {
        let (work, inbox) = channel::<Work>();
        std::thread::spawn(move || {
            let mut process = Process::default();
            for work in inbox {
                work(&mut process);
            }
        });
        work
    }

    /// Sends a call. `read` takes what it asked for out of the reply.
    fn send<T: Send + 'static>(
        &self,
        call: Call,
        read: fn(Reply) -> Option<T>,
    ) -> Receiver<Result<T, SlurmError>> {
        let (reply, answer) = channel();
        let work: Work = Box::new(move |process| {
            let result = process.call(&call).and_then(|reply| {
                read(reply).ok_or_else(|| SlurmError::Gone("with another answer".to_owned()))
            });
            // The answer is late; the caller no longer waits.
            let _ = reply.send(result);
        });
        // If the thread has ended, it drops the request with the sender of the answer.
        let _ = self.work.get_or_init(Self::start).send(work);
        answer
    }

    fn ask_job(&self, job_id: JobId) -> Receiver<JobAnswer> {
        self.send(Call::Look(vec![job_id]), |reply| match reply {
            Reply::Seen(jobs) => jobs.into_iter().next(),
            _ => None,
        })
    }

    fn ask_spank(&self) -> Receiver<SpankAnswer> {
        self.send(Call::Spank, |reply| match reply {
            Reply::Spank(files) => Some(files),
            _ => None,
        })
    }

    fn request(&self, job_id: JobId, action: SlurmAction) -> Result<(), SlurmError> {
        Self::wait(&self.send(Call::Request { job_id, action }, carried))
    }

    fn wait<T>(answer: &Receiver<Result<T, SlurmError>>) -> Result<T, SlurmError> {
        match answer.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(SlurmError::TooSlow(PATIENCE)),
            Err(RecvTimeoutError::Disconnected) => Err(SlurmError::Gone(String::new())),
        }
    }
}

fn carried(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Carried).then_some(())
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
        *spank = Some(self.ask_spank());
        *pending = Some((job_id, self.ask_job(job_id)));
    }

    fn job(&self, job_id: JobId) -> JobAnswer {
        let pending = self
            .pending
            .lock()
            .ok()
            .and_then(|mut pending| pending.take());
        let question = match pending {
            Some((asked, question)) if asked == job_id => question,
            _ => self.ask_job(job_id),
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
        self.request(job_id, SlurmAction::Requeue { hold })
    }

    fn cancel(&self, job_id: JobId) -> Result<(), SlurmError> {
        self.request(job_id, SlurmAction::Cancel)
    }

    fn notify(&self, job_id: JobId, line: &str) -> Result<(), SlurmError> {
        self.request(job_id, SlurmAction::Notify(line.to_owned()))
    }

    fn drain(&self, node: &str, reason: &str) -> Result<Drained, SlurmError> {
        let (node, reason) = (node.to_owned(), reason.to_owned());
        Self::wait(
            &self.send(Call::Drain { node, reason }, |reply| match reply {
                Reply::Drained(drained) => Some(drained),
                _ => None,
            }),
        )
    }

    fn spank_files(&self) -> Option<SpankFiles> {
        let asked = self.spank.lock().ok().and_then(|mut spank| spank.take());
        let answer = asked.unwrap_or_else(|| self.ask_spank());
        Self::wait(&answer).ok().flatten()
    }

    fn hook_limits(&self) -> Option<HookLimits> {
        let mut limits = self.limits.lock().ok()?;
        if let Limits::Unasked = *limits {
            *limits = Limits::Asked(self.send(Call::Limits, |reply| match reply {
                Reply::Limits(limits) => Some(limits),
                _ => None,
            }));
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
        let answer = self.send(Call::Explain { job_id, why }, carried);
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
