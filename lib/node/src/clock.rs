//! The clocks of the node, and a time that setting the wall clock does not change.

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The time since the node booted (`CLOCK_BOOTTIME`). It continues while the daemon does not run, and setting the
/// wall clock does not change it. Only times of one boot can be compared; the state with such times is on a tmpfs, so
/// it ends with the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootTime(Duration);

impl BootTime {
    pub fn after_boot(time: Duration) -> BootTime {
        BootTime(time)
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds since the boot.
    pub fn milliseconds(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// The time `time` earlier; not before the boot.
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

/// The clocks of the daemon.
pub trait Clock {
    /// The time since boot.
    fn now(&self) -> BootTime;

    /// The wall clock, in seconds since 1970.
    fn unix_now(&self) -> u64;

    /// The wall-clock time of a boot time, if the wall clock is right now; in seconds since 1970.
    fn unix(&self, time: BootTime) -> u64 {
        let (now, wall) = (self.now(), self.unix_now());
        if time > now {
            wall + time.since(now).as_secs()
        } else {
            wall.saturating_sub(now.since(time).as_secs())
        }
    }
}

/// The clocks of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        // The kernel has this clock since 2.6.39; with a valid id the call cannot fail.
        let time =
            clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
        BootTime(time.into())
    }

    fn unix_now(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    }
}
