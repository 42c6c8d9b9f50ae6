//! Why a layout is refused.

use std::fmt;

use super::parts::{LayoutKind, Side};
use crate::fraction::{Fraction, Units};
use crate::geometry::Placement;

/// Why a layout is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The geometry contradicts itself.
    #[error("geometry {model}: {what}")]
    Geometry {
        /// The GPU model.
        model: String,
        /// The contradiction.
        what: String,
    },
    /// The GPU cannot be cut in halves.
    #[error(
        "{model} has {memory_slices} memory and {compute_slices} compute slices and cannot be cut in halves; use layout \"slices\" or \"whole\""
    )]
    NoHalves {
        /// The GPU model.
        model: String,
        /// Its memory slices.
        memory_slices: u8,
        /// Its compute slices.
        compute_slices: u8,
    },
    /// More than a device holds.
    #[error("{} is more than one device of layout \"{kind}\" holds; at most {}", fraction.ratio(), limit.ratio())]
    TooLarge {
        /// The menu entry.
        fraction: Fraction,
        /// The layout.
        kind: LayoutKind,
        /// The largest possible.
        limit: Fraction,
    },
    /// Less than can be given.
    #[error(
        "{} is less than {least} %, the least for which a control daemon has room for all jobs of its GPU",
        fraction.ratio()
    )]
    TooSmall {
        /// The menu entry.
        fraction: Fraction,
        /// The least.
        least: Units,
    },
    /// Two entries that cost the same.
    #[error("{} and {} both cost {units} units; leave one of them out", first.ratio(), second.ratio())]
    Duplicate {
        /// The one entry.
        first: Fraction,
        /// The other entry.
        second: Fraction,
        /// What both cost.
        units: Units,
    },
    /// The layout has one size only, and it is another one.
    #[error("layout \"{kind}\" on {model} has one size, {}; leave the menu out", only.ratio())]
    FixedMenu {
        /// The layout.
        kind: LayoutKind,
        /// The GPU model.
        model: String,
        /// Its only size.
        only: Fraction,
    },
    /// The GPU cannot be full of such pieces.
    #[error(
        "layout \"uniform\" cuts a GPU into equal pieces; write their size as menu = [\"1/2\"] or [\"1/4\"], or [\"1/7\"] on GPUs with seven compute slices"
    )]
    NotUniform,
    /// The GPU has no instance of that size there.
    #[error("{model} has no MIG profile for {} in {side}", fraction.ratio())]
    NoProfile {
        /// The GPU model.
        model: String,
        /// The menu entry.
        fraction: Fraction,
        /// Where it should go.
        side: Side,
    },
    /// Counting would admit what cannot be placed.
    #[error(
        "the menu is not safe on {model}: {counterexample}; leave one of these sizes out of the menu"
    )]
    Unsafe {
        /// The GPU model.
        model: String,
        /// A state that breaks it.
        counterexample: Counterexample,
    },
    /// What happens on one side could take a place from the other one.
    #[error("the menu is not safe on {model}: the sides of a GPU disturb each other: {what}")]
    Disturb {
        /// The GPU model.
        model: String,
        /// What both need.
        what: String,
    },
    /// The proof would take too long.
    #[error("the menu makes more than {limit} states on {model}; make it shorter")]
    TooManyStates {
        /// The GPU model.
        model: String,
        /// Where the walk stopped.
        limit: usize,
    },
}

/// A state of a device in which a request that counting admits has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// Which device.
    pub side: Side,
    /// What stands on it: profile and position.
    pub instances: Vec<(String, Placement)>,
    /// The request that has no place.
    pub request: Fraction,
    /// What it costs.
    pub units: Units,
    /// What Slurm counts as free.
    pub free: Units,
    /// Where the request could go if all was free: profile and position.
    pub positions: Vec<(String, Placement)>,
}

fn list(items: &[(String, Placement)]) -> String {
    let texts: Vec<String> = items
        .iter()
        .map(|(name, placement)| format!("{name} at {}", placement.start))
        .collect();
    texts.join(", ")
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = if self.instances.is_empty() {
            "nothing".to_owned()
        } else {
            list(&self.instances)
        };
        write!(
            f,
            "with {standing} on {} there are {} units free, so Slurm would start a job of {} ({} \
             units), but every position for it is taken ({})",
            self.side,
            self.free,
            self.request.ratio(),
            self.units,
            list(&self.positions)
        )
    }
}
