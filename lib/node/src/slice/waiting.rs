//! How long a prolog or an epilog waits: for its turn at a GPU as long as the queue moves and its own time lasts, and
//! for temporary errors after its turn.

use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use slurm_sys::client::HookLimits;

use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::state::line::{GpuLock, Line};
use crate::state::locks::LockError;
use gpufrac_host::log::JobLog;

/// The assumed time limit of a prolog or epilog until slurm.conf's is known.
const USUAL_LIMIT: Duration = Duration::from_secs(60);
/// The time limit if slurm.conf sets none: seven prologs and as many epilogs on a driver that needs three seconds for
/// each call.
const LONGEST: Duration = Duration::from_secs(300);
/// The part of this time for the work itself, and for requeueing the job.
const RESERVE: Duration = Duration::from_secs(15);
/// The wait after which users are shown what their job waits for.
const NOTICE: Duration = Duration::from_secs(5);
/// The wait after which an epilog asks for its limit; it needs libslurm for nothing else.
const EPILOG_ASKS: Duration = Duration::from_secs(10);

/// The programs that slurmd runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// Before a job.
    Prolog,
    /// After a job.
    Epilog,
}

impl Hook {
    /// The time limit in slurm.conf; a default if it is not known.
    fn limit(self, limits: Option<HookLimits>) -> Duration {
        let own = |limits: HookLimits| match self {
            Hook::Prolog => limits.prolog,
            Hook::Epilog => limits.epilog,
        };
        limits.map_or(USUAL_LIMIT, |limits| own(limits).unwrap_or(LONGEST))
    }
}

/// The time budget of one prolog or epilog.
pub(super) struct Waiting<'a> {
    hook: Hook,
    job_id: JobId,
    node: &'a Node,
    slurm: Option<&'a dyn Slurm>,
    log: &'a JobLog,
    start: Instant,
    /// The time in queues so far.
    in_line: Duration,
    /// The time of work until the first failure.
    failed_after: Option<Duration>,
    is_shown: bool,
    /// Whether a turn did not come; then no further turn is waited for.
    is_spent: bool,
}

impl<'a> Waiting<'a> {
    /// The budget begins now.
    pub(super) fn new(
        hook: Hook,
        job_id: JobId,
        node: &'a Node,
        slurm: Option<&'a dyn Slurm>,
        log: &'a JobLog,
    ) -> Waiting<'a> {
        Waiting {
            hook,
            job_id,
            node,
            slurm,
            log,
            start: Instant::now(),
            in_line: Duration::ZERO,
            failed_after: None,
            is_shown: false,
            is_spent: false,
        }
    }

    /// Waits for the turn at a GPU.
    pub(super) fn turn(&mut self, line: &mut Line<'_>) -> Result<GpuLock, LockError> {
        let before = Instant::now();
        let gpu_index = line.gpu_index();
        let turn = line.turn(|wait| {
            let goes_on =
                !self.is_spent && wait.still < self.node.lock_patience && !self.left().is_zero();
            if goes_on && wait.waited >= NOTICE {
                self.show(&format!(
                    "waits on {} for its turn at GPU {gpu_index}",
                    self.node.name
                ));
            }
            goes_on
        });
        self.in_line += before.elapsed();
        self.is_spent |= turn.is_err();
        if turn.is_ok() && self.is_shown {
            self.is_shown = false;
            if let Some(slurm) = self.slurm {
                slurm.explain(self.job_id, "");
            }
        }
        turn
    }

    /// How long a failed step may be retried: `patience` from the first failure on, without the time in queues.
    pub(super) fn heals_within(&mut self, patience: Duration) -> Duration {
        let worked = self.start.elapsed().saturating_sub(self.in_line);
        let first = *self.failed_after.get_or_insert(worked);
        let left = patience.saturating_sub(worked.saturating_sub(first));
        left.min(self.left())
    }

    /// The time in queues and after the first failure, so far.
    pub(super) fn waited(&self) -> Duration {
        let worked = self.start.elapsed().saturating_sub(self.in_line);
        let first = self.failed_after.unwrap_or(worked);
        self.in_line + worked.saturating_sub(first)
    }

    /// Shows users why their job does not start here, if they have waited.
    pub(super) fn give_up(&self, error: &dyn std::fmt::Display) {
        if let Some(slurm) = self.slurm
            && self.start.elapsed() >= NOTICE
        {
            slurm.explain(
                self.job_id,
                &format!("the job did not start on {}: {error}", self.node.name),
            );
        }
    }

    /// The remaining time for waits.
    fn left(&self) -> Duration {
        let limit = self.limit();
        let end = limit.saturating_sub(RESERVE.min(limit / 4));
        end.saturating_sub(self.start.elapsed())
    }

    /// The time limit of slurmd.
    fn limit(&self) -> Duration {
        let asks = self.hook == Hook::Prolog || self.start.elapsed() >= EPILOG_ASKS;
        let limits = self.slurm.filter(|_| asks).and_then(Slurm::hook_limits);
        self.hook.limit(limits)
    }

    /// Says once, in the log and to the job's user, what the program waits for.
    fn show(&mut self, what: &str) {
        if self.is_shown {
            return;
        }
        self.is_shown = true;
        // The job waits in line at its GPU, or for what the text names. Cure: Nothing, unless it repeats for minutes:
        // then follow the text.
        self.log.info(format!("the job {what}"));
        if let (Hook::Prolog, Some(slurm)) = (self.hook, self.slurm) {
            slurm.explain(self.job_id, &format!("the job {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_has_the_time_that_slurm_gives_it() {
        let limits = |prolog: Option<u64>| HookLimits {
            prolog: prolog.map(Duration::from_secs),
            epilog: Some(Duration::from_secs(20)),
        };
        let seconds = |hook: Hook, limits| hook.limit(limits).as_secs();
        assert_eq!(seconds(Hook::Prolog, None), 60);
        assert_eq!(seconds(Hook::Prolog, Some(limits(Some(900)))), 900);
        assert_eq!(seconds(Hook::Prolog, Some(limits(None))), 300);
        assert_eq!(seconds(Hook::Epilog, Some(limits(None))), 20);
    }
}
