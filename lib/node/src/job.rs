//! Data of slurmd and slurmctld about a job.

pub mod admin_comment;
pub mod environment;
pub mod plugstack;
pub mod reserve;
pub mod slurmctld;
pub mod start;
