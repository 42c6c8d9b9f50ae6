//! The work of root's programs on a node, by the life of a slice: Slurm's data about a [`job`], the node's files
//! ([`state`]), how a [`slice`](mod@slice) is made, released and repaired, the settings and files of the [`gpu`], the
//! control daemons of [`mps`], the files of [`cdi`], and the [`setup`] at boot.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod clock;
pub mod fault;
pub mod gpu;
pub mod hami;
pub mod job;
pub mod mps;
pub mod node;
pub mod serves;
pub mod setup;
pub mod slice;
pub mod slurm_call;
pub mod state;
pub mod version;

pub use state::leases::LeaseStore;
