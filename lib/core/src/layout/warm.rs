//! The choice of a place where instances of ended jobs are kept for the next ones.

use super::Side;
use super::parts::{Candidate, Layout, Occupied, Shape};
use crate::fraction::Units;

/// The kept instances of a GPU. A job may destroy any of them.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub all: &'a [Occupied],
    /// Those that the job can take over.
    pub own: &'a [Occupied],
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
    /// Another place than that of [`Layout::place`] is chosen only if the proof visited the state to which it leads.
    #[must_use]
    pub fn place_beside(
        &self,
        side: Side,
        units: Units,
        occupied: &[Occupied],
        kept: Kept<'_>,
    ) -> Option<Candidate> {
        let shape = self.shape(side)?;
        let preferred = self.place(side, units, occupied)?;
        let with_kept: Vec<Occupied> = occupied.iter().chain(kept.all).copied().collect();
        let work = |candidate: &Candidate| {
            let is_there = |own: &Occupied| {
                (own.profile_id, own.placement) == (candidate.profile_id, candidate.placement)
            };
            if kept.own.iter().any(is_there) {
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
                || (self.fits(shape, *candidate, occupied)
                    && self.is_proven(shape, *candidate, occupied))
        };
        candidates.filter(can_be_chosen).min_by_key(work)
    }

    /// Whether the proof visited the state of a device with the candidate beside the occupied places.
    fn is_proven(&self, shape: &Shape, candidate: Candidate, occupied: &[Occupied]) -> bool {
        let here = occupied.iter().filter(|it| shape.holds(it.placement));
        let mut state: Vec<Candidate> = here
            .map(|it| Candidate {
                profile_id: it.profile_id,
                placement: it.placement,
            })
            .collect();
        state.push(candidate);
        state.sort_unstable();
        let mut proofs = self.proofs.iter();
        let proof = proofs.find(|proof| proof.side == shape.side);
        proof.is_some_and(|proof| proof.reached.contains(&state))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::{Geometry, Placement};
    use crate::layout::LayoutKind;

    const NONE: Kept<'_> = Kept { all: &[], own: &[] };

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
        let start = |units, occupied: &[Occupied], kept: Kept<'_>| {
            let place = layout.place_beside(Side::Left, Units(units), occupied, kept);
            place.map(|place| place.placement.start)
        };
        let (first, second) = (at(14, 2, 2), at(14, 0, 2));
        assert_eq!(start(25, &[], NONE), Some(2));
        // Another user's instance stands at the preferred place.
        let others = Kept {
            all: &[first],
            own: &[],
        };
        assert_eq!(start(25, &[], others), Some(0));
        // The user's own stands at the second one.
        let own = Kept {
            all: &[first, second],
            own: &[second],
        };
        assert_eq!(start(25, &[], own), Some(0));
        // There is no place without a kept instance.
        let all = Kept {
            all: &[first, second],
            own: &[],
        };
        assert_eq!(start(25, &[], all), Some(2));
        assert_eq!(start(50, &[], all), Some(0));
        // The only place that is left belongs to a kept instance.
        assert_eq!(start(25, &[second], others), Some(2));
    }

    /// Every layout of every model, as far as it has one.
    fn layouts() -> Vec<Layout> {
        let mut layouts = Vec::new();
        for model in Geometry::builtin_names() {
            let geometry = Geometry::builtin(model).unwrap();
            for kind in [LayoutKind::Halves, LayoutKind::Slices, LayoutKind::Uniform] {
                for menu in ["0.5", "0.25", "0.125", "1/7"] {
                    let size = crate::fraction::Fraction::parse(menu).unwrap();
                    let menu = if kind == LayoutKind::Uniform { vec![size] } else { Vec::new() };
                    layouts.extend(Layout::solve(&geometry, kind, &menu, false));
                }
            }
        }
        layouts
    }

    proptest! {
        /// Promise (placement): whichever instances are kept, each request that the count admits has a place.
        #[test]
        fn a_place_is_left_whatever_is_kept(
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u16>()), 1..60),
            which in any::<prop::sample::Index>(),
        ) {
            let layouts = layouts();
            let layout = which.get(&layouts);
            let side = layout.sides[0];
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
                let is_own = |(position, _): &(usize, &Occupied)| owned >> (position % 16) & 1 == 1;
                let own: Vec<Occupied> = kept.iter().enumerate().filter(is_own).map(|(_, it)| *it).collect();
                let beside = Kept { all: &kept, own: &own };
                let place = layout.place_beside(side, units, &standing, beside);
                let place = place.expect("a place for what the count admits");
                prop_assert!(layout.has_room(side, place, &standing));
                kept.retain(|it| !it.placement.overlaps(place.placement));
                running.push((units.0, place));
            }
        }
    }
}
