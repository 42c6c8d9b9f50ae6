//! The jobs of a report in Slurm's accounting.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use gpufrac_core::count_name::CountName;
use gpufrac_report::period::{Period, in_utc};
use gpufrac_report::sacct::{self, Run, Runs};

use crate::args::ReportArgs;
use crate::error::CliError;

/// The jobs that accounting knows.
pub struct Known {
    /// The runs of jobs.
    pub runs: Runs,
    /// Whether accounting answered.
    pub is_known: bool,
}

/// Asks sacct, unless it is not wanted. Without slurmdbd, or without sacct, nothing is known: the report says what the
/// records
pub fn runs(args: &ReportArgs, count_name: &CountName, period: Period) -> Result<Known, CliError> {
    let unknown = Known {
        runs: Runs::default(),
        is_known: false,
    };
    if args.no_sacct {
        return Ok(unknown);
    }
    let has_restarts = has_restarts();
    let since = if has_restarts {
        period.since
    } else {
        period.since.saturating_sub(sacct::EARLIER_RUNS_S)
    };
    let arguments = sacct::arguments(&in_utc(since), &in_utc(period.until), has_restarts);
    let spawned = Command::new("sacct")
        .args(arguments)
        .env("TZ", "UTC")
        .env("SLURM_TIME_FORMAT", "standard")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = spawned else {
        return Ok(unknown);
    };
    let mut runs = Runs::default();
    let mut damaged = 0_u64;
    let mut first = None;
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|out| BufReader::new(out).lines())
    {
        match line
            .map_err(CliError::Sacct)
            .map(|line| Run::parse(&line, count_name))?
        {
            Ok(Some(run)) => runs.add(run),
            Ok(None) => {}
            Err(error) => {
                damaged += 1;
                first.get_or_insert(error);
            }
        }
    }
    let ended = child.wait().map_err(CliError::Sacct)?;
    if let Some(error) = first {
        eprintln!(
            "gpufrac: {damaged} rows of sacct cannot be read and were skipped; the first: {error}"
        );
    }
    if ended.success() {
        Ok(Known {
            runs,
            is_known: true,
        })
    } else {
        // Accounting without slurmdbd, or none.
        Ok(unknown)
    }
}

/// Whether this sacct numbers the runs of a job; 22.05 does not.
fn has_restarts() -> bool {
    let fields = Command::new("sacct")
        .arg("--helpformat")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    fields.is_ok_and(|fields| {
        let fields = String::from_utf8_lossy(&fields.stdout);
        fields
            .split_whitespace()
            .any(|name| name == sacct::RESTARTS)
    })
}
