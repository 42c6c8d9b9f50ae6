//! Controls a simulated node of GPUs, and runs a fake CUDA program on it.
//!
//! The GPUs themselves, and the rules by which they are cut, are those of `nvml-sim`; the
//! program `gpusim` is a thin layer over this library.

#![forbid(unsafe_code)]

pub mod admin;
pub mod memory;
pub mod mps;
pub mod program;
pub mod show;
