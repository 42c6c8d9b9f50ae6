//! Controls the simulated GPUs, and a fake CUDA program.

fn main() {}
