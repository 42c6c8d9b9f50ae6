//! From the samples of a job to its due action. A job on several nodes: each node reports for how long its part is
//! stalled; the job's first node decides.

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Mode, Policy, Reaper};
use gpufrac_node::clock::BootTime;

use super::watched::WatchedJob;
use crate::act::refusal::Refusal;
use crate::judge::breaker::Breakers;
use crate::judge::escalation::Step;
use crate::judge::peers::PeerError;
use crate::judge::stall::Stalled;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::report::errors::topic;
use crate::round::Round;

/// A job and its due action.
pub(crate) struct Due {
    pub(super) job: JobId,
    pub(super) stalled: Stalled,
    pub(super) policy: Policy,
    pub(super) step: Step,
}

impl Due {
    /// Whether the action is carried out; otherwise it is only logged.
    pub(super) fn acts(&self) -> bool {
        self.policy.mode == Mode::On
    }
}

impl WatchedJob {
    /// The due action, after warnings that no longer apply were cancelled.
    pub(super) fn judge(
        &mut self,
        round: &mut Round,
        breakers: &Breakers,
        now: BootTime,
    ) -> Option<Due> {
        let policy = self.policy(round.settings()).clone();
        let escalation = &self.watch.escalation;
        if escalation.has_ended() && policy.mode == Mode::On {
            // The job is ending, so its samples mean nothing.
            return None;
        }
        if policy.mode == Mode::Off || escalation.is_of_other_mode(policy.mode) {
            self.forget_warnings();
        } else if self.watch.is_cleared() {
            let reason = self.watch.reason.clone();
            self.clear(round, &policy, &reason);
        }
        if policy.mode == Mode::Off {
            self.withdraw(round);
            return None;
        }
        // A job without fresh samples is not judged.
        if now.since(self.watch.sampled) > round.interval() * 2 {
            return None;
        }
        let Some(own) = self.stalled(&policy) else {
            self.withdraw(round);
            return None;
        };
        let stalled = self.of_all_nodes(round, breakers, own, &policy, now)?;
        let step = self.watch.escalation.step(&stalled, &policy, now);
        (step != Step::None).then_some(Due {
            job: self.leases.first.job_id,
            stalled,
            policy,
            step,
        })
    }

    /// Whether the job was warned, or a warning about this node's part of it would be due, whatever the other parts do.
    pub(super) fn looks_stalled(&self, reaper: &Reaper, now: BootTime) -> bool {
        let policy = self.policy(reaper);
        let is_due = |own: Stalled| now >= own.warned_from(policy);
        let own = self.stalled(policy);
        self.watch.escalation.is_warned() || policy.mode != Mode::Off && own.is_some_and(is_due)
    }

    /// The stall of a job that may run on several nodes, as long as on the node where it is shortest. None if another
    /// node decides, or if not all nodes report a stall.
    pub(super) fn of_all_nodes(
        &mut self,
        round: &mut Round,
        breakers: &Breakers,
        own: Stalled,
        policy: &Policy,
        now: BootTime,
    ) -> Option<Stalled> {
        let nodes = match &self.job {
            Some(job) if self.is_on_several_nodes() => job.nodes.clone(),
            _ => return Some(own),
        };
        let key = self.watch.key;
        let longest_gap = round.interval() * LONGEST_GAP_ROUNDS;
        let was_open = breakers.last.node.is_some_and(|open| own.since <= open);
        if !breakers.node && was_open {
            // The other nodes must not act on the old report.
            self.restart_window(now);
            self.withdraw(round);
            return None;
        }
        let length = now.since(own.since);
        let is_due = now + longest_gap >= own.warned_from(policy);
        if !is_due && !self.watch.escalation.is_warned() {
            self.withdraw(round);
            return None;
        }
        let claimed = if breakers.node {
            round.peers.withdraw(key.job_id)
        } else {
            round.peers.claim(key, length, now)
        };
        // Reports are valid for two rounds, because the file system of the folder may cache files.
        let valid = longest_gap * 2;
        let answer = claimed.and_then(|()| round.peers.stalled(key, &nodes, length, now, valid));
        match answer {
            Ok(shortest) => {
                let since = now.before(shortest);
                return Some(Stalled { since, ..own });
            }
            Err(PeerError::Follower(_) | PeerError::Unheard(_)) => {}
            Err(error @ PeerError::Busy(_)) => {
                if self.watch.escalation.is_warned() {
                    self.clear(round, policy, &error.to_string());
                }
            }
            Err(error) => {
                if now >= own.warned_from(policy) {
                    self.refuse(round, &own, policy, Refusal::Peers(error.to_string()));
                }
            }
        }
        None
    }

    /// Ignores samples from the time of an open breaker.
    pub(super) fn restart_window(&mut self, now: BootTime) {
        self.watch.restart_window(now, "a breaker was open");
    }

    /// Withdraws the report about this node's part of a job. Costs nothing if there is none.
    fn withdraw(&self, round: &mut Round) {
        if self.is_on_several_nodes() && round.node.shared.is_some() {
            let withdrawn = round.peers.withdraw(self.leases.first.job_id);
            round.report(topic::SHARED, withdrawn);
        }
    }
}
