//! The reasons why a layout is refused.

use std::fmt;

use super::parts::{LayoutKind, Side};
use crate::fraction::{Fraction, Units};
use crate::geometry::Placement;

/// The reasons why a layout is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The `[geometry]` table contradicts itself.
    /// Cure: Correct it by what `nvidia-smi mig -lgip` and `-lgipp` print.
    #[error("geometry {model}: {what}")]
    Geometry { model: String, what: String },
    /// The GPU has an odd number of slices.
    /// Cure: Use layout `"slices"` or `"whole"`.
    #[error(
        "{model} has {memory_slices} memory and {compute_slices} compute slices and cannot be cut in halves; use layout \"slices\" or \"whole\""
    )]
    NoHalves {
        model: String,
        memory_slices: u8,
        compute_slices: u8,
    },
    /// `whole = "bare"` with a model older than Hopper.
    /// Cure: Leave the key out.
    #[error(
        "{model} changes its MIG mode only by a reset of the GPU, so that whole GPUs without MIG do not come and go by demand; write whole = \"mig\" or leave the key out"
    )]
    NeedsReset { model: String },
    /// A size of the menu is larger than a device of this layout.
    /// Cure: Remove the size, or choose another layout.
    #[error("{} is more than one device of layout \"{kind}\" holds; at most {}", fraction.ratio(), limit.ratio())]
    TooLarge {
        fraction: Fraction,
        kind: LayoutKind,
        limit: Fraction,
    },
    /// An MPS share is so small that its GPU would have more jobs than the control daemon takes clients.
    /// Cure: Remove the size; [MPS](../../design/mps.md) has the limits.
    #[error(
        "{} is less than {least} %, the least for which a control daemon has room for all jobs of its GPU",
        fraction.ratio()
    )]
    TooSmall { fraction: Fraction, least: Units },
    /// Two sizes are rounded to the same number of units.
    /// Cure: Remove one of the two.
    #[error("{} and {} both cost {units} units; leave one of them out", first.ratio(), second.ratio())]
    Duplicate {
        first: Fraction,
        second: Fraction,
        /// The price of both, in units.
        units: Units,
    },
    /// This layout has a single size.
    /// Cure: Remove `menu`.
    #[error("layout \"{kind}\" on {model} has one size, {}; leave the menu out", only.ratio())]
    FixedMenu {
        kind: LayoutKind,
        model: String,
        only: Fraction,
    },
    /// The menu is missing, or has several sizes.
    /// Cure: Write one size.
    #[error(
        "layout \"uniform\" cuts a GPU into equal pieces; write their size as menu = [\"1/2\"] or [\"1/4\"], or [\"1/7\"] on GPUs with seven compute slices"
    )]
    NotUniform,
    /// The GPU has no MIG profile of this size at this position.
    /// Cure: Remove the size; `gpufrac conf` shows the profiles.
    #[error("{model} has no MIG profile for {} in {side}", fraction.ratio())]
    NoProfile {
        model: String,
        fraction: Fraction,
        side: Side,
    },
    /// A sequence of jobs exists after which an admitted job finds no position. The message has the sequence.
    /// Cure: Remove one of the sizes that the message names.
    #[error(
        "the menu is not safe on {model}: {counterexample}; leave one of these sizes out of the menu"
    )]
    Unsafe {
        model: String,
        /// A reachable state that shows it.
        counterexample: Counterexample,
    },
    /// Instances of one side take positions of the other side in this geometry.
    /// Cure: Correct the `[geometry]` table.
    #[error("the menu is not safe on {model}: the sides of a GPU disturb each other: {what}")]
    Disturb {
        model: String,
        /// The resource that both sides need.
        what: String,
    },
    /// The proof of the menu would take too long.
    /// Cure: Make the menu shorter.
    #[error("checking the menu needs more than {limit} states on {model}; write fewer sizes")]
    TooManyStates {
        model: String,
        /// The most states that are visited.
        limit: usize,
    },
}

/// A state of a device in which a request that Slurm's count admits has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    pub side: Side,
    /// The instances on the device: profile and position.
    pub instances: Vec<(String, Placement)>,
    /// The request that has no place.
    pub request: Fraction,
    /// The price of the request, in units.
    pub units: Units,
    /// The units that Slurm counts as free.
    pub free: Units,
    /// All positions of the request on an empty device: profile and position.
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
