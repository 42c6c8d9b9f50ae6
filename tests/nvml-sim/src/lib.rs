//! A `libnvidia-ml.so.1` that simulates GPUs with MIG.
//!
//! Every process that loads the library sees the same GPUs: their state is the folder ROOT, which `gpusim init`
//! creates. ROOT is `$NVML_SIM_ROOT`, otherwise the parent of the folder `lib` from which the library was loaded.
//! [`node`] has the rules of MIG, [`store`] the state on disk, [`tree`] the driver's `/proc` and `/dev` entries under
//! ROOT, [`processes`] the compute processes, [`disturb`] faults and delays, [`latency`] the durations of calls,
//! [`journal`] the log of calls, [`node::falsify`] wrong answers, [`recorded`] those of a real driver, and [`abi`]
//! exports NVML's C functions.
#![allow(
    unsafe_code,
    reason = "a C library: every exported function takes raw pointers"
)]

pub mod abi;
mod argument;
pub mod code;
pub mod disturb;
mod error;
pub mod geometry;
pub mod journal;
pub mod latency;
pub mod manners;
pub mod model;
pub mod node;
pub mod pattern;
pub mod processes;
pub mod recorded;
mod session;
mod sessions;
pub mod shared;
pub mod store;
pub mod symbols;
pub mod tree;

pub use session::root;
