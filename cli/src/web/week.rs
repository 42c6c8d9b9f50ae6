//! The last days, from usage records.

use std::path::Path;

use gpufrac_core::config::Paths;
use gpufrac_records::usage::Line;
use gpufrac_report::audit::{Audit, Balance};
use gpufrac_report::ledger::Ledger;
use gpufrac_report::period::{self, Period};
use gpufrac_report::sacct::Runs;
use gpufrac_web::Day;
use jiff::ToSpan;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::export::Export;
use crate::error::CliError;
use crate::report::files;

/// Days before today.
const DAYS_BEFORE: i64 = 6;
/// Seconds for which the sums are used: reading the records of a large cluster takes seconds.
const AGE: u64 = 3600;
const FILE: &str = "week.json";
/// Unit-seconds of an hour of a GPU.
const GPU_HOUR: f64 = 360_000.0;

/// The file of the days.
#[derive(Serialize, Deserialize)]
struct Week {
    version: u32,
    /// When the records were read: seconds since 1970.
    read: u64,
    days: Option<Vec<Day>>,
}

/// The days; None where there are no records.
pub fn days(export: &Export, paths: &Paths, now: u64) -> Result<Option<Vec<Day>>, CliError> {
    let known = export
        .read("", FILE)
        .and_then(|text| serde_json::from_str::<Week>(&text).ok());
    let is_new = |week: &Week| {
        week.version == gpufrac_web::VERSION && (week.read..week.read + AGE).contains(&now)
    };
    if let Some(week) = known.filter(is_new) {
        return Ok(week.days);
    }
    let week = Week {
        version: gpufrac_web::VERSION,
        read: now,
        days: read(paths, now)?,
    };
    let text = serde_json::to_string(&week)?;
    export.put("", FILE, &(text + "\n"))?;
    Ok(week.days)
}

fn read(paths: &Paths, now: u64) -> Result<Option<Vec<Day>>, CliError> {
    let zone = TimeZone::system();
    let Some(period) = week(now, &zone) else {
        return Ok(None);
    };
    let state = Path::new(&paths.state);
    if paths.shared.is_none() && !state.is_dir() {
        return Ok(None);
    }
    let found = files::of(paths, period)?;
    if found.is_empty() {
        return Ok(None);
    }
    let mut ledger = Ledger::new(period, Runs::default());
    let mut audit = Audit::default();
    for file in &found {
        files::lines(file, |_, text| match Line::parse(text) {
            Ok(Line::Slice(record)) => {
                let (is_new, _) = ledger.slice(&record);
                if is_new {
                    audit.slice(&record);
                }
            }
            Ok(Line::Gpu(gpu)) => audit.gpu(gpu),
            // `gpufrac report` names lines that cannot be read.
            Ok(Line::End(..)) | Err(_) => {}
        })?;
    }
    let begins = period.days(&zone);
    let ends = begins.iter().skip(1).copied().chain([period.until]);
    let days = begins.iter().zip(ends).map(|(&since, until)| {
        let balance = audit.balance(Period { since, until }, now).all;
        day(period::day_text(since, &zone), &balance)
    });
    Ok(Some(days.collect()))
}

/// From the beginning of a day on, until now.
fn week(now: u64, zone: &TimeZone) -> Option<Period> {
    let today = jiff::Timestamp::from_second(i64::try_from(now).ok()?).ok()?;
    let first = today.to_zoned(zone.clone()).start_of_day().ok()?;
    let first = first.checked_sub(DAYS_BEFORE.days()).ok()?;
    let since = u64::try_from(first.timestamp().as_second()).ok()?;
    (since < now).then_some(Period { since, until: now })
}

fn day(name: String, balance: &Balance) -> Day {
    let hours = |units: u64| units as f64 / GPU_HOUR;
    Day {
        name,
        busy: hours(balance.busy),
        idle: hours(balance.idle),
        unknown: hours(balance.unknown + balance.suspended),
        free: hours(balance.free + balance.unplaceable),
        down: hours(balance.down),
    }
}
