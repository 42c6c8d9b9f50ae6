//! Telemetry as CSV, with the columns job, time, utilisation (percent) and memory (MiB): an export of Prometheus or
//! DCGM.

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

/// Adds what the samples say to the jobs of a history. Samples of a job are in the order of time; a job has no more
/// than one sample at a time for each GPU. Returns the number of jobs with samples. Errors: when the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<usize> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(source);
    let headers = reader.headers()?.clone();
    let columns = [
        ["job", "jobid"],
        ["time", "timestamp"],
        ["utilisation", "utilization"],
        ["memory", "memory_mib"],
    ];
    let columns = columns.map(|names| {
        let is_one = |own: &str| names.iter().any(|name| own.eq_ignore_ascii_case(name));
        headers.iter().position(is_one)
    });
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
                let line = error.position().map_or(0, csv::Position::line);
                history.skipped.line(place, line, &error);
                continue;
            }
        };
        let line = row.position().map_or(0, csv::Position::line);
        let field = |at: usize| row.get(at).unwrap_or_default();
        let number = |at: usize| {
            let number = field(at).parse::<f64>().ok();
            number.filter(|value| value.is_finite() && *value >= 0.0)
        };
        // Prometheus writes seconds with decimals.
        let when = value::time(field(time)).ok().flatten();
        let when = when.or_else(|| number(time).map(|time| time as u64));
        let memory = memory.map_or(Some(0.0), number);
        let percent = number(utilisation).filter(|percent| *percent <= 100.0);
        match (when, percent, memory) {
            (Some(when), Some(percent), Some(memory)) if !field(job).is_empty() => {
                let seen = seen.entry(field(job).to_owned()).or_default();
                seen.add(when, percent, memory);
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
        let narrow = |seconds: u64| u32::try_from(seconds).unwrap_or(u32::MAX);
        let since_start =
            |(from, length): &(u64, u64)| (narrow(from.saturating_sub(start)), narrow(*length));
        job.idle = seen.idle.iter().map(since_start).collect();
    }
    known
}
