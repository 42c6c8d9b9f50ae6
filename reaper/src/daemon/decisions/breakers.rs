//! The circuit breakers of the node and of the cluster: counts, opens, closes and announces them.

use gpufrac_node::clock::BootTime;

use super::Decisions;
use crate::act::mail::{self, Message};
use crate::act::refusal::Refusal;
use crate::judge::breaker::{self, BreakerScope, LastOpen, UserCounts};
use crate::judge::peers::LeaseCount;
use crate::report::errors::topic;
use crate::round::Round;

/// The time when a breaker was last open, here or on another node of the cluster, or the refusal if a breaker is open
/// now.
pub(crate) type Closed = Result<Option<BootTime>, Refusal>;

impl Decisions {
    /// `users`: the leases of this node by user. `acts`: whether an action is due. `mails` gets messages to the admins.
    pub(super) fn check_breakers(
        &mut self,
        round: &mut Round,
        users: UserCounts,
        now: BootTime,
        acts: bool,
        mails: &mut Vec<Message>,
    ) -> Closed {
        let interval = round.interval();
        let clock = round.outside.clock.as_ref();
        let own = LeaseCount::new(users.clone(), self.breakers.last.cluster, clock);
        let told = round.peers.write_counts(own, now, interval);
        round.report(topic::SHARED, told);
        // The counts of all nodes are read only if an action is due.
        let cluster = if acts || self.breakers.cluster {
            let count = round
                .peers
                .cluster(interval, round.outside.clock.unix_now());
            round.report(topic::CLUSTER, count.as_ref());
            count.map_err(|_| Refusal::UncountedCluster)
        } else {
            Ok(None)
        };
        mails.extend(self.set_breaker(round, BreakerScope::Node, Some(&users)));
        // A node that cannot read the counts must not close the breaker.
        if let Ok(count) = &cluster {
            let users = count.as_ref().map(|count| &count.users);
            mails.extend(self.set_breaker(round, BreakerScope::Cluster, users));
        }
        self.breakers.note(now);
        if self.breakers.node {
            return Err(Refusal::Breaker(BreakerScope::Node));
        }
        if self.breakers.cluster {
            return Err(Refusal::Breaker(BreakerScope::Cluster));
        }
        let elsewhere = cluster?.and_then(|count| count.opened(round.outside.clock.as_ref()));
        let LastOpen { node, cluster } = self.breakers.last;
        Ok(node.max(cluster).max(elsewhere))
    }

    /// Opens or closes a breaker, and logs a change. Returns the message to the admins.
    fn set_breaker(
        &mut self,
        round: &Round,
        scope: BreakerScope,
        users: Option<&UserCounts>,
    ) -> Option<Message> {
        let limits = round.settings().breaker;
        let too_many = users.filter(|users| breaker::is_open(&limits, scope, users));
        if !self.breakers.set(scope, too_many.is_some()) {
            return None;
        }
        let name = scope.name();
        let Some(count) = too_many.map(UserCounts::total) else {
            round.outside.log.warning(format!(
                "circuit breaker closed on the {name}: warnings and reclaims go on, by samples from now on"
            ));
            return None;
        };
        let share = breaker::share(&limits, scope);
        round.outside.log.error(format!(
            "circuit breaker open on the {name}: {} of {} slices look idle (limit {share} %); the telemetry is probably faulty. Warnings and reclaims are suspended until fewer slices look idle; look at the GPUs of this node (`gpufrac status`, `nvidia-smi`), or raise [reaper.breaker] {name}_share",
            count.stalled, count.leases
        ));
        let (node, now) = (&round.node.name, round.outside.clock.unix_now());
        mail::breaker(node, scope, count, share, now, &round.settings().mail)
    }
}
