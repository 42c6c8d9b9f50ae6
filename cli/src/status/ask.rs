//! Asks Slurm about nodes and jobs, by commands that ordinary users may call.

use gpufrac_core::config::Config;
use gpufrac_slurm_settings::{AskError, slurm_says};
use gpufrac_view::cluster::{NodeState, OwnJob, Waiting};
use gpufrac_view::slurm::{self, SINFO, SQUEUE, TIMES};

/// States of jobs that have or want a slice.
const OWN_STATES: &str = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING";

/// The nodes of pools, with Slurm's counts.
pub fn nodes(config: &Config) -> Result<Vec<NodeState>, AskError> {
    let said = slurm_says("sinfo", &SINFO, &[])?;
    Ok(slurm::nodes(&said.stdout, config))
}

/// The jobs that wait for fractions.
pub fn waiting(config: &Config) -> Result<Vec<Waiting>, AskError> {
    let mut options = SQUEUE.to_vec();
    options.push("PENDING");
    let said = slurm_says("squeue", &options, &[TIMES])?;
    let jobs = slurm::jobs(&said.stdout, &config.count_name).into_iter();
    Ok(jobs.map(|job| job.waits(config)).collect())
}

/// The jobs of a user with fractions, without their slices.
pub fn own(config: &Config, uid: u32) -> Result<Vec<OwnJob>, AskError> {
    let uid = uid.to_string();
    let mut options = SQUEUE.to_vec();
    options.extend([OWN_STATES, "-u", &uid]);
    let said = slurm_says("squeue", &options, &[TIMES])?;
    let jobs = slurm::jobs(&said.stdout, &config.count_name).into_iter();
    Ok(jobs.map(|job| job.own(config)).collect())
}

/// When a job of a size would start in a partition; nothing is submitted. None where Slurm does not say.
pub fn start(partition: &str, fraction: &str) -> Result<Option<u64>, AskError> {
    let size = format!("--gres=gpufrac:{fraction}");
    let options = ["--test-only", "-p", partition, &size, "--wrap=true"];
    let said = slurm_says("sbatch", &options, &[TIMES])?;
    Ok(told_start(&said.stderr))
}

/// Reads `Job 12 to start at 1790000000 using ...`.
fn told_start(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(" to start at ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_start_is_read() {
        let said = "sbatch: gpufrac:0.2 is rounded up to 0.25\nsbatch: Job 5 to start at 1790000000 using 1 processors on nodes n1 in partition gpu\n";
        assert_eq!(told_start(said), Some(1_790_000_000));
        let of_26 = "sbatch: Job 5 to start at 1790000000 on cluster c a using 1 processors on nodes n1 in partition gpu\n";
        assert_eq!(told_start(of_26), Some(1_790_000_000));
        assert_eq!(told_start("sbatch: nothing"), None);
    }
}
