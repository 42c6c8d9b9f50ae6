//! Rows of sacct: what Slurm's accounting knows of jobs, to be joined with usage records.

use std::collections::HashMap;

use gpufrac_core::count_name::CountName;
use gpufrac_usage::{Ended, UsageRecord};

/// The fields that are asked for, as `--format` of sacct takes them. All of them are in every series.
pub const FIELDS: [&str; 11] = [
    "JobIDRaw",
    "User",
    "Account",
    "QOS",
    "Partition",
    "State",
    "ElapsedRaw",
    "Start",
    "End",
    "AllocTRES",
    "NodeList",
];

/// The arguments of sacct for all runs of all jobs in a period, in UTC when `TZ` says so: `since` and `until` as sacct reads them.
#[must_use]
pub fn arguments(since: &str, until: &str) -> Vec<String> {
    let format = format!("--format={}", FIELDS.join(","));
    let fixed = [
        "--allocations",
        "--duplicates",
        "--allusers",
        "--parsable2",
        "--noheader",
    ];
    let period = [
        format!("--starttime={since}"),
        format!("--endtime={until}"),
        format,
    ];
    fixed
        .iter()
        .map(|&word| word.to_owned())
        .chain(period)
        .collect()
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Slurm's id of the job.
    pub job: u32,
    /// Its user.
    pub user: String,
    /// Its account.
    pub account: String,
    /// Its QOS.
    pub qos: String,
    /// Its partition.
    pub partition: String,
    /// Why it ended; None while it runs.
    pub ended: Option<Ended>,
    /// How long it ran, without suspensions: seconds.
    pub elapsed: u64,
    /// When it started: seconds since 1970.
    pub start: u64,
    /// Units of `gres/gpufrac`, or of the name in `[gres]`, on all of its nodes together; 100 are a GPU.
    pub units: u64,
    /// Its nodes, as Slurm's hostlist.
    pub nodes: String,
}

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Another number of fields.
    #[error("the row has {found} fields instead of {}", FIELDS.len())]
    Fields {
        /// How many there are.
        found: usize,
    },
    /// A field that is no number.
    #[error("the field {name} is `{value}`, not a {expected}")]
    Value {
        /// The field.
        name: &'static str,
        /// Its text.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
}

impl Run {
    /// Reads a row of [`FIELDS`]; None for one that never started. `count_name`: the GRES that counts fractions.
    ///
    /// # Errors
    /// When it has other fields, or a field cannot be read.
    pub fn parse(row: &str, count_name: &CountName) -> Result<Option<Run>, RowError> {
        let fields: Vec<&str> = row.split('|').collect();
        let Ok(
            [
                job,
                user,
                account,
                qos,
                partition,
                state,
                elapsed,
                start,
                _,
                tres,
                nodes,
            ],
        ) = <[&str; 11]>::try_from(fields.as_slice())
        else {
            return Err(RowError::Fields {
                found: fields.len(),
            });
        };
        let Some(start) = time("Start", start)? else {
            return Ok(None);
        };
        Ok(Some(Run {
            job: number("JobIDRaw", job)?,
            user: user.to_owned(),
            account: account.to_owned(),
            qos: qos.to_owned(),
            partition: partition.to_owned(),
            ended: ended(state),
            elapsed: number("ElapsedRaw", elapsed)?,
            start,
            units: units(tres, count_name)?,
            nodes: nodes.to_owned(),
        }))
    }
}

fn number<T: std::str::FromStr>(name: &'static str, value: &str) -> Result<T, RowError> {
    value.parse().map_err(|_| RowError::Value {
        name,
        value: value.to_owned(),
        expected: "number",
    })
}

/// `2026-11-23T08:00:00`, in UTC: seconds since 1970. None for `Unknown` and `None`.
fn time(name: &'static str, value: &str) -> Result<Option<u64>, RowError> {
    if matches!(value, "Unknown" | "None" | "") {
        return Ok(None);
    }
    let civil = value.parse::<jiff::civil::DateTime>().ok();
    let zoned = civil.and_then(|civil| civil.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let second = zoned.and_then(|zoned| u64::try_from(zoned.timestamp().as_second()).ok());
    second.map(Some).ok_or_else(|| RowError::Value {
        name,
        value: value.to_owned(),
        expected: "time",
    })
}

/// States as sacct shows them (`CANCELLED by 1000`).
fn ended(state: &str) -> Option<Ended> {
    match state.split(' ').next().unwrap_or_default() {
        "RUNNING" | "SUSPENDED" | "PENDING" | "COMPLETING" => None,
        "PREEMPTED" => Some(Ended::Preempted),
        "NODE_FAIL" | "BOOT_FAIL" => Some(Ended::NodeFailure),
        _ => Some(Ended::Done),
    }
}

/// `gres/gpufrac` of `billing=25,cpu=1,gres/gpufrac=25`.
fn units(tres: &str, count_name: &CountName) -> Result<u64, RowError> {
    let head = format!("gres/{count_name}=");
    let mut items = tres.split(',');
    let own = items.find_map(|item| item.strip_prefix(&head));
    own.map_or(Ok(0), |count| number("AllocTRES", count))
}

/// All runs, by job.
#[derive(Debug, Default)]
pub struct Runs {
    by_job: HashMap<u32, Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    run: Run,
    has_records: bool,
}

/// A prolog may take this long, and clocks of nodes may differ by some of it: seconds between the start of a run and the
/// lease of it.
const LONGEST_PROLOG_S: u64 = 300;

impl Runs {
    /// Adds a run.
    pub fn add(&mut self, run: Run) {
        self.by_job.entry(run.job).or_default().push(Known {
            run,
            has_records: false,
        });
    }

    /// The run of a record: that of its job whose start is the nearest to the beginning of the lease. Slurm does not say in
    /// all series how often a job had been requeued.
    pub fn of(&mut self, record: &UsageRecord) -> Option<&Run> {
        let begin = record.end.saturating_sub(record.seconds);
        let runs = self.by_job.get_mut(&record.job.0)?;
        let near = runs
            .iter_mut()
            .min_by_key(|known| known.run.start.abs_diff(begin))?;
        if near.run.start.abs_diff(begin) > LONGEST_PROLOG_S {
            return None;
        }
        near.has_records = true;
        Some(&near.run)
    }

    /// Runs with fractions of which no record was found, by job and start.
    #[must_use]
    pub fn without_records(&self) -> Vec<&Run> {
        let all = self.by_job.values().flatten();
        let missing = all.filter(|known| !known.has_records && known.run.units > 0);
        let mut missing: Vec<&Run> = missing.map(|known| &known.run).collect();
        missing.sort_by_key(|run| (run.job, run.start));
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "12|ann|physics|normal|gpu|CANCELLED by 1000|60|2026-11-23T08:00:00|2026-11-23T08:01:00|billing=25,cpu=1,gres/gpufrac=25,node=1|gn01";

    fn parse(row: &str) -> Result<Option<Run>, RowError> {
        Run::parse(row, &CountName::default())
    }

    #[test]
    fn a_row_is_read() {
        let run = parse(ROW).unwrap().unwrap();
        assert_eq!((run.job, run.elapsed, run.units), (12, 60, 25));
        assert_eq!(run.start, 1_795_420_800);
        assert_eq!(run.ended, Some(Ended::Done));
        for (state, expected) in [
            ("PREEMPTED", Some(Ended::Preempted)),
            ("NODE_FAIL", Some(Ended::NodeFailure)),
            ("RUNNING", None),
        ] {
            let row = ROW.replace("CANCELLED by 1000", state);
            assert_eq!(parse(&row).unwrap().unwrap().ended, expected);
        }
    }

    #[test]
    fn fractions_may_have_another_name() {
        let row = ROW.replace("gres/gpufrac", "gres/frac");
        let run = Run::parse(&row, &"frac".parse().unwrap()).unwrap().unwrap();
        assert_eq!(run.units, 25);
        assert_eq!(parse(&row).unwrap().unwrap().units, 0);
    }

    #[test]
    fn a_job_that_never_started_is_none_and_a_damaged_row_is_an_error() {
        let row = ROW.replace("2026-11-23T08:00:00", "Unknown");
        assert_eq!(parse(&row).unwrap(), None);
        for (row, part) in [
            (ROW.replace("|gn01", ""), "10 fields"),
            (ROW.replace("|60|", "|1:00|"), "ElapsedRaw"),
            (ROW.replace("=25,node", "=x,node"), "AllocTRES"),
            (ROW.replace("2026-11-23T08:00:00", "yesterday"), "Start"),
        ] {
            let error = parse(&row).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
