//! The release of the Slurm that this was built for, and of the one that loaded it.
//!
//! Slurm takes a plugin only of exactly its own release (`_verify_syms` in `src/common/plugin.c`), SPANK
//! plugins alone of any release of its series. Layouts and prototypes change with the series
//! and never inside of one, so a plugin here takes the host's release for its own, and an upgrade inside of the
//! series needs no other plugin. It does so in another series, too, as slurmctld would not start with a
//! plugin that it can not load; there [`foreign`] tells the plugin that it must not touch
//! anything.

mod daemon;
mod loaded;
mod stock;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

pub use daemon::release_of_parent;

/// A release as `slurm_version.h` counts it: 0xMMmmuu, each byte one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release(u32);

/// Major and minor number: what layouts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Series(u32);

impl Release {
    /// That of the headers.
    pub const BUILT_FOR: Self = Self(crate::VERSION);

    /// The series that it is of.
    #[must_use]
    pub const fn series(self) -> Series {
        Series(self.0 >> 8)
    }

    /// Whether a Slurm can be of this release: from 20.02 on they are named after years and months.
    const fn is_plausible(&self) -> bool {
        self.0 >> 24 == 0 && self.0 >> 16 >= 20 && (self.0 >> 8 & 0xff) <= 12
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.series(), self.0 & 0xff)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 >> 8, self.0 & 0xff)
    }
}

/// The host's release; 0 until [`adopt`] found it.
static HOST: AtomicU32 = AtomicU32::new(0);

/// Puts the host's release in `version`, the plugin's symbol `plugin_version`. What can not be found out
/// leaves the release that it was built for, which Slurm then compares as ever.
///
/// For the constructor of a plugin, before Slurm looks at the symbol. It does not panic.
pub fn adopt(version: &AtomicU32) {
    let find = || loaded::release(version.as_ptr()).or_else(stock::release);
    if let Ok(Some(host)) = catch_unwind(AssertUnwindSafe(find)) {
        HOST.store(host.0, Ordering::Release);
        version.store(host.0, Ordering::Release);
    }
}

/// The release of the process that loaded this plugin, as far as it is known.
#[must_use]
pub fn host() -> Option<Release> {
    match HOST.load(Ordering::Acquire) {
        0 => None,
        number => Some(Release(number)),
    }
}

/// The host's release if it is of another series than the one built for: none of its structures may be
/// read then, and no function be called whose prototype is not the same in all of them.
#[must_use]
pub fn foreign() -> Option<Release> {
    host().filter(|host| host.series() != Release::BUILT_FOR.series())
}

/// What is wrong in a host of another series, and what to do.
#[must_use]
pub fn refusal(host: Release) -> String {
    format!(
        "built for Slurm {}, but this is {host}: fractions are not served; rebuild it with \
         `cargo xtask dist --slurm-include FOLDER`, FOLDER being the one with {}'s slurm/slurm.h",
        Release::BUILT_FOR.series(),
        host.series()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_written_as_slurm_does() {
        assert_eq!(Release(0x16_05_08).to_string(), "22.05.8");
        assert_eq!(Release(0x18_0b_0a).to_string(), "24.11.10");
        assert_eq!(Release(0x1a_05_05).series().to_string(), "26.05");
    }

    #[test]
    fn a_series_is_major_and_minor() {
        assert_eq!(Release(0x16_05_08).series(), Release(0x16_05_0b).series());
        assert_ne!(Release(0x16_05_08).series(), Release(0x16_0b_08).series());
        assert_ne!(Release(0x16_05_08).series(), Release(0x17_05_08).series());
    }

    #[test]
    fn without_slurm_the_version_stays() {
        // No plugin of Slurm is in a test program, and no library of it.
        let version = AtomicU32::new(crate::VERSION);
        adopt(&version);
        assert_eq!(version.load(Ordering::Acquire), crate::VERSION);
        assert_eq!(host(), None);
        assert_eq!(foreign(), None);
    }

    #[test]
    fn the_refusal_names_both_and_the_way_out() {
        let text = refusal(Release(0x63_0b_01));
        let built_for = Release::BUILT_FOR.series().to_string();
        for words in [&built_for, "99.11.1", "cargo xtask dist"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
