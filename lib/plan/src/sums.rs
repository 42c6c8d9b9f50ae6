//! Figures of an outcome.

use crate::queue::{Outcome, Work};
use crate::speed::of_sorted;

/// Figures of one way of lending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Jobs that ran.
    pub jobs: usize,
    /// Jobs that the cluster can never start, or their limits.
    pub refused: usize,
    /// Those of them that their limits can never start.
    pub barred: usize,
    /// Mean wait: seconds.
    pub wait_mean: f64,
    /// The wait in the middle: seconds.
    pub wait_p50: f64,
    /// The wait that one of twenty jobs exceeds: seconds.
    pub wait_p95: f64,
    /// Mean time from submission to end: seconds.
    pub turnaround: f64,
    /// GPU-hours that Slurm counted.
    pub allocated: f64,
    /// Percent of all GPUs, from the first submission to the last.
    pub utilisation: f64,
    /// Part of the jobs that a piece slows by more than the limit of [`Sums::of`].
    pub slowed: f64,
}

/// The value at a quantile; 0 of nothing.
pub fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    of_sorted(&sorted, at)
}

impl Sums {
    /// The figures. `slow`: jobs count as slowed whose time grows by more than this factor.
    pub fn of(work: &[Work], outcome: &Outcome, gpus: u32, slow: f64) -> Sums {
        let mut waits = Vec::with_capacity(work.len());
        let (mut turnaround, mut unit_seconds, mut slowed) = (0.0, 0.0, 0);
        for (job, run) in work.iter().zip(&outcome.runs) {
            let Some(run) = run else { continue };
            waits.push((run.start - job.submit) as f64);
            turnaround += (run.end - job.submit) as f64;
            let units = f64::from(job.units * job.count * job.nodes);
            unit_seconds += units * (run.end - run.start) as f64;
            slowed += usize::from(run.factor > slow);
        }
        let count = waits.len().max(1) as f64;
        let first = work.iter().map(|job| job.submit).min().unwrap_or(0);
        let last = work.iter().map(|job| job.submit).max().unwrap_or(0);
        Sums {
            jobs: waits.len(),
            refused: outcome.refused,
            barred: outcome.barred,
            wait_mean: waits.iter().sum::<f64>() / count,
            wait_p50: quantile(&waits, 0.5),
            wait_p95: quantile(&waits, 0.95),
            turnaround: turnaround / count,
            allocated: unit_seconds / 100.0 / 3600.0,
            utilisation: utilisation(outcome, gpus, first, last),
            slowed: slowed as f64 / count,
        }
    }
}

/// Percent of all GPUs that were in use in a time.
pub fn utilisation(outcome: &Outcome, gpus: u32, from: u64, until: u64) -> f64 {
    let all = f64::from(gpus) * 100.0 * until.saturating_sub(from) as f64;
    let parts = series(outcome, from, until, 1);
    if all > 0.0 { 100.0 * parts.iter().sum::<f64>() / all } else { 0.0 }
}

/// Unit-seconds in each of `parts` equal parts of a time.
pub fn series(outcome: &Outcome, from: u64, until: u64, parts: usize) -> Vec<f64> {
    let mut sums = vec![0.0; parts];
    let wide = (until.saturating_sub(from) as f64 / parts as f64).max(f64::MIN_POSITIVE);
    for (number, (start, units)) in outcome.used.iter().enumerate() {
        let end = outcome
            .used
            .get(number + 1)
            .map_or(until, |(time, _)| *time);
        let (mut at, end) = ((*start).max(from) as f64, end.min(until) as f64);
        while at < end {
            let part = (((at - from as f64) / wide) as usize).min(parts - 1);
            let edge = if part + 1 == parts {
                end
            } else {
                (from as f64 + wide * (part + 1) as f64).min(end)
            };
            // An edge that rounds to the same moment must not stop the walk.
            let edge = if edge > at { edge } else { end };
            sums[part] += *units as f64 * (edge - at);
            at = edge;
        }
    }
    sums
}

/// A figure with its band: 5 to 95 percent of the resampled histories.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// Of the history itself.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Band {
    /// Of a value and those of resampled histories.
    pub fn of(value: f64, resampled: &[f64]) -> Band {
        if resampled.is_empty() {
            Band {
                value,
                low: value,
                high: value,
            }
        } else {
            Band {
                value,
                low: quantile(resampled, 0.05).min(value),
                high: quantile(resampled, 0.95).max(value),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_seconds_are_split_by_time() {
        let outcome = Outcome {
            used: vec![(0, 100), (10, 50), (20, 0)],
            ..Outcome::default()
        };
        assert_eq!(series(&outcome, 0, 20, 2), [1000.0, 500.0]);
        assert_eq!(series(&outcome, 5, 15, 1), [750.0]);
        assert!((utilisation(&outcome, 1, 0, 20) - 75.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_lie_between_the_values() {
        assert!((quantile(&[3.0, 1.0, 2.0], 0.5) - 2.0).abs() < 1e-9);
        assert!((quantile(&[1.0, 2.0], 0.95) - 1.95).abs() < 1e-9);
        assert!((quantile(&[], 0.5)).abs() < 1e-9);
    }

    #[test]
    fn a_band_holds_its_value() {
        let band = Band::of(10.0, &[1.0, 2.0, 3.0]);
        assert!(band.low < 2.0 && band.high == 10.0);
    }
}
