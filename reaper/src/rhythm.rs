//! How long a round measures, and how long it rests.

use std::time::Duration;

use crate::measure::telemetry::SHORTEST_LOOK;

/// The times of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// From the start of a round to the start of the next.
    pub interval: Duration,
    /// How long activity is measured in a round.
    pub look: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookScope {
    All,
    /// All except instances on GPUs where another instance is in release. The measurement ends with the release, so
    /// that the next one sees the activity during it.
    OtherGpus,
}

impl Rhythm {
    /// With `suspect`: a slice has been stalled for half of its window, and is observed without gaps.
    pub fn new(interval: Duration, suspect: bool) -> Rhythm {
        let look = if suspect { interval.mul_f64(0.95) } else { interval / 10 };
        Rhythm {
            interval,
            look: look.max(SHORTEST_LOOK),
        }
    }

    /// The rest after a round that took `passed`. `cut`: whether its measurement was interrupted. `chance`: a random
    /// number from 0 to 1.
    pub fn rest(&self, passed: Duration, cut: bool, chance: f64) -> Duration {
        let interval = self.interval;
        if cut {
            // An interrupted measurement is repeated soon, after a pause.
            interval / 20
        } else if self.look > interval / 2 {
            // No gap in which a suspected slice could be active without a sample.
            interval / 100
        } else {
            // Not at the same moment of each interval, because a job may have its own rhythm.
            let phase = 0.9 + 0.2 * chance;
            let left = interval.mul_f64(phase).saturating_sub(passed);
            left.max(interval / 20)
        }
    }
}
