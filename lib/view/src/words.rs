//! Short texts for people.

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

/// A text of others on one line. Characters that would move a terminal's cursor, end a header, or are not allowed in
/// XML become `?`.
pub fn plain(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    let safe = text.chars().map(|c| if odd(c) { '?' } else { c });
    safe.collect()
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
    fn nothing_moves_the_cursor_or_turns_the_text() {
        assert_eq!(plain("eve\u{1b}[2J\n\u{202e}x\u{9b}1é"), "eve?[2J??x?1é");
    }
}
