//! The trusted entry in a job's `spank_job_env`.
//!
//! slurmctld passes these variables to Prolog and Epilog. Users can put variables there too
//! (`spank_job_control_setenv`, REST), so every name that could be taken for gpufrac's is removed before the entry is
//! written.

use gpufrac_core::entry::{ENV_NAME, Entry, LOGIN_NAME, POOLS_NAME};
use gpufrac_core::pools_sum::PoolsSum;

/// Names that begin so are ours, with or without the prefix that Slurm adds.
const OWN: &[u8] = b"GPUFRAC";
const SPANK_PREFIX: &[u8] = b"SPANK_";

/// What job_submit decided about a job.
pub type Word = (Entry, PoolsSum);

/// The environment without anything that looks like ours, then with the entry and the sum of the pools that it was written by,
/// and with a word of the login environment where the job has it loaded outside of its control groups.
pub fn rewritten(environment: Vec<String>, word: Option<&Word>, login: bool) -> Vec<String> {
    let mut kept: Vec<String> = environment
        .into_iter()
        .filter(|variable| !is_own(variable))
        .collect();
    if let Some((entry, pools)) = word {
        kept.push(format!("{ENV_NAME}={entry}"));
        kept.push(format!("{POOLS_NAME}={pools}"));
    }
    kept.extend(login.then(|| format!("{LOGIN_NAME}=1")));
    kept
}

/// Is this variable, in any case and under any number of `SPANK_` prefixes, one of ours?
pub fn is_own(variable: &str) -> bool {
    let mut name = variable.trim_start().as_bytes();
    while let Some(rest) = without_prefix(name, SPANK_PREFIX) {
        name = rest;
    }
    without_prefix(name, OWN).is_some()
}

/// What follows a prefix, in any case.
fn without_prefix<'a>(name: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}
