//! Carries out due actions, if they are still due after Slurm was asked.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::Mode;
use slurm_sys::client::{JobInfo, JobState};

use super::Daemon;
use super::reap::Due;
use super::watched::WatchedJob;
use crate::act::refusal::Refusal;
use crate::judge::escalation::Step;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use gpufrac_node::clock::BootTime;
use gpufrac_node::slurm_call::SlurmError;

impl Daemon {
    /// Carries out a due action. An error means that Slurm does not answer, for other jobs either.
    pub(super) fn carry_out(&mut self, due: Due, now: BootTime) -> Result<(), SlurmError> {
        if self.is_still_refused(&due) || self.is_out_of_date(due.job) {
            return Ok(());
        }
        let was_known = self
            .watched
            .get(&due.job)
            .is_some_and(WatchedJob::is_on_several_nodes);
        let Some(job) = self.ask_about(due.job) else {
            // The function has logged the error, or Slurm does not know the job.
            return Ok(());
        };
        if self.is_out_of_date(due.job) {
            return Ok(());
        }
        if !self.is_this_run(&due, &job, now) || !self.is_still_due(&due) {
            return Ok(());
        }
        if job.het_job_id != 0 {
            self.refuse(due.job, &due.stalled, &due.policy, Refusal::HetJob);
            return Ok(());
        }
        if job.node_count > 1 && !was_known {
            // The job was judged as if it ran only on this node.
            return Ok(());
        }
        let is_warning = matches!(due.step, Step::Warn { .. });
        if !is_warning && due.policy.mode == Mode::On && !self.is_stalled_now(&due) {
            return Ok(());
        }
        match due.step {
            Step::None => Ok(()),
            Step::Warn { end } => self.warn(&due, &job, end, now),
            Step::Signal { end } => self.signal(&due, &job, end, now),
            Step::End => self.end(&due, &job, now),
        }
    }

    /// Whether the run of the job that was judged still runs; otherwise its slice counts as active. A suspension in
    /// Slurm's answer moves the last activity.
    fn is_this_run(&mut self, due: &Due, job: &JobInfo, now: BootTime) -> bool {
        let now_unix = self.outside.clock.unix_now();
        let Some(watched) = self.watched.get_mut(&due.job) else {
            return false;
        };
        let same = job.restart_count == watched.lease.restart_count;
        if !same || job.state != JobState::Running {
            // A suspended job is idle, but its user is not the cause.
            let reason = "it is suspended or ending";
            watched.watch.mark_active(now, reason);
            return false;
        }
        if job.suspend_unix > 0 {
            let resumed = Duration::from_secs(now_unix.saturating_sub(job.suspend_unix));
            let resumed = now.before(resumed);
            if resumed > watched.watch.last_active && resumed > watched.watch.began {
                watched
                    .watch
                    .mark_active(resumed, "it was suspended until then");
            }
        }
        true
    }

    /// Whether the same action is still due with Slurm's answer, which may select another rule or change the start of
    /// the window.
    fn is_still_due(&self, due: &Due) -> bool {
        let Some(watched) = self.watched.get(&due.job) else {
            return false;
        };
        let policy = self.policy(watched);
        let own = watched.stalled(policy);
        *policy == due.policy && own.is_some_and(|own| own.since <= due.stalled.since)
    }

    /// Takes another sample: Slurm's answer took time, for other jobs too, so that the job may be active again, or
    /// other nodes may have withdrawn their reports.
    fn is_stalled_now(&mut self, due: &Due) -> bool {
        self.look_again(due.job);
        let watched = self.watched.get(&due.job);
        let own = watched.and_then(|watched| watched.stalled(&due.policy));
        own.filter(|own| own.since <= due.stalled.since)
            .and_then(|own| self.of_all_nodes(due.job, own, &due.policy, self.outside.clock.now()))
            .is_some()
    }

    /// Whether Slurm's answers, for this job or for earlier ones, took so long that the samples are outdated.
    fn is_out_of_date(&self, job: JobId) -> bool {
        let longest = self.node.config.reaper.interval * LONGEST_GAP_ROUNDS;
        let watched = self.watched.get(&job);
        let now = self.outside.clock.now();
        watched.is_none_or(|watched| now.since(watched.watch.sampled) > longest)
    }

    /// Whether the action was refused earlier for a reason that needs no new question to Slurm.
    fn is_still_refused(&self, due: &Due) -> bool {
        let Some(watched) = self.watched.get(&due.job) else {
            return false;
        };
        let is_het = watched.job.as_ref().is_some_and(|job| job.het_job_id != 0);
        watched.refused.is_some() && (is_het || self.is_over_limit(due))
    }

    /// Whether the action would exceed the hourly limit of reclaims.
    pub(super) fn is_over_limit(&self, due: &Due) -> bool {
        let most = self.node.config.reaper.reaps_per_hour as usize;
        let ends = due.step == Step::End && due.policy.mode == Mode::On;
        ends && self.state.reaped.len() >= most
    }
}
