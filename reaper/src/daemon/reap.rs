//! From stalled slices to due actions.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Mode, Policy};

use super::Daemon;
use super::watched::WatchedJob;
use crate::judge::breaker::{Count, UserCounts};
use crate::judge::escalation::Step;
use crate::judge::stall::Stalled;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

/// The period of `reaps_per_hour`.
const LIMITED_SPAN: Duration = Duration::from_secs(3600);

/// A job and its due action.
pub(super) struct Due {
    pub(super) job: JobId,
    pub(super) stalled: Stalled,
    pub(super) policy: Policy,
    pub(super) step: Step,
}

impl Daemon {
    /// Judges every job and carries out due actions.
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
            // Of a job on several nodes each node counts its own part; only the first node finds a due action.
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
                // A breaker also closes when jobs end or daemons restart. The samples before that may have been
                // faulty until the last moment, so windows start again after it.
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
                // If Slurm does not answer, it is not asked about the other jobs in this round.
                break;
            }
        }
    }

    /// The due action of a job, after warnings that no longer apply were cancelled.
    fn judge(&mut self, job: JobId, now: BootTime) -> Option<Due> {
        let watched = self.watched.get(&job)?;
        let policy = self.policy(watched).clone();
        let escalation = &watched.watch.escalation;
        if escalation.has_ended() && policy.mode == Mode::On {
            // The job is ending, so its samples mean nothing.
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
        // A job without fresh samples is not judged.
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

    /// Whether a warning about this node's part of a job would be due, whatever the other parts do.
    fn is_own_part_due(&self, watched: &WatchedJob, now: BootTime) -> bool {
        let policy = self.policy(watched);
        let stalled = watched.stalled(policy);
        policy.mode != Mode::Off && stalled.is_some_and(|own| now >= own.warned_from(policy))
    }
}
