//! Too many slices that look idle at once are rather a sign of broken telemetry.

use gpufrac_core::policy::Breaker;

use crate::judge::peers::Count;

/// Which leases are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of this node.
    Node,
    /// Those of all nodes.
    Cluster,
}

impl Scope {
    /// The word in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Node => "node",
            Scope::Cluster => "cluster",
        }
    }
}

/// Whether nothing may be reaped.
pub fn is_open(breaker: &Breaker, scope: Scope, count: Count) -> bool {
    let share = match scope {
        Scope::Node => breaker.node_share,
        Scope::Cluster => breaker.cluster_share,
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
                Count::new(leases, stalled, None, &SystemClock),
            )
        };
        assert!(!open(Scope::Node, 2, 2));
        assert!(!open(Scope::Node, 3, 6));
        assert!(open(Scope::Node, 3, 5));
        assert!(!open(Scope::Cluster, 10, 100));
        assert!(open(Scope::Cluster, 11, 100));
        assert!(!open(Scope::Node, 0, 0));
    }
}
