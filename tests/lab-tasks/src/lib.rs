//! The series of Slurm on which labs run, for all tasks.

#![forbid(unsafe_code)]

pub mod series;
