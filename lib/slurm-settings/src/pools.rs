//! Compares slurmctld's pools with those of this host's gpufrac.toml. slurmctld counts by the pools that it read
//! last; a node makes slices by its own file.

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::pools_sum::{PoolsSum, QUESTION};
use gpufrac_host::subprocess::{self, Outcome};
use slurm_sys::release::BUILD;

use super::Settings;
use super::ask::{LIMIT, awaited_file, first, of_own_cluster, places};
use super::rules::of_slurmctld;

/// The answer of slurmctld's plugin about its pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginPools {
    /// The checksum of the pools, and the build of the plugin, if it tells.
    Sum(PoolsSum, Option<String>),
    /// slurmctld has no pools, for this reason.
    NoPools(String),
}

/// The beginning of job_submit's message if it has no configuration.
const NO_POOLS: &str = "gpufrac: fractions are not available now: ";

impl PluginPools {
    fn parse(printed: &str) -> Option<PluginPools> {
        let no_pools = || {
            let (_, why) = printed.split_once(NO_POOLS)?;
            Some(PluginPools::NoPools(why.lines().next()?.to_owned()))
        };
        PoolsSum::answered(printed)
            .map(|(sum, build)| PluginPools::Sum(sum, build.map(str::to_owned)))
            .or_else(no_pools)
    }
}

/// Asks slurmctld by sbatch; job_submit refuses the request with the answer, so that no job is submitted. None if
/// sbatch is not installed, or if gpufrac's plugin is not there to answer.
pub(super) fn ask() -> Option<PluginPools> {
    if awaited_file().is_some() {
        return None;
    }
    let gres = format!("--gres={QUESTION}");
    let outcome = first(&places("sbatch"), |program| {
        let mut command = of_own_cluster(program);
        command.args(["--test-only", &gres, "--wrap=true"]);
        subprocess::run(&mut command, b"", LIMIT)
    });
    match outcome.ok()?? {
        Outcome::Ended(ended) => PluginPools::parse(&ended.stderr),
        Outcome::Silent => None,
    }
}

/// Reports a difference between both checksums.
pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let (Some(answer), Some(file)) = (&settings.pools, &settings.config) else {
        return;
    };
    let file = file.display();
    let host = of_slurmctld(settings);
    let here = config.pools_sum();
    let (what, fix) = match answer {
        PluginPools::Sum(there, build) if *there == here => {
            found.extend(other_build(build.as_deref(), host));
            return;
        }
        PluginPools::Sum(there, _) => (
            format!(
                "its pools differ from those of slurmctld (checksum {here} here, {there} there): jobs are counted by one file, and slices are made by the other"
            ),
            format!(
                "where this file is the old one: `scp {host}:{file} {file}`, then `gpufrac node-setup` on a node; where it is the new one: copy it to {host} and run `scontrol reconfigure`"
            ),
        ),
        PluginPools::NoPools(why) => (
            format!("slurmctld has no pools, and refuses every fraction: {why}"),
            format!(
                "put this file on {host}, where `gpufrac check --file-only` takes it, and run `scontrol reconfigure`"
            ),
        ),
    };
    found.push(Finding {
        severity: Severity::Error,
        place: Some(file.to_string()),
        what,
        fix,
    });
}

/// The warning about a slurmctld that runs another build of gpufrac than this host has.
fn other_build(there: Option<&str>, host: &str) -> Option<Finding> {
    let there = there.filter(|there| *there != BUILD)?;
    // One of the two hosts was not upgraded, or slurmctld was not restarted since. Cure: Install the same build on
    // both; `systemctl restart slurmctld`.
    Some(Finding {
        severity: Severity::Warning,
        place: Some("sbatch --test-only".to_owned()),
        what: format!("slurmctld runs build {there} of gpufrac, and this host has {BUILD}"),
        fix: format!(
            "install the same build on {host} and here; slurmctld loads a new one at its start: `systemctl restart slurmctld`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurmctld_of_another_build_is_named() {
        assert_eq!(other_build(None, "ctl"), None);
        assert_eq!(other_build(Some(BUILD), "ctl"), None);
        let found = other_build(Some("0.0.9"), "ctl").unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.what.contains("build 0.0.9"), "{found:?}");
        assert!(
            found.fix.contains("systemctl restart slurmctld"),
            "{found:?}"
        );
    }

    #[test]
    fn an_answer_is_a_sum_or_why_there_is_none() {
        let sum: PoolsSum = "0123456789abcdef".parse().unwrap();
        let printed = format!(
            "sbatch: error: {}\nallocation failure: x\n",
            sum.answer("0.2")
        );
        let told = PluginPools::Sum(sum, Some("0.2".to_owned()));
        assert_eq!(PluginPools::parse(&printed), Some(told));
        // An earlier build.
        let printed = printed.replace(" of build 0.2", "");
        assert_eq!(
            PluginPools::parse(&printed),
            Some(PluginPools::Sum(sum, None))
        );
        let printed =
            "sbatch: error: gpufrac: fractions are not available now: cannot read it\nx\n";
        let why = PluginPools::NoPools("cannot read it".to_owned());
        assert_eq!(PluginPools::parse(printed), Some(why));
        assert_eq!(PluginPools::parse("sbatch: error: no\n"), None);
    }
}
