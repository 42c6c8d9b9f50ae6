//! Values as sacct, sacctmgr and scontrol write them.

use std::time::Duration;

use gpufrac_core::per_gpu::PerGpu;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// No time and no span is longer: seconds. Sums of such numbers do not overflow.
pub const LONGEST: u64 = 1 << 40;

/// The text has another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoValue;

/// Seconds since 1970 of `2026-11-23T08:00:00`, or of a number of seconds (`SLURM_TIME_FORMAT=%s`). A time without a
/// zone counts as UTC. None for `Unknown`, `None` and the empty text. Errors: the text is another one.
pub fn time(text: &str) -> Result<Option<u64>, NoValue> {
    if matches!(text, "" | "Unknown" | "None" | "N/A") {
        return Ok(None);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(seconds) if seconds <= LONGEST => Ok(Some(seconds)),
            _ => Err(NoValue),
        };
    }
    let time: DateTime = text
        .get(..19)
        .ok_or(NoValue)?
        .parse()
        .map_err(|_| NoValue)?;
    let since_1970 = TimeZone::UTC.to_timestamp(time).map_err(|_| NoValue)?;
    u64::try_from(since_1970.as_second())
        .map(Some)
        .map_err(|_| NoValue)
}

/// `1-02:03:04`, `1-02`, `02:03:04`, `03:04` or `03:04.567`.
pub fn span(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
        None => (None, text),
    };
    let (clock, decimals) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<u64> = clock
        .split(':')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    // Behind days come hours. A span of one part would be minutes or seconds.
    let [hours, minutes, seconds] = match (days, parts.as_slice()) {
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let span = minutes.checked_mul(60)?.checked_add(seconds)?;
    let is_number = decimals.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = if is_number { format!("0.{decimals}0") } else { "0".to_owned() };
    let decimals = decimals.parse().unwrap_or(0.0);
    (span <= LONGEST).then(|| Duration::from_secs(span) + Duration::from_secs_f64(decimals))
}

/// Seconds of minutes or a span: `1440`, `1-00:00:00`; None for `UNLIMITED`, `Partition_Limit` and the empty text.
/// Errors: the text is another one.
pub fn limit(text: &str) -> Result<Option<u64>, NoValue> {
    let open = ["", "UNLIMITED", "Partition_Limit", "INVALID", "INFINITE"];
    if open.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(None);
    }
    match text.parse::<u64>() {
        // Slurm's INFINITE and NO_VAL.
        Ok(minutes) if minutes >= 0xffff_fffe => Ok(None),
        Ok(minutes) if minutes <= LONGEST / 60 => Ok(Some(minutes * 60)),
        Ok(_) => Err(NoValue),
        Err(_) => Ok(Some(span(text).ok_or(NoValue)?.as_secs())),
    }
}

/// Bytes of `1234M`, `3.5G`, `1024K`, or without a unit. A letter behind the unit says whose they are (`4Gn`).
pub fn bytes(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: f64 = digits.parse().ok()?;
    let shift = match text[digits.len()..].chars().next() {
        None => 0,
        Some(unit) => 10 * ("KMGTP".find(unit)? + 1),
    };
    (number.is_finite() && number >= 0.0).then_some(number * (1_u64 << shift) as f64)
}

/// The value of `name=` in a list of TRES.
pub fn tres<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut items = text.split(',');
    items.find_map(|item| item.strip_prefix(name)?.strip_prefix('='))
}

/// What a GPU brings: `DefCpuPerGPU` and `DefMemPerGPU` by themselves, as files have them, or in `JobDefaults`, as
/// scontrol prints them. `value`: the value of a key of the partition, or of the cluster.
pub fn job_defaults(value: &dyn Fn(&str) -> Option<String>) -> PerGpu {
    let all = value("JobDefaults").unwrap_or_default();
    let number = |name: &str| {
        let mut pairs = all.split(',').filter_map(|pair| pair.split_once('='));
        let joined = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
        let own = value(name);
        own.as_deref()
            .or(joined.map(|(_, number)| number))
            .and_then(|text| text.trim().parse().ok())
    };
    PerGpu {
        cpus: number("DefCpuPerGPU"),
        memory: number("DefMemPerGPU"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_each_form() {
        assert_eq!(time("2026-11-23T08:00:00"), Ok(Some(1_795_420_800)));
        assert_eq!(time("2026-11-23 08:00:00"), Ok(Some(1_795_420_800)));
        assert_eq!(time("1795420800"), Ok(Some(1_795_420_800)));
        assert_eq!(time("Unknown"), Ok(None));
        for text in [
            "yesterday",
            "2026-13-01T00:00:00",
            "2026-1-1T00:00",
            "2026-11-23T25:00:00",
        ] {
            assert_eq!(time(text), Err(NoValue), "{text}");
        }
    }

    fn seconds(text: &str) -> Option<u64> {
        Some(span(text)?.as_secs())
    }

    #[test]
    fn spans_and_limits_are_read() {
        assert_eq!(seconds("1-02:03:04"), Some(93_784));
        assert_eq!(seconds("03:04.567"), Some(184));
        assert_eq!(seconds("7-0"), Some(604_800));
        assert_eq!(seconds("1-12:30"), Some(131_400));
        assert_eq!(seconds("x"), None);
        assert_eq!(limit("1440"), Ok(Some(86_400)));
        assert_eq!(limit("1-00:00:00"), Ok(Some(86_400)));
        assert_eq!(limit("UNLIMITED"), Ok(None));
        assert_eq!(limit("4294967295"), Ok(None));
        assert_eq!(limit("soon"), Err(NoValue));
    }

    #[test]
    fn times_and_sizes_of_sacct_are_read() {
        for (text, expected) in [
            ("00:00:00", Some(0.0)),
            ("01:30.500", Some(90.5)),
            ("02:03:04", Some(7384.0)),
            ("1-00:00:01", Some(86_401.0)),
            ("", None),
        ] {
            assert_eq!(
                span(text).map(|span| span.as_secs_f64()),
                expected,
                "{text}"
            );
        }
        for (text, expected) in [
            ("4G", Some(4 << 30)),
            ("512", Some(512)),
            ("1.50M", Some(3 << 19)),
            ("4832K", Some(4832 << 10)),
            ("", None),
        ] {
            assert_eq!(bytes(text).map(|bytes| bytes as u64), expected, "{text}");
        }
    }
}
