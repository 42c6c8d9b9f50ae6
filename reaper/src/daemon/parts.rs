//! Jobs on several nodes: each node reports for how long its part is stalled; the job's first node decides.

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::Policy;

use super::Daemon;
use super::watched::WatchedJob;
use crate::act::refusal::Refusal;
use crate::judge::peers::PeerError;
use crate::judge::stall::Stalled;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

impl Daemon {
    /// The stall of a job that may run on several nodes, as long as on the node where it is shortest. None if another
    /// node decides, or if not all nodes report a stall.
    pub(super) fn of_all_nodes(
        &mut self,
        job: JobId,
        own: Stalled,
        policy: &Policy,
        now: BootTime,
    ) -> Option<Stalled> {
        let interval = self.node.config.reaper.interval;
        let watched = self.watched.get(&job)?;
        let key = watched.watch.key;
        let is_due = now + interval * LONGEST_GAP_ROUNDS >= own.warned_from(policy);
        if !watched.is_on_several_nodes() {
            return Some(own);
        }
        if !self.breakers.node && self.state.opened.node.is_some_and(|open| own.since <= open) {
            // The other nodes must not act on the old report.
            self.restart_window(job, now);
            self.withdraw(job);
            return None;
        }
        let length = now.since(own.since);
        if !is_due && !watched.watch.escalation.is_warned() {
            self.withdraw(job);
            return None;
        }
        let nodes = watched.job.as_ref()?.nodes.clone();
        let claimed = if self.breakers.node {
            self.peers.withdraw(job)
        } else {
            self.peers.claim(key, length, now)
        };
        let answer = claimed.and_then(|()| {
            // Reports are valid for two rounds, because the file system of the folder may cache files.
            self.peers
                .stalled(key, &nodes, length, now, interval * LONGEST_GAP_ROUNDS * 2)
        });
        match answer {
            Ok(shortest) => Some(Stalled {
                since: now.before(shortest),
                ..own
            }),
            Err(PeerError::Follower(_) | PeerError::Unheard(_)) => None,
            Err(error @ PeerError::Busy(_)) => {
                if self.watched.get(&job)?.watch.escalation.is_warned() {
                    self.clear(job, policy, &error.to_string());
                }
                None
            }
            Err(error) => {
                if now >= own.warned_from(policy) {
                    self.refuse(job, &own, policy, Refusal::Peers(error.to_string()));
                }
                None
            }
        }
    }

    /// Ignores earlier samples, such as those from the time of an open breaker.
    pub(super) fn restart_window(&mut self, job: JobId, now: BootTime) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.watch.restart_window(now, "a breaker was open");
        }
    }

    /// Withdraws the report about this node's part of a job. Costs nothing if there is none.
    pub(super) fn withdraw(&mut self, job: JobId) {
        let on_several = self
            .watched
            .get(&job)
            .is_some_and(WatchedJob::is_on_several_nodes);
        if on_several && self.node.shared.is_some() {
            let withdrawn = self.peers.withdraw(job);
            self.reports
                .report_once(&self.outside.log, Topic::Shared, withdrawn.err());
        }
    }
}
