//! Pure logic of gpufrac: no I/O, no clock, no unsafe, nothing of Slurm or NVML linked.
//!
//! The way of a request through this crate: [`request`] reads the text that a user typed,
//! [`submit::decide`] rounds it up to a size that the partition's pools ([`config`]) can make and
//! rewrites it into what Slurm counts, an [`entry::Entry`] carries the decision to the node, and
//! there [`layout::Layout::place`] says which MIG instance to create. What was made is written
//! down as a [`lease::Lease`].
//!
//! Slurm only counts units; whether a request that fits by counting can also be *placed* is
//! proven by [`layout::Layout::solve`], which walks every state a device can get into.
//!
//! Everything a user or an admin can write is refused with a message that says what to write
//! instead. Nothing here panics on any input.
#![forbid(unsafe_code)]

pub mod advise;
pub mod config;
mod crc64;
mod device_type;
pub mod entry;
pub mod finding;
pub mod fraction;
pub mod geometry;
pub mod gpu_types;
pub mod gres;
pub mod hostlist;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod mechanism;
pub mod policy;
mod pool;
pub mod pools_sum;
pub mod request;
mod rounding;
pub mod slurm_release;
pub mod submit;
