//! Pure logic of gpufrac: no I/O, no clock, no unsafe code, not linked with Slurm or NVML.
//!
//! A request passes through this crate as follows. [`request`] reads the text that a user typed. [`submit::decide`]
//! rounds it up to a size that the partition's pools ([`config`]) can make, and rewrites it into GRES that Slurm
//! counts. An [`entry::Entry`] carries the decision to the node. There, [`layout::Layout::place`] chooses the MIG
//! instance to create, and a [`lease::Lease`] records it.
//!
//! Slurm only counts units. [`layout::Layout::solve`] proves that each request that fits by counting has a place: it
//! visits every state that a device can reach.
//!
//! Every wrong input of a user or an admin is refused with a message that says what to write instead. No input causes
//! a panic.
#![forbid(unsafe_code)]

pub mod advise;
pub mod config;
pub mod count_name;
mod crc64;
mod device_type;
pub mod entry;
pub mod finding;
pub mod fraction;
pub mod geometry;
pub mod gres;
pub mod hostlist;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod mechanism;
pub mod mig_type;
pub mod nodes_gres;
pub mod per_gpu;
pub mod policy;
mod pool;
pub mod pools_sum;
pub mod private_data;
pub mod rates;
pub mod request;
mod rounding;
pub mod slurm_release;
pub mod slurm_text;
pub mod submit;
pub mod submit_plugins;
