//! Values as Slurm writes them.

/// No time and no span of a history is longer: seconds. Sums of such numbers do not overflow.
pub const LONGEST: u64 = 1 << 40;

/// No job has more GPUs.
const MOST_GPUS: u32 = 1 << 20;

/// Seconds of a number with decimals.
pub fn seconds(number: f64) -> u64 {
    (number.max(0.0) as u64).min(LONGEST)
}

/// Seconds since 1970 of `2026-11-23T08:00:00`, or of a number of seconds (`SLURM_TIME_FORMAT=%s`). A time without a zone counts
/// as UTC: a plan needs differences alone. None for `Unknown`, `None` and the empty text; Err for any other text.
pub fn time(text: &str) -> Result<Option<u64>, ()> {
    if matches!(text, "" | "Unknown" | "None" | "N/A") {
        return Ok(None);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(seconds) if seconds <= LONGEST => Ok(Some(seconds)),
            _ => Err(()),
        };
    }
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Result<i64, ()> {
        let digits = text.get(from..to).ok_or(())?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(());
        }
        digits.parse().map_err(drop)
    };
    let is_mark = |at: usize, marks: &[u8]| bytes.get(at).is_some_and(|mark| marks.contains(mark));
    let marks = is_mark(4, b"-") && is_mark(7, b"-") && is_mark(10, b"T ");
    if !marks || !is_mark(13, b":") || !is_mark(16, b":") {
        return Err(());
    }
    let narrow = |value: i64| i8::try_from(value).map_err(drop);
    let date = jiff::civil::Date::new(
        i16::try_from(number(0, 4)?).map_err(drop)?,
        narrow(number(5, 7)?)?,
        narrow(number(8, 10)?)?,
    )
    .map_err(drop)?;
    let since = jiff::civil::Date::constant(1970, 1, 1);
    let days = i64::from((date - since).get_days());
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 60 {
        return Err(());
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(seconds).map(Some).map_err(drop)
}

/// Seconds of `1-02:03:04`, `02:03:04`, `03:04` or `03:04.567`.
pub fn span(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let clock = clock.split('.').next()?;
    let mut seconds = 0_u64;
    let mut parts = 0;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
        parts += 1;
    }
    // A span of one part would be minutes or seconds.
    match parts {
        2 | 3 => days
            .checked_mul(86_400)?
            .checked_add(seconds)
            .filter(|seconds| *seconds <= LONGEST),
        _ => None,
    }
}

/// Minutes or a span: `1440`, `1-00:00:00`; None for `UNLIMITED`, `Partition_Limit` and the empty text.
pub fn limit(text: &str) -> Result<Option<u64>, ()> {
    let is_open = |word: &str| text.eq_ignore_ascii_case(word);
    if text.is_empty()
        || ["UNLIMITED", "Partition_Limit", "INVALID", "INFINITE"]
            .into_iter()
            .any(is_open)
    {
        return Ok(None);
    }
    match text.parse::<u64>() {
        // Slurm's INFINITE and NO_VAL.
        Ok(minutes) if minutes >= 0xffff_fffe => Ok(None),
        Ok(minutes) => minutes
            .checked_mul(60)
            .filter(|seconds| *seconds <= LONGEST)
            .map(Some)
            .ok_or(()),
        Err(_) => span(text).map(Some).ok_or(()),
    }
}

/// MiB of `1234M`, `3.5G`, `1024K`, or of bytes.
pub fn mib(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: f64 = digits.parse().ok()?;
    let scale = match text[digits.len()..].chars().next() {
        None => 1.0 / (1024.0 * 1024.0),
        Some('K') => 1.0 / 1024.0,
        Some('M') => 1.0,
        Some('G') => 1024.0,
        Some('T') => 1024.0 * 1024.0,
        Some(_) => return None,
    };
    (number.is_finite() && number >= 0.0).then_some(number * scale)
}

/// GPUs of `cpu=8,gres/gpu:a100=2,gres/gpu=2`, of `gpu:a100:2(IDX:0-1)` or of `gpu:2`, the forms of all versions; 0 without.
pub fn gpus(text: &str) -> Result<u32, ()> {
    let mut plain = None;
    let mut typed = 0_u32;
    for item in split_items(text) {
        let (name, value) = match item
            .strip_prefix("gres/")
            .or_else(|| item.strip_prefix("gres:"))
        {
            Some(rest) => match rest.rsplit_once('=') {
                Some(pair) => pair,
                None => rest.rsplit_once(':').unwrap_or((rest, "1")),
            },
            None if item == "gpu" => ("gpu", "1"),
            None if item.starts_with("gpu:") => {
                let item = item.split('(').next().unwrap_or(item);
                match item.rsplit_once(':') {
                    Some((name, count)) if count.starts_with(|c: char| c.is_ascii_digit()) => {
                        (name, count)
                    }
                    _ => (item, "1"),
                }
            }
            None => continue,
        };
        if name == "gpu" {
            plain = Some(value.parse().map_err(drop)?);
        } else if name.starts_with("gpu:") {
            typed = typed.checked_add(value.parse().map_err(drop)?).ok_or(())?;
        }
    }
    let count = plain.unwrap_or(typed);
    match count <= MOST_GPUS {
        true => Ok(count),
        false => Err(()),
    }
}

/// The first type of GPUs of such a text; empty without.
pub fn gpu_type(text: &str) -> &str {
    let of_item = |item| -> Option<&str> {
        let item: &str = item;
        let bare = item
            .strip_prefix("gres/")
            .or_else(|| item.strip_prefix("gres:"));
        let rest = bare.unwrap_or(item).strip_prefix("gpu:")?;
        match rest.split_once(['=', ':']) {
            Some((name, _)) => Some(name),
            // `gpu:2` has a number, `gpu:a100` a type.
            None => Some(rest).filter(|rest| rest.parse::<u32>().is_err()),
        }
    };
    split_items(text).find_map(of_item).unwrap_or_default()
}

/// Splits at commas outside of parentheses: `gpu:2(IDX:0,3),lustre:1`.
fn split_items(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    })
}

/// The value of `name=` in a list of TRES.
pub fn tres<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut items = text.split(',');
    items.find_map(|item| item.strip_prefix(name)?.strip_prefix('='))
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
            assert_eq!(time(text), Err(()), "{text}");
        }
    }

    #[test]
    fn spans_and_limits_are_read() {
        assert_eq!(span("1-02:03:04"), Some(93_784));
        assert_eq!(span("03:04.567"), Some(184));
        assert_eq!(span("x"), None);
        assert_eq!(limit("1440"), Ok(Some(86_400)));
        assert_eq!(limit("1-00:00:00"), Ok(Some(86_400)));
        assert_eq!(limit("UNLIMITED"), Ok(None));
        assert_eq!(limit("4294967295"), Ok(None));
        assert_eq!(limit("soon"), Err(()));
    }

    #[test]
    fn gpus_are_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            ("billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G", 2),
            ("cpu=1,gres/gpu:a100=1,gres/gpu:v100=3", 4),
            ("cpu=1,mem=4G", 0),
            ("gpu:4", 4),
            ("gpu", 1),
            ("gpu:a100", 1),
            ("gpu:a100:2(IDX:0,3),lustre:1", 2),
            ("gres:gpu:2", 2),
            ("gres/gpu:2", 2),
            ("", 0),
            ("gres/gpumem=12G,gres/gpuutil=55", 0),
        ] {
            assert_eq!(gpus(text), Ok(expected), "{text}");
        }
        assert_eq!(gpus("gres/gpu=many"), Err(()));
    }

    #[test]
    fn the_type_of_gpus_is_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            ("cpu=32,gres/gpu:a100=2,gres/gpu=2", "a100"),
            ("gres/gpu:2080ti=1", "2080ti"),
            ("gpu:2080ti:1", "2080ti"),
            ("gpu:a100:2(IDX:0,3),lustre:1", "a100"),
            ("gpu:a100", "a100"),
            ("gres:gpu:2", ""),
            ("gpu", ""),
            ("cpu=1,gres/gpu=1,gres/gpumem=1G", ""),
        ] {
            assert_eq!(gpu_type(text), expected, "{text}");
        }
    }

    #[test]
    fn memory_is_read_with_its_unit() {
        assert_eq!(mib("2G"), Some(2048.0));
        assert_eq!(mib("1048576"), Some(1.0));
        assert_eq!(mib("12X"), None);
        assert_eq!(mib("-4M"), None);
    }
}
