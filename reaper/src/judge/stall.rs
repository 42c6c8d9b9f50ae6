//! A stall of a slice, and the end of its window. No I/O, no own clock.

use std::time::Duration;

use gpufrac_core::policy::{Policy, Stall};

use gpufrac_node::clock::BootTime;

/// A stall, with its window in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    pub stall: Stall,
    /// The start of the stall; the grace after the job's start does not count.
    pub since: BootTime,
    pub window: Duration,
}

impl Stalled {
    pub fn due(&self) -> BootTime {
        self.since + self.window
    }

    /// The time of the first warning.
    pub fn warned_from(&self, policy: &Policy) -> BootTime {
        self.due()
            .before(policy.warn.first().copied().unwrap_or_default())
    }
}
