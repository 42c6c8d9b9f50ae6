//! Layouts: how a MIG GPU is divided into devices so that Slurm's counting is always right.
//!
//! MIG puts instances at fixed positions; Slurm only counts. A layout turns a GPU into one or two
//! devices and gives each size on its menu a price in units and an order of positions, such that
//! *whatever came and went before, every request that the count admits finds a position*.
//! [`Layout::solve`] does not believe that but walks every state a device can get into
//! (see the module `proof`) and refuses a layout with a state that breaks it.

mod candidates;
mod error;
mod parts;
mod proof;
mod shares;
mod solve;
#[cfg(test)]
mod tests;

pub use error::{Counterexample, LayoutError};
pub use parts::{Candidate, Layout, LayoutKind, MenuEntry, Occupied, Proof, Side};
