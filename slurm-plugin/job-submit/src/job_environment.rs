//! The trusted entry in a job's `spank_job_env`.
//!
//! slurmctld passes these variables to Prolog and Epilog. Users can put variables there too
//! (`spank_job_control_setenv`, REST), so every name that could be taken for gpufrac's is removed before the entry is
//! written.

use gpufrac_core::entry::{ENV_NAME, Entry, LOGIN_NAME, POOLS_NAME};
use gpufrac_core::pools_sum::PoolsSum;

/// The first letters of gpufrac's names, with or without Slurm's prefix.
const OWN: &[u8] = b"GPUFRAC";
const SPANK_PREFIX: &[u8] = b"SPANK_";

/// The decision of job_submit about a job, with the checksum of its pools.
pub type DecisionWithSum = (Entry, PoolsSum);

/// The environment for the node: without variables that look like gpufrac's, then with the entry and the checksum of
/// its pools; if the job has its login environment loaded outside of its control groups, with the variable that says
/// so.
pub fn rewritten(
    environment: Vec<String>,
    decision: Option<&DecisionWithSum>,
    login: bool,
) -> Vec<String> {
    let mut kept: Vec<String> = environment
        .into_iter()
        .filter(|variable| !is_own(variable))
        .collect();
    if let Some((entry, pools)) = decision {
        kept.push(format!("{ENV_NAME}={entry}"));
        kept.push(format!("{POOLS_NAME}={pools}"));
    }
    kept.extend(login.then(|| format!("{LOGIN_NAME}=1")));
    kept
}

/// Whether a variable is gpufrac's, in upper or lower case and under any number of `SPANK_` prefixes.
pub fn is_own(variable: &str) -> bool {
    let mut name = variable.trim_start().as_bytes();
    while let Some(rest) = without_prefix(name, SPANK_PREFIX) {
        name = rest;
    }
    without_prefix(name, OWN).is_some()
}

/// The rest of a name after a prefix, in upper or lower case.
fn without_prefix<'a>(name: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}
