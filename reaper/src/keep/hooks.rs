//! Sums of what prologs and epilogs of jobs with a fraction did.

use gpufrac_node::fault::Cause;
use gpufrac_node::state::outcomes::{Ending, Outcome};
use serde::{Deserialize, Serialize};

/// The upper bounds of the classes of a time, in seconds; the last class has none.
pub const BOUNDS: [f64; 10] = [0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Times by class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub seconds: f64,
    /// The number in each class of [`BOUNDS`], and in the class above.
    pub counts: [u64; BOUNDS.len() + 1],
}

impl Times {
    fn add(&mut self, milliseconds: u64) {
        let seconds = milliseconds as f64 / 1000.0;
        self.seconds += seconds;
        let class = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[class] += 1;
    }
}

/// Numbers by the cause of an error: users, root, the hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByCause {
    pub user: u64,
    pub root: u64,
    pub hardware: u64,
}

impl ByCause {
    fn add(&mut self, cause: Cause) {
        match cause {
            Cause::User => self.user += 1,
            Cause::Root => self.root += 1,
            Cause::Hardware => self.hardware += 1,
        }
    }

    /// Each cause by its name in metrics.
    pub fn each(self) -> [(&'static str, u64); 3] {
        [
            ("user", self.user),
            ("root", self.root),
            ("hardware", self.hardware),
        ]
    }
}

/// The sums since the last reboot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookTotals {
    /// Prologs that made a slice or found that of the job.
    pub prologs: Times,
    /// Their waits for a turn or a place.
    pub waits: Times,
    pub epilogs: Times,
    pub requeued: ByCause,
    pub held: ByCause,
    pub cancelled: ByCause,
    pub unserved: ByCause,
    /// Epilogs that left a slice.
    pub not_released: ByCause,
}

impl HookTotals {
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome.ending {
            Ending::Served => {
                self.prologs.add(outcome.took_ms);
                self.waits.add(outcome.waited_ms);
            }
            Ending::Requeued(cause) => self.requeued.add(cause),
            Ending::Held(cause) => self.held.add(cause),
            Ending::Cancelled(cause) => self.cancelled.add(cause),
            Ending::Unserved(cause) => self.unserved.add(cause),
            Ending::Released => self.epilogs.add(outcome.took_ms),
            Ending::NotReleased(cause) => {
                self.epilogs.add(outcome.took_ms);
                self.not_released.add(cause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn outcomes_are_counted_by_ending_cause_and_time() {
        let mut totals = HookTotals::default();
        let mut add = |ending, ms, waited| {
            let (took, waited) = (Duration::from_millis(ms), Duration::from_millis(waited));
            totals.add(&Outcome::new(ending, took, waited));
        };
        add(Ending::Served, 20, 0);
        add(Ending::Served, 21, 15);
        add(Ending::Served, 60_000, 59_000);
        add(Ending::Requeued(Cause::User), 6_000, 6_000);
        add(Ending::Held(Cause::Root), 3, 0);
        add(Ending::NotReleased(Cause::Hardware), 5_100, 5_000);
        assert_eq!(totals.prologs.counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(totals.waits.counts, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(totals.epilogs.counts.iter().sum::<u64>(), 1);
        assert!((totals.prologs.seconds - 60.041).abs() < 1e-9);
        assert_eq!(
            totals.requeued.each(),
            [("user", 1), ("root", 0), ("hardware", 0)]
        );
        assert_eq!((totals.held.root, totals.not_released.hardware), (1, 1));
    }
}
