//! The refusal of a job that slurmctld counted by another gpufrac.toml than the node's.

use gpufrac_core::fraction::Units;
use gpufrac_core::ids::JobId;
use gpufrac_core::pools_sum::PoolsSum;

// A size in slurmctld's gpufrac.toml that the node's file does not have.
/// slurmctld counted the job by another gpufrac.toml than the node's.
/// Cure: Copy the file from slurmctld's host; or change and release the job.
#[derive(Debug, thiserror::Error)]
#[error(
    "Slurm counted {units} units for job {job_id}, and pool `{pool}` of {node} gives {sizes}{difference}; copy gpufrac.toml from slurmctld's host to {node}, or, if the pools were changed since the job was submitted, change it with `scontrol update jobid={job_id} gres=gpufrac:FRACTION`; then release it",
    sizes = list(sizes),
    difference = difference(*pools)
)]
pub struct OtherPools {
    pub job_id: JobId,
    pub node: String,
    pub pool: String,
    /// The units that Slurm counted.
    pub units: Units,
    /// The sizes of the pool in units.
    pub sizes: Vec<Units>,
    /// The checksums of slurmctld's pools and of the node's; None if unknown.
    pub pools: Option<(PoolsSum, PoolsSum)>,
}

fn list(sizes: &[Units]) -> String {
    let sizes: Vec<String> = sizes.iter().map(Units::to_string).collect();
    match sizes.len() {
        // A menu of every percent.
        11.. => format!("{} to {}", sizes[0], sizes[sizes.len() - 1]),
        _ => sizes.join(", "),
    }
}

fn difference(pools: Option<(PoolsSum, PoolsSum)>) -> String {
    match pools {
        Some((there, here)) if there != here => {
            format!(" (checksum of the pools: {there} where it was counted, {here} here)")
        }
        _ => String::new(),
    }
}
