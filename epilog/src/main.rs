//! Slurm epilog: takes the slice of a job down.

fn main() {}
