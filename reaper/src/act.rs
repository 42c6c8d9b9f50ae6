//! What is done about a stalled slice, and about slices that other runs left.

pub mod mail;
pub(crate) mod mail_queue;
pub(crate) mod overdue;
pub(crate) mod refusal;
pub mod slices;
pub mod slurm;
