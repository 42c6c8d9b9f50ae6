//! Slurm prolog: carves the slice of a job.

fn main() {}
