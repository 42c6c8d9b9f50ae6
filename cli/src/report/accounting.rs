//! The jobs of a report in Slurm's accounting.

use std::process::Command;
use std::time::Duration;

use gpufrac_core::count_name::CountName;
use gpufrac_host::subprocess::{self, Outcome};
use gpufrac_report::period::{Period, in_utc};
use gpufrac_report::sacct::{self, Reader, Runs};
use gpufrac_slurm_settings::{ask_slurm, of_own_cluster};

use crate::args::ReportArgs;
use crate::error::CliError;

/// The longest time in which sacct prints nothing: it asks slurmdbd for all jobs before it prints the first one.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// The jobs that accounting knows.
pub struct AccountedJobs {
    /// The runs of jobs.
    pub runs: Runs,
    /// Whether accounting answered.
    pub is_known: bool,
}

/// Asks sacct, unless it is not wanted. Without slurmdbd, or without sacct, nothing is known: the report has only the
/// records.
pub fn runs(
    args: &ReportArgs,
    count_name: &CountName,
    period: Period,
) -> Result<AccountedJobs, CliError> {
    let mut known = AccountedJobs {
        runs: Runs::default(),
        is_known: false,
    };
    if args.no_sacct {
        return Ok(known);
    }
    let has_restarts = has_restarts();
    let since = if has_restarts {
        period.since
    } else {
        period.since.saturating_sub(sacct::EARLIER_RUNS_S)
    };
    let reader = Reader::new(count_name, has_restarts);
    let mut damaged = 0_u64;
    let mut first = None;
    let mut sacct = sacct(Period { since, ..period }, &reader.fields);
    sacct
        .args(["--allocations", "--duplicates"])
        .env("SLURM_TIME_FORMAT", "standard");
    known.is_known = rows(
        &mut sacct,
        LONGEST_SILENCE,
        &mut |line| match reader.run(line) {
            Ok(Some(run)) => known.runs.add(run),
            Ok(None) => {}
            Err(error) => {
                damaged += 1;
                first.get_or_insert(error);
            }
        },
    )?;
    if let Some(error) = first {
        // A row of sacct has another form. Cure: Report it with the row; the jobs of these rows have the times of their
        // leases.
        eprintln!(
            "gpufrac: {damaged} rows of sacct cannot be read and were skipped; the first: {error}"
        );
    }
    if !known.is_known {
        known.runs = Runs::default();
    }
    Ok(known)
}

/// sacct for all jobs in a period.
pub fn sacct(period: Period, fields: &str) -> Command {
    let mut sacct = of_own_cluster("sacct");
    sacct
        .args(["--allusers", "--parsable2", "--noheader"])
        .arg(format!("--starttime={}", in_utc(period.since)))
        .arg(format!("--endtime={}", in_utc(period.until)))
        .arg(format!("--format={fields}"));
    sacct
}

/// Gives each row that sacct prints to `each`, with times in UTC. False where sacct is missing or fails, as it does
/// where accounting has no slurmdbd.
pub fn rows(
    sacct: &mut Command,
    silence: Duration,
    each: &mut dyn FnMut(&str),
) -> Result<bool, CliError> {
    match subprocess::lines(sacct.env("TZ", "UTC"), silence, each) {
        Ok(Outcome::Ended(ended)) => Ok(ended.status.success()),
        Ok(Outcome::Silent) => Err(CliError::Sacct { silence }),
        Err(_) => Ok(false),
    }
}

/// Whether this sacct numbers the runs of a job; 22.05 does not.
fn has_restarts() -> bool {
    let fields = ask_slurm("sacct", &["--helpformat"]).unwrap_or_default();
    let mut fields = fields.split_whitespace();
    fields.any(|name| name == sacct::RESTARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sacct_that_hangs_ends_the_report() {
        let mut sacct = Command::new("sh");
        sacct.args(["-c", "echo 1; sleep 1000; true"]);
        let mut rows_seen = 0;
        let error = rows(&mut sacct, Duration::from_secs(1), &mut |_| rows_seen += 1).unwrap_err();
        assert_eq!(rows_seen, 1);
        assert_eq!(
            error.to_string(),
            "reading the output of sacct failed: it printed nothing for 1 s; repeat the command when slurmdbd answers, or leave sacct out with --no-sacct"
        );
    }
}
