//! Too many slices that look idle at once are rather a sign of broken telemetry.

use gpufrac_core::policy::Breaker;

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

/// Whether nothing may be reaped.
pub fn is_open(breaker: &Breaker, scope: BreakerScope, count: LeaseCount) -> bool {
    let share = match scope {
        BreakerScope::Node => breaker.node_share,
        BreakerScope::Cluster => breaker.cluster_share,
    };
    count.stalled >= breaker.least
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
