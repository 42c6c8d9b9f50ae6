//! The time range of a chart, and the measurements in a part of it.

use gpufrac_records::evidence::{Point, Record};

/// Seconds from the start of a record to its last sample or event, or to the end of the job; always more than 0.
pub(super) fn life(record: &Record) -> f64 {
    let step = step(record);
    let sampled = record.series.points.len() as f64 * step;
    let told = record.events.iter().map(|event| seconds(event.at_ms));
    let ended = record.ended_ms.map(seconds);
    let last = told.chain(ended).fold(sampled, f64::max);
    last.max(1.0)
}

/// Seconds from one point to the next.
pub(super) fn step(record: &Record) -> f64 {
    seconds(record.series.step_ms.max(1))
}

pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// The measurements of a range of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// There is no sample.
    Gap,
    /// There are samples, all with unknown activity.
    Unknown,
    /// At least one sample has a known activity.
    Measured,
}

impl Coverage {
    pub(super) fn of(point: &Point) -> Coverage {
        match point.samples {
            0 => Coverage::Gap,
            samples if point.unknown >= samples => Coverage::Unknown,
            _ => Coverage::Measured,
        }
    }
}

/// The activity, limited to 0 to 1.
pub(super) fn busy_share(point: &Point) -> f64 {
    match f64::from(point.peak) {
        peak if peak.is_finite() => peak.clamp(0.0, 1.0),
        _ => 0.0,
    }
}

/// The unit for a duration in seconds, and its name.
pub(super) fn unit(life: f64) -> (f64, &'static str) {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 60.0 * MINUTE;
    const DAY: f64 = 24.0 * HOUR;
    if life < 3.0 * MINUTE {
        (1.0, "s")
    } else if life < 3.0 * HOUR {
        (MINUTE, "min")
    } else if life < 4.0 * DAY {
        (HOUR, "h")
    } else {
        (DAY, "d")
    }
}
