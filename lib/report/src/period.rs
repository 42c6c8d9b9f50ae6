//! The period of a report.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};

/// From the first second to the last one, which is not part of it: seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// The first second.
    pub since: u64,
    /// The second after the last one.
    pub until: u64,
}

/// Why a time cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PeriodError {
    /// The time is in another form.
    /// Cure: Write one of these.
    #[error(
        "reading the time `{0}` failed: it is neither a date, nor a time, nor a span; write 2026-11-01, 2026-11-01T08:00, now, today, or a span before now such as 7d or 12h"
    )]
    Text(String),
    /// The period ends before it begins.
    /// Cure: Follow the text.
    #[error(
        "the period is empty: {since} is not before {until}; write an earlier --since or a later --until"
    )]
    Empty {
        /// The text for its beginning.
        since: String,
        /// The text for its end.
        until: String,
    },
}

impl Period {
    /// Reads both ends, by the clock and the time zone of `now`.
    /// Errors: when an end cannot be read, or nothing is between them.
    pub fn read(since: &str, until: &str, now: &Zoned) -> Result<Period, PeriodError> {
        let period = Period {
            since: moment(since, now)?,
            until: moment(until, now)?,
        };
        if period.since < period.until {
            Ok(period)
        } else {
            Err(PeriodError::Empty {
                since: since.to_owned(),
                until: until.to_owned(),
            })
        }
    }

    /// Seconds of a time that lie in the period.
    pub fn overlap(&self, from: u64, to: u64) -> u64 {
        to.min(self.until).saturating_sub(from.max(self.since))
    }

    /// Length in seconds.
    pub fn seconds(&self) -> u64 {
        self.until - self.since
    }

    /// Both ends as text, in a time zone.
    pub fn text(&self, zone: &TimeZone) -> String {
        format!("{} to {}", text(self.since, zone), text(self.until, zone))
    }

    /// The first moments of the days in the period, in a time zone; the first one is the beginning of the period.
    pub fn days(&self, zone: &TimeZone) -> Vec<u64> {
        let mut days = vec![self.since];
        let first = zoned(self.since, zone);
        let mut date = first.date();
        while let Ok(next) = date.tomorrow() {
            date = next;
            let Some(begin) = start_of(date, zone) else {
                break;
            };
            if begin >= self.until {
                break;
            }
            days.push(begin);
        }
        days
    }
}

fn zoned(unix: u64, zone: &TimeZone) -> Zoned {
    let second = i64::try_from(unix).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
    time.to_zoned(zone.clone())
}

/// `2026-11-23 08:00`.
pub fn text(unix: u64, zone: &TimeZone) -> String {
    zoned(unix, zone).strftime("%Y-%m-%d %H:%M").to_string()
}

/// `2026-11-23T08:00:00`, in UTC.
pub fn in_utc(unix: u64) -> String {
    zoned(unix, &TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%S")
        .to_string()
}

/// `11-23`.
pub fn day_text(unix: u64, zone: &TimeZone) -> String {
    zoned(unix, zone).strftime("%m-%d").to_string()
}

fn start_of(date: Date, zone: &TimeZone) -> Option<u64> {
    let begin = date.to_zoned(zone.clone()).ok()?;
    u64::try_from(begin.timestamp().as_second()).ok()
}

/// A moment: seconds since 1970.
fn moment(text: &str, now: &Zoned) -> Result<u64, PeriodError> {
    let failed = || PeriodError::Text(text.to_owned());
    let zone = now.time_zone();
    let found = match text.trim() {
        "now" => Some(now.clone()),
        "today" => now.start_of_day().ok(),
        other => {
            let civil = other.parse::<DateTime>().ok();
            let civil = civil.and_then(|time| time.to_zoned(zone.clone()).ok());
            civil.or_else(|| now.checked_sub(span(other)?).ok())
        }
    };
    let second = found.ok_or_else(failed)?.timestamp().as_second();
    u64::try_from(second).map_err(|_| failed())
}

/// `7d`, `12h`, `2w`.
fn span(text: &str) -> Option<Span> {
    let unit = text.chars().last()?;
    let number: i64 = text.strip_suffix(unit)?.parse().ok()?;
    if !(0..1_000_000).contains(&number) {
        return None;
    }
    match unit {
        'h' => Some(number.hours()),
        'd' => Some(number.days()),
        'w' => number.checked_mul(7).map(|days| days.days()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        "2026-11-23T10:30:00[Europe/Zurich]".parse().unwrap()
    }

    fn read(text: &str) -> Option<String> {
        let now = now();
        let unix = moment(text, &now).ok()?;
        Some(super::text(unix, now.time_zone()))
    }

    #[test]
    fn times_are_dates_moments_and_spans() {
        for (text, expected) in [
            ("2026-11-01", "2026-11-01 00:00"),
            ("2026-11-01T08:15", "2026-11-01 08:15"),
            ("now", "2026-11-23 10:30"),
            ("today", "2026-11-23 00:00"),
            ("7d", "2026-11-16 10:30"),
            ("12h", "2026-11-22 22:30"),
            ("1w", "2026-11-16 10:30"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "7",
            "d",
            "-3d",
            "2026-13-01",
            "99999999999d",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn an_empty_period_is_refused() {
        let error = Period::read("now", "7d", &now()).unwrap_err().to_string();
        assert!(error.contains("write an earlier --since"), "{error}");
    }

    #[test]
    fn a_day_on_which_clocks_are_set_has_its_own_length() {
        let period = Period::read("2026-10-24", "2026-10-27", &now()).unwrap();
        let days = period.days(now().time_zone());
        let lengths: Vec<u64> = days
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) / 3600)
            .collect();
        assert_eq!(lengths, [24, 25]);
    }
}
