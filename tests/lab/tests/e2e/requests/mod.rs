//! A fraction can be requested in every way in which Slurm accepts GRES.

mod arrays_and_het_jobs;
mod newcomers;
mod options;
mod scontrol;
mod scrontab;
mod slurmrestd;
mod steps;

use gpufrac_lab::{JobId, Lab, LabError, Outcome};

/// The variables of a job or step: its fraction, and the shards that Slurm counts.
const SEE: &str = "echo F=$GPUFRAC_FRACTION S=$SLURM_SHARDS_ON_NODE";

/// Slurm's counts for a job, per node: `gpufrac:25,shard:25`, without the marks that differ between releases.
fn counts(lab: &Lab, job: JobId) -> Result<String, LabError> {
    let text = lab.job(job)?.field("TresPerNode").to_owned();
    Ok(text.replace("gres:", "").replace("gres/", ""))
}

/// Checks that gpufrac refused with these words.
fn expect_refusal(outcome: &Outcome, words: &str) {
    assert!(!outcome.status.success(), "{outcome:?}");
    let said = outcome.stderr.contains("gpufrac: ") && outcome.stderr.contains(words);
    assert!(said, "no {words:?} in {outcome:?}");
}

/// The lines of an output that begin with `prefix`, without it, in order.
fn lines<'a>(output: &'a str, prefix: &str) -> Vec<&'a str> {
    output
        .lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .collect()
}
