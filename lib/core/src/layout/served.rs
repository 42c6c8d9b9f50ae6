//! The sizes that each layout of a GPU model serves, in figures: for `gpufrac conf` and the manual.

use std::fmt::Write as _;

use super::{Layout, LayoutKind, Occupied};
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::{Geometry, Profile};

/// One size of a layout, on a GPU that is full of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub kind: LayoutKind,
    /// Whether all pieces have the same compute (`equal`).
    pub equal: bool,
    pub size: Fraction,
    /// Memory and multiprocessors of each piece, largest first.
    pub pieces: Vec<(MemoryMib, u32)>,
    /// Memory of the GPU that no piece has.
    pub left: MemoryMib,
    /// Whether the layout lends whole GPUs.
    pub whole: bool,
}

/// The headings of [`Served::cells`].
pub const HEADINGS: [&str; 7] = [
    "layout",
    "size",
    "pieces",
    "GiB each",
    "SM",
    "GiB left over",
    "whole GPU",
];

impl Served {
    /// All sizes of all layouts that a model has. A layout has only those that are safe there.
    pub fn table(geometry: &Geometry) -> Vec<Served> {
        let [half, quarter, eighth, seventh] = [2, 4, 8, 7].map(|part| Fraction::new(1, part).ok());
        let mut rows = Vec::new();
        for size in [half, quarter, eighth].into_iter().flatten() {
            rows.extend(Served::of(geometry, LayoutKind::Halves, Some(size), false));
        }
        for size in [half, quarter, seventh].into_iter().flatten() {
            let plain = Served::of(geometry, LayoutKind::Uniform, Some(size), false);
            let equal = Served::of(geometry, LayoutKind::Uniform, Some(size), true);
            // Where all pieces are equal by themselves the key changes nothing.
            let is_other =
                |equal: &Served| plain.as_ref().map(|it| &it.pieces) != Some(&equal.pieces);
            let equal = equal.filter(is_other);
            rows.extend(plain);
            rows.extend(equal);
        }
        rows.extend(Served::of(geometry, LayoutKind::Slices, None, false));
        rows.extend(Served::of(geometry, LayoutKind::Whole, None, false));
        rows
    }

    /// None where the model has no such layout. Without a `size`, the one that the layout has.
    fn of(
        geometry: &Geometry,
        kind: LayoutKind,
        size: Option<Fraction>,
        equal: bool,
    ) -> Option<Served> {
        let menu: Vec<Fraction> = size.into_iter().collect();
        let layout = Layout::solve(geometry, kind, &menu, equal).ok()?;
        let entry = match size {
            Some(size) => layout.menu.iter().find(|entry| entry.fraction == size)?,
            None => layout.menu.first()?,
        };
        let pieces = layout.full_of(geometry, entry.units);
        let used = pieces.iter().map(|(memory, _)| memory.0).sum();
        Some(Served {
            kind,
            equal,
            size: entry.fraction,
            left: MemoryMib(geometry.memory()?.0.saturating_sub(used)),
            whole: layout.entry(Units::WHOLE).is_some(),
            pieces,
        })
    }

    /// The row as texts, in the order of [`HEADINGS`]. GiB are rounded down, those of the smallest piece.
    pub fn cells(&self) -> [String; 7] {
        let equal = if self.equal { ", equal" } else { "" };
        let least = self.pieces.iter().map(|(memory, _)| memory.0).min();
        [
            format!("{}{equal}", self.kind),
            self.size.ratio(),
            self.pieces.len().to_string(),
            gib(least.unwrap_or_default()),
            self.multiprocessors(),
            gib(self.left.0),
            if self.whole { "yes".to_owned() } else { "no".to_owned() },
        ]
    }

    /// `2 x 60`, or `3 x 32, 1 x 16`.
    fn multiprocessors(&self) -> String {
        let numbers: Vec<u32> = self.pieces.iter().map(|(_, number)| *number).collect();
        let mut text = String::new();
        for same in numbers.chunk_by(|one, other| one == other) {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}{} x {}", same.len(), same[0]);
        }
        text
    }
}

impl Layout {
    /// Memory and multiprocessors of the pieces of a GPU that is full of one size, largest first.
    fn full_of(&self, geometry: &Geometry, units: Units) -> Vec<(MemoryMib, u32)> {
        let mut standing: Vec<Occupied> = Vec::new();
        for side in &self.sides {
            let count = self.capacity.0 / units.0.max(1);
            for _ in 0..count {
                let Some(place) = self.place(*side, units, &standing) else {
                    break;
                };
                standing.push(Occupied {
                    profile_id: place.profile_id,
                    placement: place.placement,
                });
            }
        }
        let profiles = standing
            .iter()
            .filter_map(|it| geometry.profile(it.profile_id));
        let figures = |profile: &Profile| (profile.memory, profile.multiprocessors);
        let mut pieces: Vec<_> = profiles.map(figures).collect();
        pieces.sort_unstable_by(|one, other| other.cmp(one));
        pieces
    }
}

fn gib(mib: u64) -> String {
    format!("{}.{}", mib / 1024, mib % 1024 * 10 / 1024)
}
