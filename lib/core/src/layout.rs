//! Layouts: how a MIG GPU is divided into devices of Slurm, so that a request that fits Slurm's count always has a
//! place.
//!
//! MIG puts instances at fixed positions; Slurm only counts. A layout turns a GPU into one or two devices. It gives
//! each size of the menu a price in units and an order of positions, such that *in every state that earlier jobs can
//! leave, each request that the count admits finds a position*. [`Layout::solve`] proves this: it visits every state
//! that a device can reach (module `proof`), and refuses a layout with a state that breaks the rule.

mod candidates;
mod error;
mod parts;
mod proof;
mod served;
mod shares;
mod solve;
#[cfg(test)]
mod tests;
mod warm;

pub use error::{Counterexample, LayoutError};
pub use parts::{Candidate, Layout, LayoutKind, MenuEntry, Occupied, Proof, Side};
pub use served::{HEADINGS, Served};
pub use warm::Kept;
