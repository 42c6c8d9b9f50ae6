//! How much longer a job runs on a part of a GPU.

/// The compute slices of the GPU of the curve.
const SLICES: f64 = 7.0;

/// Measured speeds at the deciles of the workloads: of 32 training workloads on the MIG instances of an A100 (MISO,
/// SoCC 2022), 1g to 4g; those that do not fit into the memory are not among them.
const MEASURED: [[f64; 11]; 4] = [
    [
        0.077, 0.163, 0.224, 0.24, 0.274, 0.309, 0.366, 0.444, 0.556, 0.612, 0.81,
    ],
    [
        0.278, 0.313, 0.335, 0.41, 0.43, 0.517, 0.595, 0.659, 0.737, 0.822, 0.904,
    ],
    [
        0.397, 0.512, 0.524, 0.557, 0.622, 0.668, 0.766, 0.846, 0.887, 0.938, 1.0,
    ],
    [
        0.57, 0.588, 0.596, 0.619, 0.703, 0.746, 0.832, 0.922, 0.94, 0.957, 0.984,
    ],
];

/// The workload in the middle.
pub const MEDIAN: f64 = 0.5;

/// Speeds of workloads by the part of a GPU's compute.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Part of the compute, and speeds of workloads in ascending order.
    points: Vec<(f64, Vec<f64>)>,
    /// Where it comes from.
    pub source: String,
}

impl Default for Curve {
    fn default() -> Curve {
        let points = (1_u8..).zip(MEASURED);
        let points = points.map(|(slices, speeds)| (f64::from(slices) / SLICES, speeds.to_vec()));
        Curve {
            points: points.collect(),
            source: "32 training workloads on the MIG slices of an A100".to_owned(),
        }
    }
}

impl Curve {
    /// Of measured speeds: compute slices of seven, and speed against the whole GPU. None without a measurement.
    pub fn measured(speeds: &[(u8, f64)], source: &str) -> Option<Curve> {
        let mut points: Vec<(f64, Vec<f64>)> = Vec::new();
        for slices in 1..7_u8 {
            let mut own: Vec<f64> = speeds
                .iter()
                .filter(|(count, _)| *count == slices)
                .map(|(_, speed)| speed.min(1.0))
                .collect();
            own.sort_by(f64::total_cmp);
            if !own.is_empty() {
                points.push((f64::from(slices) / SLICES, own));
            }
        }
        (!points.is_empty()).then(|| Curve {
            points,
            source: source.to_owned(),
        })
    }

    /// Every part of a GPU is as fast as it is large, for all workloads.
    pub fn proportional() -> Curve {
        Curve {
            points: vec![(1.0, vec![1.0])],
            source: "speed in proportion to the part of the GPU".to_owned(),
        }
    }

    /// The speed of the workload at a quantile on a part of a GPU, against the whole GPU. Between measured parts it is
    /// interpolated, below them it is in proportion.
    pub fn speed(&self, part: f64, quantile: f64) -> f64 {
        if part >= 1.0 {
            return 1.0;
        }
        let mut below = (0.0, 0.0);
        for (at, speeds) in &self.points {
            // Measurements scatter: more compute is never slower.
            let above = (*at, of_sorted(speeds, quantile).max(below.1));
            if part <= *at {
                return between(below, above, part);
            }
            below = above;
        }
        between(below, (1.0, 1.0), part)
    }

    /// By how much the time of a job grows: the part of its time in which the GPU works grows with the speed, the rest
    /// stays.
    pub fn factor(&self, part: f64, activity: f64, quantile: f64) -> f64 {
        let speed = self.speed(part, quantile).clamp(0.001, 1.0);
        (1.0 - activity) + activity / speed
    }
}

/// The value at a quantile of sorted values, interpolated between two of them; 0 of nothing.
pub fn of_sorted(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let place = at.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

fn between(below: (f64, f64), above: (f64, f64), at: f64) -> f64 {
    let wide = above.0 - below.0;
    if wide <= 0.0 {
        return above.1;
    }
    below.1 + (above.1 - below.1) * (at - below.0) / wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_workload_has_the_measured_medians() {
        let curve = Curve::default();
        for (slices, expected) in [
            (1.0, 0.309),
            (2.0, 0.517),
            (3.0, 0.668),
            (4.0, 0.746),
            (7.0, 1.0),
        ] {
            assert!(
                (curve.speed(slices / 7.0, MEDIAN) - expected).abs() < 1e-9,
                "{slices}"
            );
        }
        assert!((curve.speed(1.0 / 14.0, MEDIAN) - 0.1545).abs() < 1e-9);
    }

    #[test]
    fn more_compute_and_a_faster_workload_are_never_slower() {
        let curve = Curve::default();
        for quantile in 0..=10 {
            for part in 1..=100 {
                let speed = |part: i32, quantile: i32| {
                    curve.speed(f64::from(part) / 100.0, f64::from(quantile) / 10.0)
                };
                assert!(speed(part, quantile) >= speed(part - 1, quantile) - 1e-9);
                assert!(speed(part, quantile) >= speed(part, quantile - 1) - 1e-9);
            }
        }
    }

    #[test]
    fn only_the_time_of_the_gpu_grows() {
        let curve = Curve::proportional();
        assert!((curve.factor(0.5, 1.0, MEDIAN) - 2.0).abs() < 1e-9);
        assert!((curve.factor(0.5, 0.1, MEDIAN) - 1.1).abs() < 1e-9);
        assert!((curve.factor(1.0, 1.0, 0.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_curve_is_read_from_measurements() {
        let curve = Curve::measured(&[(1, 0.2), (1, 0.4), (7, 1.0)], "ours").unwrap();
        assert!((curve.speed(1.0 / 7.0, MEDIAN) - 0.3).abs() < 1e-9);
        assert_eq!(Curve::measured(&[(7, 1.0)], "ours"), None);
    }
}
