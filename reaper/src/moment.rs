//! Time by a clock that nobody sets.

use std::fs;
use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment since the node booted (`CLOCK_BOOTTIME`): it runs on while the daemon does not, and a step
/// of the wall clock does not move it. Moments of one boot can be compared; the state with them lies
/// on a tmpfs and goes with the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        // The kernel has this clock since 2.6.39; the call can not fail with a valid id.
        let time =
            clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
        Moment(time.into())
    }

    /// A moment that long after boot.
    pub fn after_boot(time: Duration) -> Moment {
        Moment(time)
    }

    /// How long after `earlier`; zero if it is not.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// So long before this moment.
    pub fn before(self, time: Duration) -> Moment {
        Moment(self.0.saturating_sub(time))
    }

    /// What the wall clock showed then, as far as it shows the right time now: seconds since 1970.
    pub fn unix(self) -> u64 {
        let now = Moment::now();
        let wall = unix_now();
        match self > now {
            true => wall + self.since(now).as_secs(),
            false => wall.saturating_sub(now.since(self).as_secs()),
        }
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }
}

/// The wall clock: seconds since 1970.
pub fn unix_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Names this boot of the node.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| String::new(), |id| id.trim().to_owned())
}
