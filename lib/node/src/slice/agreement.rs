//! Whether the request of a job, Slurm's allocation and its leases agree: first in the prolog, then when a step starts.

pub mod asked;
pub mod job_record;
pub(super) mod order;
pub mod step;
