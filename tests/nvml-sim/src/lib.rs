//! A `libnvidia-ml.so.1` that simulates GPUs with MIG.
//!
//! Every process that loads the library sees the same GPUs: their state is a folder, ROOT,
//! that `gpusim init` makes. ROOT is `$NVML_SIM_ROOT`, or else the parent of the folder `lib`
//! that the library was loaded from. [`node`] holds the rules by which a GPU is cut,
//! [`store`] keeps the state on disk, [`tree`] keeps the driver's `/proc` and `/dev` entries
//! under ROOT, [`processes`] the compute processes, [`disturb`] faults and delays, [`latency`]
//! how long the driver takes, [`journal`] who called what, and [`abi`] exports NVML's C functions over all of it.
#![allow(
    unsafe_code,
    reason = "a C library: every exported function takes raw pointers"
)]

pub mod abi;
pub mod code;
pub mod disturb;
pub mod geometry;
pub mod journal;
pub mod latency;
pub mod model;
pub mod node;
pub mod pattern;
pub mod processes;
mod session;
mod sessions;
pub mod shared;
pub mod store;
pub mod symbols;
pub mod tree;
