//! The choice of a place where instances of ended jobs are kept for the next ones.

use super::Side;
use super::parts::{Candidate, Layout, Occupied, Shape};
use crate::fraction::Units;

/// A kept instance, which a job may destroy.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    pub place: Occupied,
    /// Whether the job can take it over.
    pub own: bool,
}

/// What the driver has to do for a job, the least first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    TakeOver,
    Make,
    DestroyAndMake,
}

impl Layout {
    /// As [`Layout::place`], which takes no notice of kept instances, but with as little work for the driver as can
    /// be: the place of an instance that the job can take over, then one for which no kept instance is destroyed.
    /// Another place than that of [`Layout::place`] is chosen only for the same profile, so that kept instances cost
    /// no job its compute, and only if the proof visited the state to which it leads.
    pub fn place_beside(
        &self,
        side: Side,
        units: Units,
        occupied: &[Occupied],
        kept: &[Kept],
    ) -> Option<Candidate> {
        let shape = self.shape(side)?;
        let preferred = self.place(side, units, occupied)?;
        let beside = kept.iter().map(|kept| kept.place);
        let with_kept: Vec<Occupied> = occupied.iter().copied().chain(beside).collect();
        let work = |candidate: &Candidate| {
            let is_own = |kept: &Kept| kept.own && kept.place.as_candidate() == *candidate;
            if kept.iter().any(is_own) {
                Work::TakeOver
            } else if self.fits(shape, *candidate, &with_kept) {
                Work::Make
            } else {
                Work::DestroyAndMake
            }
        };
        let candidates = self.preference(side, units).iter().copied();
        let can_be_chosen = |candidate: &Candidate| {
            *candidate == preferred
                || (candidate.profile_id == preferred.profile_id
                    && self.fits(shape, *candidate, occupied)
                    && self.is_proven(shape, *candidate, occupied))
        };
        candidates.filter(can_be_chosen).min_by_key(work)
    }

    /// Whether the proof visited the state of a device with the candidate beside the occupied places.
    fn is_proven(&self, shape: &Shape, candidate: Candidate, occupied: &[Occupied]) -> bool {
        let here = occupied.iter().filter(|it| shape.holds(it.placement));
        let mut state: Vec<Candidate> = here.map(|it| it.as_candidate()).collect();
        state.push(candidate);
        state.sort_unstable();
        let mut proofs = self.proofs.iter();
        let proof = proofs.find(|proof| proof.side == shape.side);
        proof.is_some_and(|proof| proof.reached.contains(&state))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::fraction::Fraction;
    use crate::geometry::{Geometry, Placement};
    use crate::layout::LayoutKind;

    fn at(profile_id: u32, start: u8, size: u8) -> Occupied {
        Occupied {
            profile_id,
            placement: Placement { start, size },
        }
    }

    fn occupied(candidate: Candidate) -> Occupied {
        Occupied {
            profile_id: candidate.profile_id,
            placement: candidate.placement,
        }
    }

    #[test]
    fn a_kept_instance_is_taken_over_or_stays_where_another_place_is_free() {
        let geometry = Geometry::builtin("H100-80").unwrap();
        let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
        let start = |units, occupied: &[Occupied], kept: &[Kept]| {
            let place = layout.place_beside(Side::Left, Units(units), occupied, kept);
            place.map(|place| place.placement.start)
        };
        let (first, second) = (at(14, 2, 2), at(14, 0, 2));
        let [others, own] = [false, true].map(|own| move |place| Kept { place, own });
        assert_eq!(start(25, &[], &[]), Some(2));
        // Another user's instance stands at the preferred place.
        assert_eq!(start(25, &[], &[others(first)]), Some(0));
        // The user's own stands at the second one.
        assert_eq!(start(25, &[], &[others(first), own(second)]), Some(0));
        // There is no place without a kept instance.
        let both = [others(first), others(second)];
        assert_eq!(start(25, &[], &both), Some(2));
        assert_eq!(start(50, &[], &both), Some(0));
        // The only place that is left belongs to a kept instance.
        assert_eq!(start(25, &[second], &[others(first)]), Some(2));
    }

    #[test]
    fn a_kept_instance_costs_no_job_its_compute() {
        let geometry = Geometry::builtin("H100-80").unwrap();
        let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
        // The right half has one 2g, at 4; the other quarter there is a 1g with the memory of two slices, at 6.
        let (two, one) = (at(14, 4, 2), at(15, 6, 2));
        for (place, own) in [(two, false), (one, true)] {
            let kept = [Kept { place, own }];
            let place = layout.place_beside(Side::Right, Units(25), &[], &kept);
            assert_eq!(place.map(occupied), Some(two));
        }
    }

    /// The layouts of each model, as far as it has them.
    static LAYOUTS: LazyLock<Vec<Layout>> = LazyLock::new(|| {
        let size = |text: &str| Fraction::parse(text).unwrap();
        let mut layouts = Vec::new();
        for model in Geometry::builtin_names() {
            let geometry = Geometry::builtin(model).unwrap();
            for equal in [false, true] {
                let mut solve = |kind, menu: &[&str]| {
                    let menu: Vec<Fraction> = menu.iter().copied().map(size).collect();
                    layouts.extend(Layout::solve(&geometry, kind, &menu, equal));
                };
                for menu in [&[][..], &["0.25"], &["0.125", "0.25"], &["0.125", "0.5"]] {
                    solve(LayoutKind::Halves, menu);
                }
                solve(LayoutKind::Slices, &[]);
                for one in ["0.5", "0.25", "0.125", "1/7"] {
                    solve(LayoutKind::Uniform, &[one]);
                }
            }
        }
        layouts
    });

    proptest! {
        /// Promise (placement): whichever instances are kept, each request that the count admits has a place, with the
        /// profile that it would have without them.
        #[test]
        fn a_place_is_left_whatever_is_kept(
            steps in prop::collection::vec((any::<Index>(), any::<u8>(), any::<u16>()), 1..60),
            (which, side) in any::<(Index, Index)>(),
        ) {
            let layout = which.get(&LAYOUTS);
            let side = *side.get(&layout.sides);
            let mut running: Vec<(u32, Candidate)> = Vec::new();
            let mut kept: Vec<Occupied> = Vec::new();
            for (index, action, owned) in steps {
                if action % 3 == 0 && !running.is_empty() {
                    let (_, left) = running.remove(index.index(running.len()));
                    kept.push(occupied(left));
                    continue;
                }
                let units = index.get(&layout.menu).units;
                let used: u32 = running.iter().map(|(units, _)| units).sum();
                if used + units.0 > layout.capacity.0 {
                    continue;
                }
                let standing: Vec<Occupied> = running.iter().map(|(_, it)| occupied(*it)).collect();
                let is_own = |position| owned >> (position % 16) & 1 == 1;
                let beside = kept.iter().enumerate();
                let beside = beside.map(|(position, it)| Kept { place: *it, own: is_own(position) });
                let beside: Vec<Kept> = beside.collect();
                let place = layout.place_beside(side, units, &standing, &beside);
                let place = place.expect("a place for what the count admits");
                let without = layout.place(side, units, &standing).expect("the same");
                prop_assert_eq!(place.profile_id, without.profile_id);
                prop_assert!(layout.has_room(side, place, &standing));
                kept.retain(|it| !it.placement.overlaps(place.placement));
                running.push((units.0, place));
            }
        }
    }
}
