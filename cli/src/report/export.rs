//! Writes job summaries where jobstats' readers look for them: into `AdminComment` of slurmdbd.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};
use gpufrac_host::exit::Exit;
use gpufrac_host::subprocess::{self, Outcome};
use gpufrac_report::jobstats::{self, Host, Owner};
use gpufrac_report::ledger::LedgerSlice;
use gpufrac_report::period::Period;
use gpufrac_slurm_conf::table::{Header, Row};
use gpufrac_slurm_conf::value;
use gpufrac_slurm_settings::ask_slurm;

use super::accounting::{LONGEST_SILENCE, rows, sacct};
use crate::error::CliError;

/// `AdminComment` is the last one, as it may contain any character.
const FIELDS: &str =
    "JobIDRaw,JobID,State,NNodes,ElapsedRaw,AllocCPUS,TotalCPU,MaxRSS,AllocTRES,Start,AdminComment";

/// The last run of a job.
#[derive(Debug, Clone)]
struct Job {
    /// The id by which sacctmgr means this job alone: `ARRAY_TASK` for a task of an array.
    id: String,
    has_ended: bool,
    nodes: u64,
    elapsed: u64,
    cpus: u64,
    cpu_seconds: f64,
    memory: u64,
    peak: Option<u64>,
    start: u64,
    comment: String,
}

/// The outcome for each job.
#[derive(Debug, Default)]
struct Told {
    written: u32,
    same: u32,
    unmeasured: u32,
    of_jobstats: u32,
    of_others: u32,
    failed: u32,
}

/// Writes a summary for each job that has ended and whose slices were measured, unless another program or a person has
/// written something there.
pub fn run(held: &[LedgerSlice], period: Period, is_dry: bool) -> Result<Exit, CliError> {
    if !is_dry && keeps_no_capitals() {
        return Err(CliError::SmallLetters);
    }
    let jobs = jobs(period)?;
    let mut slices: BTreeMap<u32, Vec<LedgerSlice>> = BTreeMap::new();
    for held in held {
        // Only the last run of a job has its comment.
        if jobs
            .get(&held.job)
            .is_some_and(|job| job.has_ended && job.start == held.from)
        {
            slices.entry(held.job).or_default().push(held.clone());
        }
    }
    let mut told = Told::default();
    for (raw, slices) in slices {
        let Some(job) = jobs.get(&raw) else { continue };
        let Some(summary) = jobstats::summary(&job.run(), &slices) else {
            told.unmeasured += 1;
            continue;
        };
        match Owner::of(&job.comment) {
            _ if job.comment == summary => told.same += 1,
            Owner::Jobstats => told.of_jobstats += 1,
            Owner::Others => told.of_others += 1,
            Owner::Nobody | Owner::Gpufrac if is_dry => {
                println!("{} {summary}", job.id);
                told.written += 1;
            }
            Owner::Nobody | Owner::Gpufrac => match write(&job.id, &summary)? {
                Ok(()) => told.written += 1,
                Err(why) => {
                    // sacctmgr refused it; the text is sacctmgr's. Cure: Run the command as an operator of slurmdbd.
                    eprintln!(
                        "gpufrac: writing the summary of job {} failed: {why}",
                        job.id
                    );
                    told.failed += 1;
                }
            },
        }
    }
    eprintln!("{}", told.text(is_dry));
    Ok(match told.failed {
        0 => Exit::Done,
        _ => Exit::Broken,
    })
}

impl Told {
    fn text(&self, is_dry: bool) -> String {
        let verb = if is_dry { "would be written" } else { "written" };
        format!(
            "{} summaries {verb}, {} are there already; left as they are: {} of jobstats, {} comments of others; {} jobs were not measured",
            self.written, self.same, self.of_jobstats, self.of_others, self.unmeasured
        )
    }
}

impl Job {
    fn run(&self) -> jobstats::Run {
        let host = self.peak.filter(|_| self.nodes == 1).map(|peak| Host {
            cpus: self.cpus,
            cpu_seconds: self.cpu_seconds,
            memory: self.memory,
            peak,
        });
        jobstats::Run {
            elapsed: self.elapsed,
            host: host.filter(|host| host.memory > 0),
        }
    }
}

/// The last runs of all jobs in a period, by the raw id.
fn jobs(period: Period) -> Result<BTreeMap<u32, Job>, CliError> {
    let mut sacct = sacct(period, FIELDS);
    sacct.env("SLURM_TIME_FORMAT", "%s");
    let (mut jobs, header) = (BTreeMap::new(), Header::of(FIELDS));
    let has_answered = rows(&mut sacct, LONGEST_SILENCE, &mut |line| {
        if let Ok(row) = header.open_line(line) {
            add(&row, &mut jobs);
        }
    })?;
    if has_answered { Ok(jobs) } else { Err(CliError::NoAccounting) }
}

/// Adds the job of a row, or the memory of a step to its job.
fn add(row: &Row<'_>, jobs: &mut BTreeMap<u32, Job>) {
    let text = |name| row.text(&[name]).unwrap_or_default();
    let (raw, id, state) = (text("JobIDRaw"), text("JobID"), text("State"));
    let size = |text: &str| value::bytes(text).map(|bytes| bytes as u64);
    if let Some((job, _)) = raw.split_once('.') {
        // Steps follow their job.
        let job = job.parse().ok().and_then(|job| jobs.get_mut(&job));
        if let (Some(job), Some(peak)) = (job, size(text("MaxRSS"))) {
            job.peak = job.peak.max(Some(peak));
        }
        return;
    }
    let Ok(raw) = raw.parse::<u32>() else {
        return;
    };
    let number = |name| text(name).parse().unwrap_or(0);
    let job = Job {
        id: if id.contains('_') { id.to_owned() } else { raw.to_string() },
        has_ended: !["RUNNING", "SUSPENDED", "PENDING", "COMPLETING", "REQUEUED"]
            .iter()
            .any(|open| state.starts_with(open)),
        nodes: number("NNodes"),
        elapsed: number("ElapsedRaw"),
        cpus: number("AllocCPUS"),
        cpu_seconds: value::span(text("TotalCPU"))
            .unwrap_or_default()
            .as_secs_f64(),
        memory: value::tres(text("AllocTRES"), "mem")
            .and_then(size)
            .unwrap_or(0),
        peak: None,
        start: number("Start"),
        comment: text("AdminComment").to_owned(),
    };
    jobs.insert(raw, job);
}

/// Whether sacctmgr writes `AdminComment` in small letters, in which a summary cannot be decoded: before Slurm 23.02
/// (`strip_quotes` in `_set_rec` of its `job_functions.c`).
fn keeps_no_capitals() -> bool {
    let version = ask_slurm("sacctmgr", &["--version"]);
    version.is_ok_and(|version| is_before_23_02(&version))
}

/// Of a text such as `slurm 23.02.7`, in Debian `slurm-wlm 22.05.8`; a text in another form is of no known release.
fn is_before_23_02(version: &str) -> bool {
    let number = version.split_whitespace().last().unwrap_or_default();
    let release = number.parse::<SlurmRelease>();
    release.is_ok_and(|release| release.series < SlurmSeries::new(23, 2))
}

/// The longest time for one summary.
const LIMIT: Duration = Duration::from_secs(60);

fn write(id: &str, summary: &str) -> Result<Result<(), String>, CliError> {
    let mut sacctmgr = Command::new("sacctmgr");
    sacctmgr
        .args(["-i", "modify", "job", "where"])
        .arg(format!("jobid={id}"))
        .arg("set")
        .arg(format!("AdminComment={summary}"));
    said(&mut sacctmgr, id, LIMIT)
}

/// Runs a command of sacctmgr; its answer where it refuses. All jobs would wait for an sacctmgr that hangs.
fn said(sacctmgr: &mut Command, id: &str, limit: Duration) -> Result<Result<(), String>, CliError> {
    match subprocess::run(sacctmgr, b"", limit) {
        Ok(Outcome::Ended(ended)) if ended.status.success() => Ok(Ok(())),
        Ok(Outcome::Ended(ended)) => Ok(Err(ended.text())),
        Ok(Outcome::Silent) => Err(CliError::Sacctmgr {
            id: id.to_owned(),
            limit,
        }),
        Err(error) => Ok(Err(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_written_only_by_an_sacctmgr_that_keeps_capitals() {
        for (version, expected) in [
            ("slurm-wlm 22.05.8\n", true),
            ("slurm 21.08.8-2", true),
            ("slurm 23.02.0", false),
            ("slurm 26.05.5", false),
            ("slurm-wlm", false),
            ("", false),
        ] {
            assert_eq!(is_before_23_02(version), expected, "{version}");
        }
    }

    #[test]
    fn an_sacctmgr_that_hangs_ends_the_export() {
        let mut sacctmgr = Command::new("sleep");
        let error = said(sacctmgr.arg("1000"), "7", Duration::from_millis(100)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "writing the summary of job 7 failed: sacctmgr did not answer within 0 s; repeat the command when slurmdbd answers"
        );
    }
}
