//! The node's clocks, and time by the one that nobody sets.

use std::fs;
use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A time since the node booted (`CLOCK_BOOTTIME`): it runs on while the daemon does not, and a step
/// of the wall clock does not move it. Times of one boot can be compared; the state with them lies
/// on a tmpfs and goes with the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootTime(Duration);

impl BootTime {
    /// That long after boot.
    pub fn after_boot(time: Duration) -> BootTime {
        BootTime(time)
    }

    /// How long after `earlier`; zero if it is not.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// So long before; the boot at the earliest.
    pub fn before(self, time: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(time))
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;

    fn add(self, time: Duration) -> BootTime {
        BootTime(self.0.saturating_add(time))
    }
}

/// The clocks that the daemon judges by.
pub trait Clock {
    /// The time since boot.
    fn now(&self) -> BootTime;

    /// What the wall clock shows: seconds since 1970.
    fn unix_now(&self) -> u64;

    /// What the wall clock showed at a time, as far as it shows the right time now: seconds since 1970.
    fn unix(&self, time: BootTime) -> u64 {
        let (now, wall) = (self.now(), self.unix_now());
        match time > now {
            true => wall + time.since(now).as_secs(),
            false => wall.saturating_sub(now.since(time).as_secs()),
        }
    }
}

/// The clocks of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

#[expect(
    clippy::disallowed_methods,
    reason = "all others take their time from here"
)]
impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        // The kernel has this clock since 2.6.39; the call cannot fail with a valid id.
        let time =
            clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
        BootTime(time.into())
    }

    fn unix_now(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    }
}

/// Names this boot of the node.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| String::new(), |id| id.trim().to_owned())
}
