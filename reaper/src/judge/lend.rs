//! Which jobs may have the idle compute of their neighbours by HAMi-core now.

use gpufrac_core::lease::{Lease, LeaseState};

/// The active leases whose jobs asked for a burst, and whether their limits are to hold: they do as long as a neighbour
/// is not known to be idle. `is_idle`: whether that was seen of a lease just now. A lease that is being made or ended
/// has a job that may compute.
pub fn borrowers(
    leases: &[Lease],
    is_idle: impl Fn(&Lease) -> bool,
) -> impl Iterator<Item = (&Lease, bool)> {
    let borrows = |lease: &&Lease| {
        let hami = lease.slice.hami();
        lease.state == LeaseState::Active && hami.is_some_and(|hami| hami.burst)
    };
    leases.iter().filter(borrows).map(move |lease| {
        let mut neighbours = leases
            .iter()
            .filter(|other| other.slice.gpu_uuid == lease.slice.gpu_uuid && !other.is_same(lease));
        let limited = neighbours.any(|other| other.state != LeaseState::Active || !is_idle(other));
        (lease, limited)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    const HAMI: &str = include_str!("../../../lib/core/tests/leases/version-4-hami-burst");

    /// On a GPU, with or without a burst.
    fn lease(job: u32, gpu: &str, burst: bool) -> Lease {
        let mut lease = Lease::parse(HAMI).unwrap();
        lease.job_id.0 = job;
        lease.slice.gpu_uuid = gpu.to_owned();
        let gpufrac_core::lease::Held::Hami(Some(hami)) = &mut lease.slice.held else {
            panic!("{lease:?}")
        };
        hami.burst = burst;
        lease
    }

    /// Jobs, and whether their limits hold.
    fn limits(leases: &[Lease], idle: &[u32]) -> Vec<(u32, bool)> {
        borrowers(leases, |lease| idle.contains(&lease.job_id.0))
            .map(|(lease, limited)| (lease.job_id.0, limited))
            .collect()
    }

    /// Promise (users): HAMi-core's limit is lifted while all other jobs on the GPU are idle; otherwise, and without
    /// the daemon, it applies.
    /// With `two_borrowers_that_both_compute_have_their_shares`, `the_switch_alone_is_written`,
    /// `a_file_of_another_kind_stays_as_it_is`, `hami_core_limits_a_borrower_only_while_its_neighbour_computes`.
    #[test]
    fn a_limit_is_lifted_only_while_all_neighbours_are_idle() {
        let leases = [
            lease(1, "GPU-a", true),
            lease(2, "GPU-a", false),
            lease(3, "GPU-a", false),
            lease(4, "GPU-b", true),
        ];
        // Whether the borrower itself is idle does not matter, nor do jobs of another GPU.
        for own in [&[][..], &[1], &[4]] {
            let with = |others: &[u32]| limits(&leases, &[own, others].concat());
            assert_eq!(with(&[2, 3]), [(1, false), (4, false)]);
            assert_eq!(with(&[2]), [(1, true), (4, false)]);
            assert_eq!(with(&[]), [(1, true), (4, false)]);
        }
    }

    #[test]
    fn two_borrowers_that_both_compute_have_their_shares() {
        let leases = [lease(1, "GPU-a", true), lease(2, "GPU-a", true)];
        assert_eq!(limits(&leases, &[]), [(1, true), (2, true)]);
        assert_eq!(limits(&leases, &[2]), [(1, false), (2, true)]);
        assert_eq!(limits(&leases, &[1, 2]), [(1, false), (2, false)]);
    }

    #[test]
    fn a_lease_that_begins_or_ends_counts_as_busy() {
        for state in [LeaseState::Carving, LeaseState::Releasing] {
            let mut other = lease(2, "GPU-a", false);
            other.state = state;
            let leases = [lease(1, "GPU-a", true), other];
            assert_eq!(limits(&leases, &[2]), [(1, true)]);
        }
        // Nor has a lease that is not active a limit to lift.
        let mut own = lease(1, "GPU-a", true);
        own.state = LeaseState::Releasing;
        assert_eq!(limits(&[own], &[]), []);
    }
}
