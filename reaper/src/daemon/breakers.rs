//! The circuit breakers of the node and of the cluster: counts, opens, closes and announces them.

use super::Daemon;
use crate::act::mail::{self, Breach};
use crate::act::refusal::Refusal;
use crate::judge::breaker::{self, BreakerScope, LastOpen, UserCounts};
use crate::judge::peers::LeaseCount;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;

impl Daemon {
    /// Returns the time when a breaker was last open, here or on another node of the cluster, or the refusal if a
    /// breaker is open now. `users`: the leases of this node by user. `acts`: whether an action is due.
    pub(super) fn check_breakers(
        &mut self,
        users: UserCounts,
        now: BootTime,
        acts: bool,
    ) -> Result<Option<BootTime>, Refusal> {
        let interval = self.node.config.reaper.interval;
        let opened = self.state.opened.cluster;
        let own = LeaseCount::new(users.clone(), opened, self.outside.clock.as_ref());
        let told = self.peers.tell(own, now, interval);
        self.reports
            .report_once(&self.outside.log, Topic::Shared, told.err());
        // The counts of all nodes are read only if an action is due.
        let cluster = if acts || self.breakers.cluster { self.count_cluster() } else { Ok(None) };
        self.set_breaker(BreakerScope::Node, Some(&users));
        // A node that cannot read the counts must not close the breaker.
        if let Ok(count) = &cluster {
            let users = count.as_ref().map(|count| &count.users);
            self.set_breaker(BreakerScope::Cluster, users);
        }
        self.state.opened.update(self.breakers, now);
        if self.breakers.node {
            return Err(Refusal::Breaker(BreakerScope::Node));
        }
        if self.breakers.cluster {
            return Err(Refusal::Breaker(BreakerScope::Cluster));
        }
        let elsewhere = cluster?.and_then(|count| count.opened(self.outside.clock.as_ref()));
        let LastOpen { node, cluster } = self.state.opened;
        Ok(node.max(cluster).max(elsewhere))
    }

    /// The leases of all nodes; None without a shared folder.
    fn count_cluster(&mut self) -> Result<Option<LeaseCount>, Refusal> {
        let interval = self.node.config.reaper.interval;
        let count = self.peers.cluster(interval, self.outside.clock.unix_now());
        let error = count.as_ref().err();
        self.reports
            .report_once(&self.outside.log, Topic::Cluster, error);
        count.map_err(|_| Refusal::UncountedCluster)
    }

    /// Opens or closes a breaker; logs a change and informs the admins.
    fn set_breaker(&mut self, scope: BreakerScope, users: Option<&UserCounts>) {
        let limits = self.node.config.reaper.breaker;
        let too_many = users.filter(|users| breaker::is_open(&limits, scope, users));
        if !self.breakers.set(scope, too_many.is_some()) {
            return;
        }
        let name = scope.name();
        let Some(count) = too_many.map(UserCounts::total) else {
            self.outside.log.warning(format!(
                "circuit breaker closed on the {name}: warnings and reclaims go on, by samples from now on"
            ));
            return;
        };
        let share = breaker::share(&limits, scope);
        self.outside.log.error(format!(
            "circuit breaker open on the {name}: {} of {} slices look idle (limit {share} %); the telemetry is probably faulty. Warnings and reclaims are suspended until fewer slices look idle; look at the GPUs of this node (`gpufrac status`, `nvidia-smi`), or raise [reaper.breaker] {name}_share",
            count.stalled, count.leases
        ));
        let breach = Breach {
            node: self.node.name.clone(),
            cluster: scope == BreakerScope::Cluster,
            stalled: count.stalled,
            leases: count.leases,
            share,
            since_unix: self.outside.clock.unix_now(),
        };
        let mail = &self.node.config.reaper.mail;
        if let Some(message) = mail::breaker(&breach, mail) {
            self.mail_queue.send(mail, message);
        }
    }
}
