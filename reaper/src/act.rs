//! What is done about a stalled slice, and about slices that other runs left.

pub mod mail;
pub(crate) mod overdue;
pub(crate) mod post;
mod reap;
pub mod slices;
pub mod slurm;
