//! Controls a simulated node with GPUs, and runs a fake CUDA program on it.
//!
//! `nvml-sim` has the GPUs themselves and the rules of MIG; the program `gpusim` is a thin layer over this library.

#![forbid(unsafe_code)]

pub mod admin;
mod device;
pub mod memory;
pub mod mps;
mod plan;
pub mod program;
pub mod show;
