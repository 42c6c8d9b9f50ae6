//! Too many slices that look idle at once are rather a sign of broken telemetry.

use gpufrac_core::policy::Breaker;
use serde::{Deserialize, Serialize};

use crate::clock::BootTime;
use crate::judge::peers::LeaseCount;

/// Which leases are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    /// Those of this node.
    Node,
    /// Those of all nodes.
    Cluster,
}

impl BreakerScope {
    /// The word in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            BreakerScope::Node => "node",
            BreakerScope::Cluster => "cluster",
        }
    }
}

/// Which breakers are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakers {
    /// That of this node.
    pub node: bool,
    /// That of the cluster, as this node sees it.
    pub cluster: bool,
}

impl Breakers {
    /// Opens or closes a breaker. Says whether that changed it.
    pub fn set(&mut self, scope: BreakerScope, open: bool) -> bool {
        let breaker = match scope {
            BreakerScope::Node => &mut self.node,
            BreakerScope::Cluster => &mut self.cluster,
        };
        std::mem::replace(breaker, open) != open
    }
}

/// When each breaker was last seen open. In a file: the time of the node, then that of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[Option<BootTime>; 2]", into = "[Option<BootTime>; 2]")]
pub struct LastOpen {
    /// The breaker of this node.
    pub node: Option<BootTime>,
    /// The breaker of the cluster.
    pub cluster: Option<BootTime>,
}

impl LastOpen {
    /// Takes in which breakers are open now.
    pub fn update(&mut self, breakers: Breakers, now: BootTime) {
        if breakers.node {
            self.node = Some(now);
        }
        if breakers.cluster {
            self.cluster = Some(now);
        }
    }
}

impl From<[Option<BootTime>; 2]> for LastOpen {
    fn from([node, cluster]: [Option<BootTime>; 2]) -> LastOpen {
        LastOpen { node, cluster }
    }
}

impl From<LastOpen> for [Option<BootTime>; 2] {
    fn from(times: LastOpen) -> [Option<BootTime>; 2] {
        [times.node, times.cluster]
    }
}

/// Percent of the leases above which a breaker opens.
pub fn share(limits: &Breaker, scope: BreakerScope) -> u8 {
    match scope {
        BreakerScope::Node => limits.node_share,
        BreakerScope::Cluster => limits.cluster_share,
    }
}

/// Whether so many leases are stalled that nothing may be reaped.
pub fn is_open(limits: &Breaker, scope: BreakerScope, count: LeaseCount) -> bool {
    let share = share(limits, scope);
    count.stalled >= limits.least
        && u64::from(count.stalled) * 100 > u64::from(share) * u64::from(count.leases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn it_opens_above_the_share_and_not_for_a_few() {
        let breaker = Breaker {
            node_share: 50,
            cluster_share: 10,
            least: 3,
        };
        let open = |scope, stalled, leases| {
            is_open(
                &breaker,
                scope,
                LeaseCount::new(leases, stalled, None, &SystemClock),
            )
        };
        assert!(!open(BreakerScope::Node, 2, 2));
        assert!(!open(BreakerScope::Node, 3, 6));
        assert!(open(BreakerScope::Node, 3, 5));
        assert!(!open(BreakerScope::Cluster, 10, 100));
        assert!(open(BreakerScope::Cluster, 11, 100));
        assert!(!open(BreakerScope::Node, 0, 0));
    }
}
