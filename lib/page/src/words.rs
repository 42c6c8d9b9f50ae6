//! Quantities, times and names as short texts.

use std::time::{Duration, UNIX_EPOCH};

/// The first second of the year 10000, in seconds since 1970; dates are shown with four digits.
const YEAR_10000: u64 = 253_402_300_800;

/// A span of time in at most two units: `90s`, `13m`, `2h05m`, `3d04h`.
pub fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        // Where a minute more or less is half of the time, seconds are shown.
        0..120 => format!("{seconds}s"),
        120..3600 => format!("{minutes}m"),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// `2026-11-21 10:46:08 UTC`.
pub fn utc(unix: u64) -> String {
    if unix >= YEAR_10000 {
        return format!("second {unix} since 1970");
    }
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix));
    text.to_string().replace('T', " ").replace('Z', " UTC")
}

/// `2026-11-21 10:46 UTC`.
pub fn utc_minute(unix: u64) -> String {
    let text = utc(unix);
    match text.strip_suffix(" UTC").and_then(|text| text.get(..16)) {
        Some(minute) => format!("{minute} UTC"),
        None => text,
    }
}

/// Units of GPUs as a number of GPUs: `0.25`.
pub fn gpus(units: u32) -> String {
    let text = format!("{:.2}", f64::from(units) / 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A part of a whole: `25 %`.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// MiB as a number of GiB: `1.5`.
pub fn gib(mib: u64) -> String {
    format!("{:.1}", mib as f64 / 1024.0)
}

/// Whether a character would move a terminal's cursor, end a header, change the direction of the text around it, or is
/// not allowed in XML.
pub fn is_odd(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

/// A text of others on one line: odd characters become `?`.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| if is_odd(letter) { '?' } else { letter })
        .collect()
}

/// The first `most` characters of a text of others that is too long.
pub fn clipped(text: &str, most: usize) -> String {
    let plain = plain(text);
    if plain.chars().count() <= most {
        return plain;
    }
    let start: String = plain.chars().take(most.saturating_sub(3)).collect();
    format!("{start}...")
}

/// A paragraph in lines of at most `width` characters; `indent` is before all lines except the first. Words longer
/// than a line are not broken, because they are paths and options that users copy.
pub fn wrapped(text: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let length = line.chars().count();
        if length > 0 && length + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
        } else if length > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        let said = [
            0, 59, 60, 119, 120, 3599, 3600, 7505, 86_399, 86_400, 300_000,
        ]
        .map(span);
        assert_eq!(
            said,
            [
                "0s", "59s", "60s", "119s", "2m", "59m", "1h00m", "2h05m", "23h59m", "1d00h",
                "3d11h"
            ]
        );
        assert!(!span(u64::MAX).is_empty());
    }

    #[test]
    fn quantities_are_short() {
        assert_eq!(
            [gpus(0), gpus(13), gpus(50), gpus(100), gpus(2000)],
            ["0", "0.13", "0.5", "1", "20"]
        );
        assert_eq!(utc_minute(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc_minute(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc_minute(951_868_800), "2000-03-01 00:00 UTC");
        assert_eq!(utc_minute(1_795_442_700), "2026-11-23 14:05 UTC");
    }

    #[test]
    fn no_time_causes_a_panic() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(YEAR_10000 - 1), "9999-12-31 23:59:59 UTC");
        let last = "second 18446744073709551615 since 1970";
        assert_eq!(
            (utc(u64::MAX), utc_minute(u64::MAX)),
            (last.to_owned(), last.to_owned())
        );
    }

    #[test]
    fn nothing_moves_the_cursor_or_turns_the_text() {
        assert_eq!(plain("eve\u{1b}[2J\n\u{202e}x\u{9b}1é"), "eve?[2J??x?1é");
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        assert_eq!(plain("a\r\nBcc: b\u{1b}[2J\u{202e}"), "a??Bcc: b?[2J?");
        assert_eq!(clipped("abcdefgh", 6), "abc...");
    }

    #[test]
    fn paragraphs_are_wrapped() {
        assert_eq!(
            wrapped("one two  three averyverylongword x", 9, "  "),
            ["one two", "  three", "  averyverylongword", "  x"]
        );
    }
}
