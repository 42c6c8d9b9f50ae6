//! The trusted entry in a job's `spank_job_env`.
//!
//! slurmctld carries these variables to Prolog and Epilog. Users can put variables there
//! too (`spank_job_control_setenv`, REST), so every name that could be taken for ours is
//! removed before ours is written.

use gpufrac_core::entry::{ENV_NAME, Entry};

/// Names that begin so are ours, with or without the prefix that Slurm adds.
const OWN: &str = "GPUFRAC";
const SPANK_PREFIX: &str = "SPANK_";

/// The environment without anything that looks like ours, then with `entry`.
pub fn rewritten(environment: Vec<String>, entry: Option<&Entry>) -> Vec<String> {
    let mut kept: Vec<String> = environment
        .into_iter()
        .filter(|variable| !is_own(variable))
        .collect();
    kept.extend(entry.map(|entry| format!("{ENV_NAME}={entry}")));
    kept
}

/// Is this variable, in any case and under any number of `SPANK_` prefixes, one of ours?
pub fn is_own(variable: &str) -> bool {
    let mut name = variable.trim_start().to_ascii_uppercase();
    while let Some(rest) = name.strip_prefix(SPANK_PREFIX) {
        name = rest.to_owned();
    }
    name.starts_with(OWN)
}
