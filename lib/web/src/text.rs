//! Quantities as text.

use std::time::{Duration, UNIX_EPOCH};

pub use gpufrac_view::words::span;

/// The first second of the year 10000, in seconds since 1970; dates are shown with four digits.
const YEAR_10000: u64 = 253_402_300_800;

pub fn gpus(units: u32) -> String {
    let text = format!("{:.2}", f64::from(units) / 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub fn gib(mib: u64) -> String {
    format!("{:.1}", mib as f64 / 1024.0)
}

/// `2026-11-23 14:05 UTC`.
pub fn utc(unix: u64) -> String {
    if unix >= YEAR_10000 {
        return format!("second {unix} since 1970");
    }
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix));
    let text = time.to_string().replace('T', " ");
    // Without seconds: pages are written each minute.
    format!("{} UTC", text.get(..16).unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        assert_eq!(
            [gpus(0), gpus(13), gpus(50), gpus(100), gpus(2000)],
            ["0", "0.13", "0.5", "1", "20"]
        );
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_868_800), "2000-03-01 00:00 UTC");
        assert_eq!(utc(1_795_442_700), "2026-11-23 14:05 UTC");
    }
}
