//! The proof that Slurm's count is enough.
//!
//! A device starts empty. From each state, every menu entry whose units fit by counting must find a position by
//! preference, which leads to the next state; and each instance may end at any time, which leads to another state.
//! The walk visits all states that can be reached, breadth first, so that a state that breaks the layout is one of
//! the smallest such states.

use std::collections::{BTreeSet, VecDeque};

use super::error::{Counterexample, LayoutError};
use super::parts::{Candidate, Layout, Occupied, Proof, Shape};
use crate::fraction::Units;
use crate::geometry::{Geometry, Placement};

/// The most states of a device that are visited; no useful menu has more.
const MAX_STATES: usize = 100_000;

/// The instances on a device, sorted; each with the index of its menu entry.
type Instances = Vec<(usize, Candidate)>;

/// Proves every device of the layout, and that the devices of a GPU are independent.
pub(super) fn prove(layout: &Layout, geometry: &Geometry) -> Result<Vec<Proof>, LayoutError> {
    let proofs = layout
        .shapes
        .iter()
        .map(|shape| walk(layout, shape, geometry))
        .collect::<Result<Vec<Proof>, LayoutError>>()?;
    independence(layout, &proofs, geometry)?;
    Ok(proofs)
}

fn walk(layout: &Layout, shape: &Shape, geometry: &Geometry) -> Result<Proof, LayoutError> {
    let mut seen: BTreeSet<Instances> = BTreeSet::from([Instances::new()]);
    let mut queue: VecDeque<Instances> = VecDeque::from([Instances::new()]);
    let mut arrivals = 0;
    let mut most_instances: Vec<(u32, u32)> = Vec::new();
    while let Some(state) = queue.pop_front() {
        note_instances(&state, &mut most_instances);
        let used: u32 = state.iter().map(|(i, _)| layout.menu[*i].units.0).sum();
        let free = layout.capacity.0.saturating_sub(used);
        let occupied: Vec<Occupied> = state
            .iter()
            .map(|(_, candidate)| Occupied {
                profile_id: candidate.profile_id,
                placement: candidate.placement,
            })
            .collect();
        let mut next: Vec<Instances> = Vec::new();
        for (position, entry) in layout.menu.iter().enumerate() {
            if entry.units.0 > free {
                continue;
            }
            arrivals += 1;
            let candidate = shape.preferences[position]
                .iter()
                .copied()
                .find(|candidate| layout.fits(shape, *candidate, &occupied))
                .ok_or_else(|| LayoutError::Unsafe {
                    model: geometry.model.clone(),
                    counterexample: counterexample(layout, shape, geometry, &state, position, free),
                })?;
            let mut grown = state.clone();
            grown.push((position, candidate));
            grown.sort_unstable();
            next.push(grown);
        }
        for leaving in 0..state.len() {
            let mut shrunk = state.clone();
            shrunk.remove(leaving);
            next.push(shrunk);
        }
        for state in next {
            if seen.insert(state.clone()) {
                queue.push_back(state);
            }
        }
        if seen.len() > MAX_STATES {
            return Err(LayoutError::TooManyStates {
                model: geometry.model.clone(),
                limit: MAX_STATES,
            });
        }
    }
    Ok(Proof {
        side: shape.side,
        states: seen.len(),
        arrivals,
        most_instances,
        reached: reached(shape, seen),
    })
}

/// The states without the sizes that were asked for; none where two sizes can have the same instance, because then the
/// instances of a state do not tell how many units are left.
fn reached(shape: &Shape, seen: BTreeSet<Instances>) -> BTreeSet<Vec<Candidate>> {
    let all: Vec<&Candidate> = shape.preferences.iter().flatten().collect();
    let each: BTreeSet<&Candidate> = all.iter().copied().collect();
    if each.len() < all.len() {
        return BTreeSet::new();
    }
    let instances = |state: Instances| {
        let mut instances: Vec<Candidate> = state.into_iter().map(|(_, it)| it).collect();
        instances.sort_unstable();
        instances
    };
    seen.into_iter().map(instances).collect()
}

fn note_instances(state: &Instances, most: &mut Vec<(u32, u32)>) {
    let mut counts: Vec<(u32, u32)> = Vec::new();
    for (_, candidate) in state {
        match counts
            .iter_mut()
            .find(|(id, _)| *id == candidate.profile_id)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((candidate.profile_id, 1)),
        }
    }
    for (id, count) in counts {
        match most.iter_mut().find(|(known, _)| *known == id) {
            Some((_, greatest)) => *greatest = count.max(*greatest),
            None => most.push((id, count)),
        }
    }
}

fn counterexample(
    layout: &Layout,
    shape: &Shape,
    geometry: &Geometry,
    state: &Instances,
    position: usize,
    free: u32,
) -> Counterexample {
    let named = |candidate: &Candidate| -> (String, Placement) {
        let name = geometry
            .profile(candidate.profile_id)
            .map_or_else(String::new, |profile| profile.name.clone());
        (name, candidate.placement)
    };
    let entry = &layout.menu[position];
    let mut instances: Vec<(String, Placement)> = state.iter().map(|(_, c)| named(c)).collect();
    instances.sort_by_key(|(_, placement)| *placement);
    Counterexample {
        side: shape.side,
        instances,
        request: entry.fraction,
        units: entry.units,
        free: Units(free),
        positions: shape.preferences[position].iter().map(named).collect(),
    }
}

/// Proves that the devices of a GPU are independent: they share no memory slice, each has its own compute slices, and
/// the limit of each profile allows the most instances that all of them have at a time.
fn independence(layout: &Layout, proofs: &[Proof], geometry: &Geometry) -> Result<(), LayoutError> {
    let disturb = |what: String| LayoutError::Disturb {
        model: geometry.model.clone(),
        what,
    };
    for (position, shape) in layout.shapes.iter().enumerate() {
        for other in &layout.shapes[..position] {
            if shape.first < other.end && other.first < shape.end {
                return Err(disturb(format!(
                    "{} and {} share memory slices",
                    other.side, shape.side
                )));
            }
        }
    }
    let compute: u32 = layout
        .shapes
        .iter()
        .map(|s| u32::from(s.compute_slices))
        .sum();
    if compute > layout.compute_slices {
        return Err(disturb(format!(
            "they need {compute} of {} compute slices",
            layout.compute_slices
        )));
    }
    for profile in &geometry.profiles {
        let needed: u32 = proofs
            .iter()
            .flat_map(|proof| &proof.most_instances)
            .filter(|(id, _)| *id == profile.id)
            .map(|(_, most)| most)
            .sum();
        if needed > profile.max_instances {
            return Err(disturb(format!(
                "together they can need {needed} instances of {}, and the GPU has at most {}",
                profile.name, profile.max_instances
            )));
        }
    }
    Ok(())
}
