//! How long a prolog or an epilog waits: for its turn at a GPU as long as the queue moves and its own time lasts, and
//! for transient errors after its turn.

use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use slurm_sys::client::HookLimits;

use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::state::line::Line;
use crate::state::locks::{GpuLock, LockError};
use gpufrac_host::log::JobLog;

/// What a prolog or an epilog takes for its time as long as it does not know what slurm.conf says.
const USUAL_LIMIT: Duration = Duration::from_secs(60);
/// The same where slurm.conf sets no limit: seven prologs and as many epilogs on a driver that takes three seconds for each call.
const LONGEST: Duration = Duration::from_secs(300);
/// What is kept of that time for the work itself, and for giving the job back.
const RESERVE: Duration = Duration::from_secs(15);
/// From then on users are shown what their job waits for.
const NOTICE: Duration = Duration::from_secs(5);
/// When an epilog asks for its limit: it has no other use for libslurm.
const EPILOG_ASKS: Duration = Duration::from_secs(10);

/// What slurmd runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// Before a job.
    Prolog,
    /// After it.
    Epilog,
}

impl Hook {
    /// How long it may take by what slurm.conf says, if that is known.
    fn limit(self, limits: Option<HookLimits>) -> Duration {
        let own = |limits: HookLimits| match self {
            Hook::Prolog => limits.prolog,
            Hook::Epilog => limits.epilog,
        };
        limits.map_or(USUAL_LIMIT, |limits| own(limits).unwrap_or(LONGEST))
    }
}

/// The time of one prolog or epilog.
pub(super) struct Waiting<'a> {
    hook: Hook,
    job_id: JobId,
    node: &'a Node,
    slurm: Option<&'a dyn Slurm>,
    log: &'a JobLog,
    start: Instant,
    /// In lines, up to now.
    in_line: Duration,
    /// How long was worked until the first failure.
    failed_after: Option<Duration>,
    is_shown: bool,
    /// A turn did not come: none is waited for again.
    is_spent: bool,
}

impl<'a> Waiting<'a> {
    /// Begins now.
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

    /// How long what has just failed may still be tried again: `patience` from the first failure on, the time in lines not
    /// counted.
    pub(super) fn heals_within(&mut self, patience: Duration) -> Duration {
        let worked = self.start.elapsed().saturating_sub(self.in_line);
        let first = *self.failed_after.get_or_insert(worked);
        let left = patience.saturating_sub(worked.saturating_sub(first));
        left.min(self.left())
    }

    /// Shows users why their job does not start here, where they have waited for it.
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

    /// How long may be waited yet.
    fn left(&self) -> Duration {
        let limit = self.limit();
        let end = limit.saturating_sub(RESERVE.min(limit / 4));
        end.saturating_sub(self.start.elapsed())
    }

    /// How long slurmd lets this run.
    fn limit(&self) -> Duration {
        let asks = self.hook == Hook::Prolog || self.start.elapsed() >= EPILOG_ASKS;
        let limits = self.slurm.filter(|_| asks).and_then(Slurm::hook_limits);
        self.hook.limit(limits)
    }

    /// Says once, in the log and to the job's user, what is waited for.
    fn show(&mut self, what: &str) {
        if self.is_shown {
            return;
        }
        self.is_shown = true;
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
