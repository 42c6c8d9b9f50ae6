//! Telemetry as CSV, with the columns job, time, utilisation (percent) and memory (MiB): an export of Prometheus or DCGM.

use std::collections::HashMap;
use std::io::{self, Read};

use super::value;
use crate::job::History;

/// A sample up to this utilisation is idle: percent.
const IDLE: f64 = 0.0;

/// The longest time between two samples of one span: seconds. A gap counts as activity.
const GAP: u64 = 900;

/// The shortest span of idleness that is kept: seconds.
const SHORTEST: u64 = 600;

/// The sums of a job.
#[derive(Default)]
struct Seen {
    samples: u32,
    utilisation: f64,
    memory: f64,
    last: u64,
    idle_since: Option<u64>,
    idle: Vec<(u64, u64)>,
}

impl Seen {
    fn add(&mut self, time: u64, utilisation: f64, memory: f64) {
        let is_gap = self.samples > 0 && time.saturating_sub(self.last) > GAP;
        if utilisation > IDLE || is_gap {
            self.close();
        }
        if utilisation <= IDLE {
            self.idle_since.get_or_insert(time);
        }
        self.samples += 1;
        self.utilisation += utilisation;
        self.memory = self.memory.max(memory);
        self.last = time;
    }

    fn close(&mut self) {
        if let Some(since) = self.idle_since.take()
            && self.last.saturating_sub(since) >= SHORTEST
        {
            self.idle.push((since, self.last - since));
        }
    }
}

/// Adds what the samples say to the jobs of a history. Samples of a job are in the order of time; a job has no more than one
/// sample at a time for each GPU. Returns the number of jobs with samples.
///
/// # Errors
/// When the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<usize> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(source);
    let headers: Vec<String> = reader
        .headers()?
        .iter()
        .map(str::to_ascii_lowercase)
        .collect();
    let column = |names: &[&str]| {
        headers
            .iter()
            .position(|name| names.contains(&name.as_str()))
    };
    let columns = [
        column(&["job", "jobid"]),
        column(&["time", "timestamp"]),
        column(&["utilisation", "utilization"]),
        column(&["memory", "memory_mib"]),
    ];
    let [Some(job), Some(time), Some(utilisation), memory] = columns else {
        let wrong = "the columns are not job, time, utilisation and memory; name them so";
        return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
    };
    let mut seen: HashMap<String, Seen> = HashMap::new();
    for row in reader.records() {
        let row = match row {
            Ok(row) => row,
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => {
                history.skipped.line(
                    place,
                    error.position().map_or(0, csv::Position::line),
                    &error,
                );
                continue;
            }
        };
        let line = row.position().map_or(0, csv::Position::line);
        let field = |at: Option<usize>| at.and_then(|at| row.get(at)).unwrap_or_default();
        let number = |text: &str| {
            text.parse::<f64>()
                .ok()
                .filter(|value| value.is_finite() && *value >= 0.0)
        };
        // Prometheus writes seconds with decimals.
        let when = value::time(field(Some(time)))
            .ok()
            .flatten()
            .or_else(|| number(field(Some(time))).map(|time| time as u64));
        let memory = match memory {
            Some(at) => number(field(Some(at))),
            None => Some(0.0),
        };
        match (when, number(field(Some(utilisation))), memory) {
            (Some(when), Some(percent), Some(memory))
                if percent <= 100.0 && !field(Some(job)).is_empty() =>
            {
                seen.entry(field(Some(job)).to_owned())
                    .or_default()
                    .add(when, percent, memory);
            }
            _ => history
                .skipped
                .line(place, line, &"a value is missing or no number"),
        }
    }
    Ok(apply(history, &mut seen))
}

/// Returns the number of jobs with samples.
fn apply(history: &mut History, seen: &mut HashMap<String, Seen>) -> usize {
    let mut known = 0;
    for job in &mut history.jobs {
        let Some(seen) = seen.get_mut(&*job.id) else {
            continue;
        };
        seen.close();
        known += 1;
        let start = job.submit + job.waited;
        job.need.activity = Some((seen.utilisation / f64::from(seen.samples) / 100.0) as f32);
        if seen.memory > 0.0 {
            job.need.memory_mib = Some(seen.memory as f32);
        }
        let since_start = |(from, length): &(u64, u64)| {
            let from = from.saturating_sub(start);
            (
                u32::try_from(from).unwrap_or(u32::MAX),
                u32::try_from(*length).unwrap_or(u32::MAX),
            )
        };
        job.idle = seen.idle.iter().map(since_start).collect();
    }
    known
}
