//! Layouts: how a MIG GPU is divided into devices so that Slurm's counting is always right.
//!
//! MIG puts instances at fixed positions; Slurm only counts. A layout turns a GPU into one or two
//! devices and gives each size on its menu a price in units and an order of positions, such that
//! *whatever came and went before, every request that the count admits finds a position*.
//! [`Layout::solve`] does not believe that but walks every state a device can get into
//! (see the module `proof`) and refuses a layout with a state that breaks it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::{Geometry, Placement};

mod candidates;
mod error;
mod proof;
mod shares;
#[cfg(test)]
mod tests;

pub use error::{Counterexample, LayoutError};
pub use proof::Proof;

/// How the GPUs of a pool become devices of Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// Two devices a GPU, each a half with 50 units: sizes can be mixed.
    Halves,
    /// One device a GPU, cut into equal 1g instances.
    Slices,
    /// One device a GPU, one job on it.
    Whole,
    /// One device a GPU, any whole percent of it: nothing has a place, counting is all there is.
    Shares,
}

impl LayoutKind {
    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            LayoutKind::Halves => "halves",
            LayoutKind::Slices => "slices",
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

/// Which part of a GPU a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The lower memory slices, with the larger part of the compute slices.
    Left,
    /// The upper memory slices.
    Right,
    /// All of the GPU.
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
    /// NVML's profile id.
    pub profile_id: u32,
    /// Where to create it.
    pub placement: Placement,
}

/// An instance that stands on the GPU, whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occupied {
    /// NVML's profile id.
    pub profile_id: u32,
    /// Where it stands.
    pub placement: Placement,
}

/// One size that users can get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MenuEntry {
    /// Its part of the GPU.
    pub fraction: Fraction,
    /// What it costs on its device.
    pub units: Units,
    /// The least memory that any of its candidates has.
    pub memory: MemoryMib,
    /// The profile it is made of in the first place, e.g. `2g.20gb`.
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

/// A layout that was proven safe for one GPU model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Which kind.
    pub kind: LayoutKind,
    /// The devices of a GPU, in Slurm's order.
    pub sides: Vec<Side>,
    /// Units of each device: 50 for a half, else 100.
    pub capacity: Units,
    /// The sizes, ascending.
    pub menu: Vec<MenuEntry>,
    shapes: Vec<Shape>,
    profiles: Vec<Limits>,
    compute_slices: u32,
    proofs: Vec<Proof>,
}

/// What a device may use of its GPU, and what is made on it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    side: Side,
    /// Memory slices `first..end`.
    first: u8,
    end: u8,
    compute_slices: u8,
    /// For each menu entry its positions, best first.
    preferences: Vec<Vec<Candidate>>,
}

impl Shape {
    fn holds(&self, placement: Placement) -> bool {
        placement.start >= self.first && placement.end() <= u32::from(self.end)
    }
}

/// What bounds the number of instances of a profile on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    id: u32,
    compute_slices: u32,
    max_instances: u32,
}

impl Layout {
    /// Works out the layout of a GPU model and proves it: on every device, in every state that
    /// arrivals by preference and departures in any order can lead to, each menu entry that
    /// counting admits can be placed, and no device can disturb another one of the GPU.
    ///
    /// An empty `menu` asks for the default: 1/2, 1/4, 1/8 for halves (1/2, 1/4 on GPUs of four
    /// slices), else the one size that the layout has. `equal_halves` makes the left half's
    /// largest slice as small in compute as the right one's (3g for 4g).
    ///
    /// # Errors
    /// When the menu is not possible on this GPU, or not safe; the error shows a state that
    /// breaks it.
    pub fn solve(
        geometry: &Geometry,
        kind: LayoutKind,
        menu: &[Fraction],
        equal_halves: bool,
    ) -> Result<Layout, LayoutError> {
        candidates::check_geometry(geometry)?;
        let plan = candidates::plan(geometry, kind, menu)?;
        Layout::prove(geometry, plan, equal_halves)
    }

    /// The second half of [`Layout::solve`], for a plan of any shape.
    fn prove(
        geometry: &Geometry,
        plan: candidates::Plan,
        equal_halves: bool,
    ) -> Result<Layout, LayoutError> {
        let shapes = plan
            .spans
            .iter()
            .map(|span| candidates::shape(geometry, span, &plan, equal_halves))
            .collect::<Result<Vec<Shape>, LayoutError>>()?;
        let menu = candidates::menu_entries(geometry, &plan, &shapes);
        let profiles = geometry.profiles.iter().map(|profile| Limits {
            id: profile.id,
            compute_slices: profile.compute_slices.into(),
            max_instances: profile.max_instances,
        });
        let mut layout = Layout {
            kind: plan.kind,
            sides: shapes.iter().map(|shape| shape.side).collect(),
            capacity: plan.capacity,
            menu,
            profiles: profiles.collect(),
            compute_slices: geometry.compute_slices.into(),
            shapes,
            proofs: Vec::new(),
        };
        layout.proofs = proof::prove(&layout, geometry)?;
        Ok(layout)
    }

    /// What was proven, one for each side.
    pub fn proofs(&self) -> &[Proof] {
        &self.proofs
    }

    /// The menu entry that costs exactly `units`.
    pub fn entry(&self, units: Units) -> Option<&MenuEntry> {
        self.menu.iter().find(|entry| entry.units == units)
    }

    /// The largest size of the menu.
    pub fn largest(&self) -> Option<&MenuEntry> {
        self.menu.last()
    }

    /// The positions for an entry of the menu on one side, best first; empty when the layout has
    /// no such side or no entry of exactly `units`.
    pub fn preference(&self, side: Side, units: Units) -> &[Candidate] {
        let position = self.menu.iter().position(|entry| entry.units == units);
        self.shape(side)
            .zip(position)
            .and_then(|(shape, position)| shape.preferences.get(position))
            .map_or(&[], Vec::as_slice)
    }

    /// Where to create the instance for an entry of the menu, given every instance on the whole
    /// GPU, foreign ones included. `None` when nothing fits: without foreign instances that
    /// can not happen to a request that counting admits.
    pub fn place(&self, side: Side, units: Units, occupied: &[Occupied]) -> Option<Candidate> {
        let shape = self.shape(side)?;
        self.preference(side, units)
            .iter()
            .copied()
            .find(|candidate| self.fits(shape, *candidate, occupied))
    }

    fn shape(&self, side: Side) -> Option<&Shape> {
        self.shapes.iter().find(|shape| shape.side == side)
    }

    fn fits(&self, shape: &Shape, candidate: Candidate, occupied: &[Occupied]) -> bool {
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
            // No profile has more compute slices than memory slices: for one that we do not
            // know this errs towards leaving room.
            .map_or(instance.placement.size.into(), |p| p.compute_slices)
    }
}
