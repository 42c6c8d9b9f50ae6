//! The release of the Slurm that this build is for, and of the Slurm that loaded it.
//!
//! Slurm accepts a plugin only if its release is exactly Slurm's own (`_verify_syms` in `src/common/plugin.c`); of
//! SPANK plugins it compares only the series. Layouts and prototypes change with the series and never within one.
//! Therefore a plugin here takes the host's release for its own, so that an upgrade within the series needs no new
//! plugin. It does so in another series, too, because slurmctld does not start with a plugin that it cannot load;
//! [`foreign`] then tells the plugin that it must not touch anything.

mod daemon;
#[cfg(feature = "plugin")]
mod host;
#[cfg(feature = "plugin")]
mod loaded;
mod stock;

use std::fmt;

pub use daemon::release_of_parent;
#[cfg(feature = "plugin")]
pub use host::{Foreign, adopt, foreign, host, running};
pub use stock::{beside, of_file};

/// The build of gpufrac: version and commit, as `cargo xtask package` and `cargo xtask dist` set them.
pub const BUILD: &str = match option_env!("GPUFRAC_BUILD") {
    Some(build) => build,
    None => concat!(env!("CARGO_PKG_VERSION"), "-untracked"),
};

/// A release in the form of `slurm_version.h`: 0xMMmmuu, one byte for each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32);

/// Major and minor number, which determine the layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series(pub u8, pub u8);

impl Release {
    /// The release of the headers.
    pub const BUILT_FOR: Self = Self(crate::raw::SLURM_VERSION_NUMBER);

    pub const fn new(major: u8, minor: u8, micro: u8) -> Self {
        Self(u32::from_be_bytes([0, major, minor, micro]))
    }

    /// The number that Slurm compares.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The series of the release.
    pub const fn series(self) -> Series {
        let [_, major, minor, _] = self.0.to_be_bytes();
        Series(major, minor)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.series(), self.0 & 0xff)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0, self.1)
    }
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
}
