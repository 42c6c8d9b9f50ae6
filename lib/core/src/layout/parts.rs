//! The parts of a layout, and the choice of a place for an instance.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::Placement;

/// How the GPUs of a pool become devices of Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// Two devices for each GPU, each a half with 50 units; sizes can be mixed.
    Halves,
    /// One device for each GPU, divided into equal 1g instances.
    Slices,
    /// One device for each GPU, divided into equal pieces or lent whole, by demand.
    Uniform,
    /// One device for each GPU, with one job.
    Whole,
    /// One device for each GPU, of which any whole percent can be given. Shares have no positions, so Slurm's count
    /// is enough.
    Shares,
}

impl LayoutKind {
    pub fn name(self) -> &'static str {
        match self {
            LayoutKind::Halves => "halves",
            LayoutKind::Slices => "slices",
            LayoutKind::Uniform => "uniform",
            LayoutKind::Whole => "whole",
            LayoutKind::Shares => "shares",
        }
    }
}

impl fmt::Display for LayoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The part of a GPU that a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The lower memory slices, with the larger part of the compute slices.
    Left,
    /// The upper memory slices.
    Right,
    /// The whole GPU.
    Whole,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Left => "the left half",
            Side::Right => "the right half",
            Side::Whole => "the GPU",
        })
    }
}

/// An instance that can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Candidate {
    pub profile_id: u32,
    pub placement: Placement,
}

/// An instance that exists on the GPU, made by gpufrac or by an admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occupied {
    pub profile_id: u32,
    pub placement: Placement,
}

impl Occupied {
    /// The instance as one that could be created there.
    pub fn as_candidate(self) -> Candidate {
        Candidate {
            profile_id: self.profile_id,
            placement: self.placement,
        }
    }
}

/// One size that users can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MenuEntry {
    pub fraction: Fraction,
    /// The price on its device, in units.
    pub units: Units,
    /// The smallest memory among its candidates.
    pub memory: MemoryMib,
    /// The profile of the first candidate, e.g. `2g.20gb`.
    pub profile_name: String,
}

impl fmt::Display for MenuEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {})",
            self.fraction, self.profile_name, self.memory
        )
    }
}

/// A layout, proven safe for one GPU model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub kind: LayoutKind,
    /// The devices of a GPU, in Slurm's order.
    pub sides: Vec<Side>,
    /// Units of each device: 50 for a half, else 100.
    pub capacity: Units,
    /// The sizes, ascending.
    pub menu: Vec<MenuEntry>,
    pub(super) shapes: Vec<Shape>,
    pub(super) profiles: Vec<Limits>,
    pub(super) compute_slices: u32,
    pub(super) proofs: Vec<Proof>,
}

/// The result of the proof for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub side: Side,
    /// The number of states that can be reached, with the empty one.
    pub states: usize,
    /// The number of arrivals that Slurm's count admits in these states; each found a place.
    pub arrivals: usize,
    /// For each profile id that was placed, the most instances at a time.
    pub most_instances: Vec<(u32, u32)>,
    /// The states, each sorted.
    pub(super) reached: BTreeSet<Vec<Candidate>>,
}

/// A device: the part of its GPU that it may use, and the instances that can be created on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) side: Side,
    /// Memory slices `first..end`.
    pub(super) first: u8,
    pub(super) end: u8,
    pub(super) compute_slices: u8,
    /// For each menu entry its candidates, best first.
    pub(super) preferences: Vec<Vec<Candidate>>,
}

impl Shape {
    pub(super) fn holds(&self, placement: Placement) -> bool {
        placement.start >= self.first && placement.end() <= u32::from(self.end)
    }
}

/// The limit of the number of instances of a profile on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) id: u32,
    pub(super) compute_slices: u32,
    pub(super) max_instances: u32,
}

impl Layout {
    pub fn proofs(&self) -> &[Proof] {
        &self.proofs
    }

    /// The menu entry with a price of exactly `units`.
    pub fn entry(&self, units: Units) -> Option<&MenuEntry> {
        self.menu.iter().find(|entry| entry.units == units)
    }

    pub fn largest(&self) -> Option<&MenuEntry> {
        self.menu.last()
    }

    /// The candidates of a menu entry on one side, best first; empty if the layout has no such side or no entry of
    /// exactly `units`.
    pub fn preference(&self, side: Side, units: Units) -> &[Candidate] {
        let position = self.menu.iter().position(|entry| entry.units == units);
        self.shape(side)
            .zip(position)
            .and_then(|(shape, position)| shape.preferences.get(position))
            .map_or(&[], Vec::as_slice)
    }

    /// The instance to create for a menu entry, given all instances on the whole GPU, with those that gpufrac did not
    /// make. Returns None if nothing fits; without foreign instances this cannot happen to a request that Slurm's
    /// count admits.
    pub fn place(&self, side: Side, units: Units, occupied: &[Occupied]) -> Option<Candidate> {
        let shape = self.shape(side)?;
        self.preference(side, units)
            .iter()
            .copied()
            .find(|candidate| self.fits(shape, *candidate, occupied))
    }

    /// Whether the candidate has room, given all instances on the whole GPU.
    pub fn has_room(&self, side: Side, candidate: Candidate, occupied: &[Occupied]) -> bool {
        let shape = self.shape(side);
        shape.is_some_and(|shape| self.fits(shape, candidate, occupied))
    }

    pub(super) fn shape(&self, side: Side) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.side == side)
    }

    pub(super) fn fits(&self, shape: &Shape, candidate: Candidate, occupied: &[Occupied]) -> bool {
        let Some(limits) = self.profiles.iter().find(|p| p.id == candidate.profile_id) else {
            return false;
        };
        let free = occupied
            .iter()
            .all(|instance| !instance.placement.overlaps(candidate.placement));
        let same = occupied
            .iter()
            .filter(|instance| instance.profile_id == candidate.profile_id)
            .count();
        let on_gpu: u32 = occupied.iter().map(|i| self.compute_of(i)).sum();
        let on_side: u32 = occupied
            .iter()
            .filter(|instance| shape.holds(instance.placement))
            .map(|i| self.compute_of(i))
            .sum();
        free && u32::try_from(same).is_ok_and(|same| same < limits.max_instances)
            && on_side + limits.compute_slices <= shape.compute_slices.into()
            && on_gpu + limits.compute_slices <= self.compute_slices
    }

    fn compute_of(&self, instance: &Occupied) -> u32 {
        self.profiles
            .iter()
            .find(|profile| profile.id == instance.profile_id)
            // The profile is not in the table. No profile has more compute slices than memory slices, so this assumes
            // at least as many as are in use.
            .map_or(instance.placement.size.into(), |p| p.compute_slices)
    }
}
