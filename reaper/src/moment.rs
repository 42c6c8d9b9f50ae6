//! The node's clocks, and time by the one that nobody sets.

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
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }
}

/// The clocks that the daemon judges by.
pub trait Clock {
    /// The moment that it is.
    fn now(&self) -> Moment;

    /// What the wall clock shows: seconds since 1970.
    fn unix_now(&self) -> u64;

    /// What the wall clock showed at a moment, as far as it shows the right time now: seconds since 1970.
    fn unix(&self, moment: Moment) -> u64 {
        let (now, wall) = (self.now(), self.unix_now());
        match moment > now {
            true => wall + moment.since(now).as_secs(),
            false => wall.saturating_sub(now.since(moment).as_secs()),
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
    fn now(&self) -> Moment {
        // The kernel has this clock since 2.6.39; the call cannot fail with a valid id.
        let time =
            clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
        Moment(time.into())
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
