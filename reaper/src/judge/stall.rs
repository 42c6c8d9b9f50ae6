//! A stall of a slice, and when its window ends. No I/O, no clock of its own.

use std::time::Duration;

use gpufrac_core::policy::{Policy, Stall};

use crate::clock::BootTime;

/// A stall and its end by the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// How.
    pub stall: Stall,
    /// Since when, the grace after the start not counted.
    pub since: BootTime,
    /// How long it may be so.
    pub window: Duration,
}

impl Stalled {
    /// When the window ends.
    pub fn due(&self) -> BootTime {
        self.since + self.window
    }

    /// When the first warning is due.
    pub fn warned_from(&self, policy: &Policy) -> BootTime {
        self.due()
            .before(policy.warn.first().copied().unwrap_or_default())
    }
}
