//! From a stalled slice to what is done about it.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Mode, Policy};

use super::Daemon;
use super::watched::WatchedJob;
use crate::clock::BootTime;
use crate::judge::breaker::{Count, UserCounts};
use crate::judge::escalation::Step;
use crate::judge::stall::Stalled;
use crate::report::errors::Topic;

/// The span of `reaps_per_hour`.
const LIMITED_SPAN: Duration = Duration::from_secs(3600);

/// A job, and the action that is due.
pub(super) struct Due {
    pub(super) job: JobId,
    pub(super) stalled: Stalled,
    pub(super) policy: Policy,
    pub(super) step: Step,
}

impl Daemon {
    /// Judges every job and carries out the actions that are due.
    pub(super) fn reap(&mut self, now: BootTime) {
        self.state.reaped.retain(|at| now.since(*at) < LIMITED_SPAN);
        let jobs: Vec<JobId> = self.watched.keys().copied().collect();
        let mut due = Vec::new();
        let mut users = UserCounts::default();
        for job in jobs {
            let found = self.judge(job, now);
            let Some(watched) = self.watched.get(&job) else {
                continue;
            };
            // Of a job on several nodes each counts its own part: nothing is found but on the first.
            let counts = watched.watch.escalation.is_warned() || self.is_own_part_due(watched, now);
            let leases = watched.leases().count() as u32;
            let stalled = if counts { leases } else { 0 };
            users.add(watched.lease.user_id, Count { leases, stalled });
            due.extend(found);
        }
        let closed = self.check_breakers(users, now, !due.is_empty());
        for due in due {
            if self.is_late(now) {
                break;
            }
            let errors = self.state.totals.slurm_errors;
            let done = match &closed {
                Err(why) => {
                    self.state.totals.refused_breaker += u64::from(due.step == Step::End);
                    self.refuse(due.job, &due.stalled, &due.policy, why.clone());
                    Ok(())
                }
                // Jobs that end and daemons that start again close it too: what made it open may have been wrong until
                // the last moment.
                Ok(Some(open)) if due.stalled.since <= *open => {
                    self.restart_window(due.job, now);
                    Ok(())
                }
                Ok(_) => self.carry_out(due, now),
            };
            if let Err(error) = done {
                self.state.totals.slurm_errors += 1;
                self.reports
                    .report_once(&self.outside.log, Topic::Slurm, Some(error));
            }
            if self.state.totals.slurm_errors > errors {
                // After a missing answer Slurm is not asked about the others now.
                break;
            }
        }
    }

    /// The action that is due for a job, after outdated warnings were cancelled.
    fn judge(&mut self, job: JobId, now: BootTime) -> Option<Due> {
        let watched = self.watched.get(&job)?;
        let policy = self.policy(watched).clone();
        let escalation = &watched.watch.escalation;
        if escalation.has_ended() && policy.mode == Mode::On {
            // The job is ending: its samples mean nothing now.
            return None;
        }
        if policy.mode == Mode::Off || escalation.is_of_other_mode(policy.mode) {
            self.forget_warnings(job);
        } else if watched.watch.is_cleared() {
            let reason = watched.watch.reason.clone();
            self.clear(job, &policy, &reason);
        }
        let watched = self.watched.get(&job)?;
        if policy.mode == Mode::Off {
            self.withdraw(job);
            return None;
        }
        // Only fresh samples: a job without them is not judged.
        if now.since(watched.watch.sampled) > self.node.config.reaper.interval * 2 {
            return None;
        }
        let Some(own) = watched.stalled(&policy) else {
            self.withdraw(job);
            return None;
        };
        let stalled = self.of_all_nodes(job, own, &policy, now)?;
        let watched = self.watched.get(&job)?;
        let step = watched.watch.escalation.step(&stalled, &policy, now);
        (step != Step::None).then_some(Due {
            job,
            stalled,
            policy,
            step,
        })
    }

    /// Whether a warning about the slice would be due, whatever is known of others of the job.
    fn is_own_part_due(&self, watched: &WatchedJob, now: BootTime) -> bool {
        let policy = self.policy(watched);
        let stalled = watched.stalled(policy);
        policy.mode != Mode::Off && stalled.is_some_and(|own| now >= own.warned_from(policy))
    }
}
