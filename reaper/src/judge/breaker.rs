//! The circuit breaker: if too many slices look idle at once, the telemetry is probably faulty. Idle slices of a
//! single user are no sign of this, because faulty telemetry makes the slices of all users look idle.

use std::collections::BTreeMap;

use gpufrac_core::ids::UserId;
use gpufrac_core::policy::Breaker;
use serde::{Deserialize, Serialize};

use gpufrac_node::clock::BootTime;

/// The leases that a breaker counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    Node,
    Cluster,
}

impl BreakerScope {
    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            BreakerScope::Node => "node",
            BreakerScope::Cluster => "cluster",
        }
    }
}

/// The state of the breakers: true if open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakers {
    /// The breaker of this node.
    pub node: bool,
    /// The breaker of the cluster, as this node sees it.
    pub cluster: bool,
    pub last: LastOpen,
}

impl Breakers {
    /// Opens or closes a breaker. Returns whether its state changed.
    pub fn set(&mut self, scope: BreakerScope, open: bool) -> bool {
        let breaker = match scope {
            BreakerScope::Node => &mut self.node,
            BreakerScope::Cluster => &mut self.cluster,
        };
        std::mem::replace(breaker, open) != open
    }

    /// Notes the time for the breakers that are open now.
    pub fn note(&mut self, now: BootTime) {
        if self.node {
            self.last.node = Some(now);
        }
        if self.cluster {
            self.last.cluster = Some(now);
        }
    }
}

/// The times when the breakers were last open. In a file: the time for the node, then that for the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[Option<BootTime>; 2]", into = "[Option<BootTime>; 2]")]
pub struct LastOpen {
    /// The breaker of this node.
    pub node: Option<BootTime>,
    /// The breaker of the cluster.
    pub cluster: Option<BootTime>,
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

/// The number of leases, and of those whose job was warned or is due for a warning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    pub leases: u32,
    /// Leases that look stalled.
    pub stalled: u32,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.leases = self.leases.saturating_add(other.leases);
        self.stalled = self.stalled.saturating_add(other.stalled);
    }

    fn without(self, other: Count) -> Count {
        Count {
            leases: self.leases.saturating_sub(other.leases),
            stalled: self.stalled.saturating_sub(other.stalled),
        }
    }

    /// Whether more than `share` percent look stalled.
    fn is_over(self, share: u8) -> bool {
        u64::from(self.stalled) * 100 > u64::from(share) * u64::from(self.leases)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserCounts(BTreeMap<UserId, Count>);

impl UserCounts {
    pub fn add(&mut self, user: UserId, count: Count) {
        self.0.entry(user).or_default().add(count);
    }

    pub fn merge(&mut self, others: UserCounts) {
        for (user, count) in others.0 {
            self.add(user, count);
        }
    }

    /// The sum of all users.
    pub fn total(&self) -> Count {
        self.0.values().fold(Count::default(), |mut sum, count| {
            sum.add(*count);
            sum
        })
    }
}

/// Whether a breaker is open: so many leases look stalled that nothing may be reclaimed.
///
/// If several users have leases, the limit must also be exceeded without the leases of any one user. Otherwise a user
/// could open the breaker with idle slices of one account, and so keep all idle slices. In the cluster the other
/// users must have enough leases by themselves, so that one more idle slice does not help. On a node only two users
/// may have leases; if none of their slices looks used, nothing shows that the telemetry works.
pub fn is_open(limits: &Breaker, scope: BreakerScope, counts: &UserCounts) -> bool {
    let share = share(limits, scope);
    let total = counts.total();
    let least_of_others = match scope {
        BreakerScope::Node => 1,
        BreakerScope::Cluster => limits.least,
    };
    let shows_without = |own: &Count| {
        let others = total.without(*own);
        others.leases == 0 || others.stalled >= least_of_others && others.is_over(share)
    };
    total.stalled >= limits.least && total.is_over(share) && counts.0.values().all(shows_without)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Breaker = Breaker {
        node_share: 50,
        cluster_share: 10,
        least: 3,
    };

    /// The counts of users 1, 2, ...: stalled leases, all leases.
    fn counts(users: &[(u32, u32)]) -> UserCounts {
        let mut counts = UserCounts::default();
        for (user, (stalled, leases)) in (1..).zip(users) {
            let (leases, stalled) = (*leases, *stalled);
            counts.add(UserId(user), Count { leases, stalled });
        }
        counts
    }

    fn open(scope: BreakerScope, users: &[(u32, u32)]) -> bool {
        is_open(&LIMITS, scope, &counts(users))
    }

    #[test]
    fn a_breaker_opens_above_its_share_and_not_for_few_slices() {
        let alone = |scope, stalled, leases| open(scope, &[(stalled, leases)]);
        assert!(!alone(BreakerScope::Node, 2, 2));
        assert!(!alone(BreakerScope::Node, 3, 6));
        assert!(alone(BreakerScope::Node, 3, 5));
        assert!(!alone(BreakerScope::Cluster, 10, 100));
        assert!(alone(BreakerScope::Cluster, 11, 100));
        assert!(!alone(BreakerScope::Node, 0, 0));
    }

    #[test]
    fn one_user_does_not_open_it_for_others() {
        // All slices of one user are idle; those of others are not, or very few.
        assert!(!open(BreakerScope::Cluster, &[(900, 900), (0, 100)]));
        assert!(!open(BreakerScope::Cluster, &[(900, 900), (10, 100)]));
        assert!(!open(BreakerScope::Cluster, &[(900, 900), (2, 2)]));
        assert!(!open(BreakerScope::Node, &[(6, 6), (0, 1)]));
        assert!(!open(BreakerScope::Node, &[(6, 6), (1, 2)]));
        // The slices of all users look idle.
        assert!(open(BreakerScope::Cluster, &[(9, 9), (8, 8)]));
        assert!(open(BreakerScope::Cluster, &[(900, 900), (11, 100)]));
        assert!(open(BreakerScope::Node, &[(6, 6), (1, 1)]));
        assert!(open(BreakerScope::Node, &[(1, 1), (1, 1), (1, 1)]));
    }

    #[test]
    fn counts_of_nodes_are_added_by_user_and_kept_as_text() {
        let mut sum = counts(&[(1, 2), (0, 3)]);
        sum.merge(counts(&[(2, 2)]));
        assert_eq!(sum, counts(&[(3, 4), (0, 3)]));
        let text = serde_json::to_string(&sum).unwrap();
        assert_eq!(
            text,
            r#"{"1":{"leases":4,"stalled":3},"2":{"leases":3,"stalled":0}}"#
        );
        assert_eq!(serde_json::from_str::<UserCounts>(&text).unwrap(), sum);
        // Counts in a file may be wrong, so the sum must not overflow.
        sum.merge(counts(&[(u32::MAX, u32::MAX)]));
        assert_eq!(sum.total().leases, u32::MAX);
    }

    proptest! {
        /// Promise (reaper): one user's idle slices open no breaker for others.
        /// With `idle_slices_of_one_user_do_not_open_the_breaker`, `one_user_does_not_open_the_breaker_of_the_cluster`.
        // Idle slices of one user never open a breaker that the slices of others do not open.
        #[test]
        fn idle_slices_of_one_user_never_open_it(
            users in proptest::collection::vec((0_u32..20, 0_u32..20), 1..6),
            own in 0_u32..2000,
            node in any::<bool>(),
        ) {
            let scope = if node { BreakerScope::Node } else { BreakerScope::Cluster };
            let users: Vec<_> = users.iter().map(|(stalled, used)| (*stalled, stalled + used)).collect();
            let limits = Breaker { least: 1, ..LIMITS };
            let others = counts(&users).total();
            prop_assume!(others.leases > 0 && !others.is_over(share(&limits, scope)));
            let with = [&users[..], &[(own, own)]].concat();
            prop_assert!(!is_open(&limits, scope, &counts(&with)));
        }

        /// Faulty telemetry, by which every slice looks idle, opens the breaker for any distribution of users.
        #[test]
        fn the_breaker_opens_when_all_slices_look_idle(users in proptest::collection::vec(3_u32..50, 1..6), node in any::<bool>()) {
            let scope = if node { BreakerScope::Node } else { BreakerScope::Cluster };
            let users: Vec<_> = users.iter().map(|leases| (*leases, *leases)).collect();
            prop_assert!(open(scope, &users));
        }
    }
}
