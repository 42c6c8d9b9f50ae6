//! Asks Slurm about jobs. Busy jobs need no questions.

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::Mode;
use slurm_sys::client::JobInfo;

use super::Daemon;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

/// Rounds between two questions about a job without an answer yet.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 6;

impl Daemon {
    /// Asks Slurm about jobs that begin to look stalled, because rules may depend on the answer. Busy jobs need no
    /// questions.
    pub(super) fn ask_about_suspects(&mut self, now: BootTime) {
        let reaper = &self.node.config.reaper;
        let unknown: Vec<JobId> = self
            .watched
            .iter()
            .filter(|(_, watched)| watched.job.is_none() && watched.next_question <= self.round)
            .filter(|(_, watched)| {
                // Any rule may match.
                let wish = watched.lease.idle_wish;
                let mut policies = reaper.policies().filter(|policy| policy.mode != Mode::Off);
                policies.any(|policy| watched.watch.is_suspect(policy, wish, now))
            })
            .map(|(job, _)| *job)
            .collect();
        for job in unknown {
            self.ask_about(job);
            if self.reports.has_error(Topic::Slurm) || self.is_late(now) {
                // If Slurm does not answer, it is not asked about the other jobs in this round.
                break;
            }
        }
    }

    /// Slurm's current record of a job; None if Slurm does not answer, or knows no such job.
    pub(super) fn ask_about(&mut self, job: JobId) -> Option<JobInfo> {
        let answer = self.outside.slurm.job(job);
        let watched = self.watched.get_mut(&job)?;
        watched.next_question = self.round + ROUNDS_BETWEEN_QUESTIONS;
        let (answer, error) = match answer {
            Ok(answer) => (answer, None),
            Err(error) => {
                self.state.totals.slurm_errors += 1;
                (None, Some(error.to_string()))
            }
        };
        if let Some(answer) = &answer {
            watched.job = Some(answer.clone());
        }
        self.reports
            .report_once(&self.outside.log, Topic::Slurm, error);
        answer
    }
}
