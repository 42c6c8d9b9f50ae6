//! How long a round looks at the slices and how long it rests.

use std::time::Duration;

use crate::clock::{BootTime, Clock};
use crate::measure::telemetry::SHORTEST_LOOK;

/// The duration of one reading of the counters, by the state of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// From the beginning of a round to the next.
    pub interval: Duration,
    /// How long activity is measured in it.
    pub look: Duration,
}

/// Which slices a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookScope {
    /// All that are watched.
    All,
    /// All but the instances of GPUs on which one is being released. The look ends with the release, so that what they
    /// do then is seen.
    OtherGpus,
}

impl Rhythm {
    /// With `suspect`: a slice has been stalled for half of its window, and is looked at without gaps.
    pub fn new(interval: Duration, suspect: bool) -> Rhythm {
        let look = match suspect {
            true => interval.mul_f64(0.95),
            false => interval / 10,
        };
        Rhythm {
            interval,
            look: look.max(SHORTEST_LOOK),
        }
    }

    /// How long to rest after a round that took so long. `cut`: whether its look was cut short; `chance`: a random
    /// number from 0 to 1.
    pub fn rest(&self, passed: Duration, cut: bool, chance: f64) -> Duration {
        let interval = self.interval;
        if cut {
            // An interrupted reading is repeated soon, after a pause.
            interval / 20
        } else if self.look > interval / 2 {
            // No gap in which a suspect could do something unseen.
            interval / 100
        } else {
            // Not at the same moment of each interval: a job may have a rhythm of its own.
            let phase = 0.9 + 0.2 * chance;
            let left = interval.mul_f64(phase).saturating_sub(passed);
            left.max(interval / 20)
        }
    }
}

/// Whether the work since `began` takes so long that the next samples must not wait for the rest of it.
pub(crate) fn is_late(clock: &dyn Clock, began: BootTime, interval: Duration) -> bool {
    clock.now().since(began) > interval / 2
}
