//! Finds the records of a job, and explains why it was warned or ended.

use std::io::Read;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use serde::Deserialize;

use crate::keep::evidence::{Decision, Event, Record, VERSION};
use crate::measure::sample::Source;
use crate::report::chart;
use crate::report::words::{
    amount, clipped, done, event_time, listed, plain, remedies, rule, span_ms, stall, utc, wrapped,
};

/// The largest file that is read; records are much smaller.
const MOST_RECORD_BYTES: u64 = 4 << 20;

/// The reasons why a record cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// The text is not one job's number.
    /// Cure: Write the number that `squeue -o %A` prints.
    #[error(
        "`{text}` is not the id of one job: write the id that `squeue -o %A` and `sacct -o JobIDRaw` print, also for tasks of an array and components of a het job"
    )]
    NotAJob {
        /// The text as written.
        text: String,
    },
    /// A folder or file could not be read.
    #[error("reading `{}` failed: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The record was written by another build.
    /// Cure: Use the gpufrac of the node.
    #[error("`{}` is of version {found}, this gpufrac reads version {VERSION}", path.display())]
    Version {
        path: PathBuf,
        /// The version of the record.
        found: u64,
    },
    /// The record is not complete, for example after a full disk.
    /// Cure: Nothing can restore the record. Free space on the node.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// The records of a job.
#[derive(Debug, Default)]
pub struct Found {
    /// The records, in the order in which their leases were written.
    pub records: Vec<Record>,
    /// Records that could not be read; the others are still shown.
    pub problems: Vec<WhyError>,
}

/// The id of a job in a user's text.
pub fn job_id(text: &str) -> Result<JobId, WhyError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let id = digits.then(|| text.parse().ok()).flatten();
    // scontrol and squeue take 0 for all jobs.
    let id = id.filter(|id| *id != JobId(0));
    id.ok_or_else(|| WhyError::NotAJob { text: plain(text) })
}

/// Looks for a job's records in these folders, with the permissions of the caller. A missing folder has none.
pub fn find(job: JobId, places: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for place in places {
        let files = files(job, place).unwrap_or_else(|problem| {
            found.problems.push(problem);
            Vec::new()
        });
        for path in files {
            match read(job, &path) {
                Ok(Some(record)) => found.records.push(record),
                Ok(None) => {}
                Err(problem) => found.problems.push(problem),
            }
        }
    }
    found.records = once_each(found.records);
    found
}

/// The files of a job: `JOB.json`, and those that begin with `JOB-`.
fn files(job: JobId, place: &Path) -> Result<Vec<PathBuf>, WhyError> {
    let failed = |source| WhyError::Read {
        path: place.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let job = job.to_string();
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_suffix(".json")?.strip_prefix(&job));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The key that every version of a record has.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Reads a record; None if its job has just ended and the file was moved.
fn read(job: JobId, path: &Path) -> Result<Option<Record>, WhyError> {
    let failed = |source| WhyError::Read {
        path: path.to_owned(),
        source,
    };
    let damaged = |reason: String| WhyError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    let length = file.take(MOST_RECORD_BYTES + 1).read_to_end(&mut bytes);
    if length.map_err(failed)? as u64 > MOST_RECORD_BYTES {
        return Err(damaged(format!(
            "it has more than {MOST_RECORD_BYTES} bytes"
        )));
    }
    // The version is read first, because another version may give the other keys another meaning.
    let Version { version } =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if version != u64::from(VERSION) {
        return Err(WhyError::Version {
            path: path.to_owned(),
            found: version,
        });
    }
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if record.job == job {
        Ok(Some(record))
    } else {
        Err(damaged(format!("it is of job {}", record.job)))
    }
}

/// Of several copies of a record the one that was written last.
fn once_each(mut records: Vec<Record>) -> Vec<Record> {
    let same = |one: &Record| (one.created_unix, one.node.clone());
    let samples = |one: &Record| -> u64 {
        let points = one.series.points.iter();
        points.map(|point| u64::from(point.samples)).sum()
    };
    let age = |one: &Record| (one.ended_ms.is_some(), one.events.len(), samples(one));
    records.sort_by_key(|one| (same(one), std::cmp::Reverse(age(one))));
    records.dedup_by_key(|one| same(one));
    records
}

/// A record as text for people, in lines of about `width` characters.
pub fn explain(record: &Record, width: usize) -> Vec<String> {
    let mut lines = head(record, width);
    lines.push(String::new());
    lines.extend(wrapped(&measured(record), width, ""));
    lines.push(String::new());
    if record.events.is_empty() {
        lines.push("No decision was made about this job.".to_owned());
    }
    for event in &record.events {
        lines.extend(wrapped(&sentence(record, event), width, "  "));
    }
    lines.push(String::new());
    lines.extend(chart::terminal(record, width));
    let advice = advice(record);
    if !advice.is_empty() {
        lines.push(String::new());
    }
    for (at, paragraph) in advice.iter().enumerate() {
        lines.extend(match at {
            0 => wrapped(paragraph, width, ""),
            _ => listed(paragraph, width),
        });
    }
    lines
}

fn head(record: &Record, width: usize) -> Vec<String> {
    let account = record.account.as_deref().filter(|name| !name.is_empty());
    let restarts = match record.restart_count {
        0 => String::new(),
        count => format!(", requeued {count} times before"),
    };
    let until = match record.ended_ms {
        Some(ended) => format!("until {}", event_time(record, ended)),
        None => "still running when written".to_owned(),
    };
    let gib = record.memory_mib as f64 / 1024.0;
    let rows = [
        format!(
            "job {} on node {}{restarts}",
            record.job,
            plain(&record.node)
        ),
        format!(
            "user {}, account {}, partition {}",
            plain(&record.user),
            account.map_or("-".to_owned(), plain),
            plain(&record.partition)
        ),
        format!(
            "slice: {} of pool {} ({}), {:.1} GiB, device {}",
            amount(&record.fraction),
            plain(&record.pool),
            plain(&record.profile),
            (gib * 10.0).floor() / 10.0,
            plain(&record.device)
        ),
        format!("requested: --gpufrac-idle={}", record.wish),
        format!("measured from {}, {until}", utc(record.began_unix)),
    ];
    rows.iter()
        .flat_map(|row| wrapped(row, width, "  "))
        .collect()
}

/// The sources of the samples, and their results in percent.
fn measured(record: &Record) -> String {
    let points = record.series.points.iter();
    let sum = points.fold((0, 0, 0), |(samples, busy, unknown), point| {
        let add = |sum: u64, more: u32| sum + u64::from(more);
        (
            add(samples, point.samples),
            add(busy, point.busy),
            add(unknown, point.unknown),
        )
    });
    let (samples, busy, unknown) = sum;
    if samples == 0 {
        return "No sample was taken.".to_owned();
    }
    let percent = |part: u64| 100.0 * part as f64 / samples as f64;
    let points = || {
        record
            .series
            .points
            .iter()
            .filter(|point| point.samples > 0)
    };
    let used = |source: &Source| points().any(|point| point.source == *source);
    let names = Source::ALL.iter().filter(|source| used(source));
    let names: Vec<&str> = names.map(|source| source.name()).collect();
    format!(
        "{samples} samples by {}: the slice was busy in {:.1} % of them; {:.1} % had no value, which counts as busy.",
        names.join(", "),
        percent(busy),
        percent(unknown)
    )
}

fn sentence(record: &Record, event: &Event) -> String {
    let when = event_time(record, event.at_ms);
    let dry_run = if event.dry_run { " in dry-run (logged only)" } else { "" };
    let what = done(event.decision);
    let detail = match event.detail.as_str() {
        "" => String::new(),
        detail => format!("; {}", clipped(detail, 400).trim_end_matches('.')),
    };
    if event.decision == Decision::Clear {
        return format!(
            "{when}: {what}{dry_run}, last sample by {}{detail}.",
            event.source
        );
    }
    format!(
        "{when}: {what}{dry_run} by {}: {} ({}) for {} of {}, last sample by {}{detail}.",
        rule(event),
        stall(event.stall),
        event.stall,
        span_ms(event.stalled_ms),
        span_ms(event.window_ms),
        event.source
    )
}

/// Advice for the user, depending on the last event.
fn advice(record: &Record) -> Vec<String> {
    let Some(last) = record.events.last() else {
        return Vec::new();
    };
    let begin = match last.decision {
        _ if last.dry_run => "The job was not changed: the policy is in dry-run.",
        Decision::Clear => return Vec::new(),
        Decision::Requeue | Decision::Cancel => "To prevent this for the next job:",
        Decision::Warn | Decision::Signal | Decision::Refuse => "What you can do:",
    };
    let mut advice = vec![begin.to_owned()];
    let job = record.ended_ms.is_none().then_some(record.job);
    advice.extend(remedies(job, last.stall));
    advice.push(
        "A job that must wait long for its work can be submitted with `--gpufrac-idle=long`, or `--gpufrac-idle=off`, where the \
         rules of your site allow it."
            .to_owned(),
    );
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::words::example::record;

    struct World {
        _keep: tempfile::TempDir,
        places: Vec<PathBuf>,
    }

    impl World {
        fn new() -> World {
            let keep = tempfile::tempdir().unwrap();
            let places = ["jobs", "kept", "records", "absent"];
            let places = places.map(|name| keep.path().join(name));
            for place in &places[..3] {
                std::fs::create_dir(place).unwrap();
            }
            World {
                places: places.to_vec(),
                _keep: keep,
            }
        }

        fn write(&self, place: usize, name: &str, text: &str) {
            std::fs::write(self.places[place].join(name), text).unwrap();
        }

        fn put(&self, place: usize, name: &str, record: &Record) {
            self.write(place, name, &serde_json::to_string(record).unwrap());
        }
    }

    #[test]
    fn copies_are_one_and_the_longest() {
        let world = World::new();
        let whole = record();
        let mut early = whole.clone();
        early.events.truncate(2);
        early.ended_ms = None;
        let mut elsewhere = whole.clone();
        elsewhere.node = "gn08".to_owned();
        elsewhere.created_unix -= 5;
        let mut again = whole.clone();
        again.created_unix += 900;
        world.put(0, "4242.json", &again);
        world.put(1, "4242-1795000000.json", &early);
        world.put(2, "4242-gn07-1795000000.json", &whole);
        world.put(2, "4242-gn08-1794999995.json", &elsewhere);
        // A record of another job.
        world.write(2, "42421-gn08-1.json", "{");
        world.write(2, ".4242-gn08-1.json.tmp", "{");
        let found = find(JobId(4242), &world.places);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        assert_eq!(found.records, [elsewhere, whole, again]);
    }

    #[test]
    fn unreadable_records_are_named_and_the_others_shown() {
        let world = World::new();
        world.put(1, "4242-1.json", &record());
        world.write(1, "4242-2.json", "{\"version\":2,\"new\":true}");
        world.write(1, "4242-3.json", "{\"version\":1");
        let mut other = record();
        other.job = JobId(1);
        world.put(1, "4242-4.json", &other);
        std::fs::create_dir(world.places[1].join("4242-5.json")).unwrap();
        let found = find(JobId(4242), &world.places);
        assert_eq!(found.records, [record()]);
        let said: Vec<String> = found.problems.iter().map(WhyError::to_string).collect();
        let wanted = [
            "4242-2.json` is of version 2, this gpufrac reads version 1",
            "4242-3.json` is damaged: ",
            "4242-4.json` is damaged: it is of job 1",
            "reading `",
        ];
        assert_eq!(said.len(), wanted.len(), "{said:?}");
        for (said, wanted) in said.iter().zip(wanted) {
            assert!(said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn only_plain_ids_are_ids() {
        assert_eq!(job_id("4242").unwrap(), JobId(4242));
        for wrong in [
            "",
            "123_7",
            "123_[1-3]",
            "12+1",
            "12.0",
            "+12",
            "99999999999",
        ] {
            let said = job_id(wrong).unwrap_err().to_string();
            assert!(said.contains("JobIDRaw"), "{said}");
        }
    }

    #[test]
    fn everything_is_told() {
        let mut told = record();
        told.user = "al\u{1b}[2Jice".to_owned();
        let lines = explain(&told, 100);
        let text = lines.join("\n");
        if std::env::var_os("GPUFRAC_PICTURES").is_some() {
            println!("{text}");
        }
        for wanted in [
            "job 4242 on node gn07",
            "user al?[2Jice, account physics, partition gpu",
            "slice: 0.25 of a GPU of pool h100 (2g.20gb), 19.6 GiB",
            "--gpufrac-idle=default",
            "measured from 2026-11-18 11:06:44 UTC, until 2026-11-18 21:06:44 UTC",
            "3300 samples by gpm: the slice was busy in 37.3 % of them; 7.8 % had no value",
            "2026-11-18 11:26:44 UTC: warned in dry-run (logged only) by",
            "[reaper.rule.interactive]",
            "no process has used the slice since the job started (never-used) for 20m of 2h",
            "used again, last sample by gpm.",
            "(idle) for 3h40m of 4h00m",
            "by gpm; SIGUSR1 to the batch script.",
            "not done by [reaper]",
            "the breaker of the node is open.",
            "requeued by [reaper]",
            "100 % ┤",
            "To prevent this for the next job:",
            "- Use the GPU",
        ] {
            let joined = lines.join(" ").replace("   ", " ").replace("  ", " ");
            assert!(
                text.contains(wanted) || joined.contains(wanted),
                "{wanted}\n{text}"
            );
        }
        assert!(
            lines.iter().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_record_without_samples_or_events_is_told() {
        let mut empty = record();
        empty.events.clear();
        empty.series.points.clear();
        empty.ended_ms = None;
        let text = explain(&empty, 80).join("\n");
        assert!(text.contains("No sample was taken."));
        assert!(text.contains("No decision was made about this job."));
        assert!(text.contains("still running when written"));
        assert!(!text.contains("scancel"));
    }
}
