//! What other runs left: leases that are being released and do not come to an end, leases of jobs
//! that are over, instances that no lease names. Whatever is not known for certain stays.

use gpufrac_core::lease::Lease;
use gpufrac_node::node::Node;

use crate::act::slices::SliceError;
use crate::act::slurm::{Job, SlurmError};
use crate::outside::Outside;

/// Why a lease of a job that seems to be over could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum OverdueError {
    /// Slurm did not say whether the job is over.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The slice could not be ended.
    #[error(transparent)]
    Slice(#[from] SliceError),
}

/// Ends those of the active leases of one job that Slurm says is over, or is another run of. Says how many there were.
pub fn end_if_over(outside: &Outside, node: &Node, leases: &[&Lease]) -> Result<u32, OverdueError> {
    let Some(first) = leases.first() else {
        return Ok(0);
    };
    // Asked without the lock: an answer can take long.
    let job = outside.slurm.job(first.job_id)?;
    let is_over = |lease: &Lease| {
        let over = |job: &Job| job.over || job.restart_count > lease.restart_count;
        job.as_ref().is_none_or(over)
    };
    let (mut over, mut outcome) = (0, Ok(()));
    for lease in leases.iter().filter(|lease| is_over(lease)) {
        match outside.slices.end(node, lease, &outside.log) {
            Ok(was) => over += u32::from(was),
            // The others can go all the same.
            Err(error) => outcome = outcome.and(Err(error.into())),
        }
    }
    outcome.map(|()| over)
}
