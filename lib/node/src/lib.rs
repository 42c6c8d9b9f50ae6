//! What gpufrac does as root on a node, by the life of a slice: what slurmd says of a [`job`], what the node remembers
//! ([`state`]), how a [`slice`](mod@slice) is carved, released and repaired, and for these the [`gpu`]'s own settings and files, the
//! control daemons of [`mps`], and the [`setup`] at boot.
#![forbid(unsafe_code)]

pub mod cause;
pub mod gpu;
pub mod job;
pub mod mps;
pub mod node;
pub mod setup;
pub mod slice;
pub mod state;
pub mod version;

pub use state::leases::LeaseStore;
