//! Durations of repeated calls.

use serde::{Deserialize, Serialize};

/// Minimum, median, 99th percentile and maximum of a duration, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many calls were measured.
    pub n: usize,
    pub min: f64,
    /// The median; of an even number the lower one of the middle.
    pub median: f64,
    /// 99 of 100 calls took no longer.
    pub p99: f64,
    pub max: f64,
}

impl Times {
    /// Of all these durations; None of none.
    pub fn of(durations: &[f64]) -> Option<Times> {
        let mut sorted = durations.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // The smallest rank that covers the part of all.
        let at = |part: usize| (sorted.len() * part).div_ceil(100).clamp(1, last + 1) - 1;
        let round = |ms: f64| (ms * 1000.0).round() / 1000.0;
        Some(Times {
            n: sorted.len(),
            min: round(sorted[0]),
            median: round(sorted[at(50)]),
            p99: round(sorted[at(99)]),
            max: round(sorted[last]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(Times::of(&[]), None);
        let one = Times::of(&[2.5]).unwrap();
        assert_eq!(
            (one.min, one.median, one.p99, one.max),
            (2.5, 2.5, 2.5, 2.5)
        );
        let many: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let of = Times::of(&many).unwrap();
        assert_eq!((of.n, of.min, of.max), (200, 1.0, 200.0));
        assert_eq!((of.median, of.p99), (100.0, 198.0));
    }
}
