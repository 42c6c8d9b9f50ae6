//! Releases of Slurm, which are numbered by year and month.

use std::fmt;
use std::str::FromStr;

/// A series, all releases of a year and month (`24.11`). The functions of Slurm change with the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlurmSeries {
    pub major: u8,
    pub minor: u8,
}

/// One release (`24.11.5`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlurmRelease {
    pub series: SlurmSeries,
    pub micro: u8,
}

/// Slurm printed a version that gpufrac does not understand.
/// Cure: Compare `sinfo -V` with the [versions](../versions.md).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a release of Slurm such as 24.11.5")]
pub struct NoRelease(pub String);

impl SlurmSeries {
    /// A series: `SlurmSeries::new(24, 11)`.
    pub const fn new(major: u8, minor: u8) -> SlurmSeries {
        SlurmSeries { major, minor }
    }

    pub const fn release(self, micro: u8) -> SlurmRelease {
        SlurmRelease {
            series: self,
            micro,
        }
    }
}

impl SlurmRelease {
    /// The release of a `SLURM_VERSION_NUMBER`, `0xMMmmuu`.
    pub const fn from_number(number: u32) -> SlurmRelease {
        let [_, major, minor, micro] = number.to_be_bytes();
        SlurmSeries::new(major, minor).release(micro)
    }
}

impl FromStr for SlurmRelease {
    type Err = NoRelease;

    /// Reads `24.11.5`, and `slurm 24.11.5` as programs of Slurm print it. The text behind the three numbers
    /// (`-0rc1`) is ignored; a third part that is missing or not a number counts as 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let release = text.strip_prefix("slurm ").unwrap_or(text);
        let mut parts = release.trim().split(['.', '-']);
        let mut number = || parts.next()?.parse().ok();
        match (number(), number()) {
            (Some(major), Some(minor)) => {
                Ok(SlurmSeries::new(major, minor).release(number().unwrap_or(0)))
            }
            _ => Err(NoRelease(text.to_owned())),
        }
    }
}

impl fmt::Display for SlurmSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.major, self.minor)
    }
}

impl fmt::Display for SlurmRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.series, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_in_every_form() {
        let release = SlurmSeries::new(22, 5).release(8);
        for text in ["22.05.8", "slurm 22.05.8\n", "22.05.8-0rc1", "22.5.8"] {
            assert_eq!(text.parse(), Ok(release), "{text:?}");
        }
        assert_eq!(SlurmRelease::from_number(0x16_05_08), release);
        assert_eq!(release.to_string(), "22.05.8");
        assert_eq!(release.series.to_string(), "22.05");
        for text in ["24.11", "24.11-pre1", "24.11.x"] {
            assert_eq!(text.parse(), Ok(SlurmSeries::new(24, 11).release(0)));
        }
        for text in ["", "24", "slurm", "x.11.5", "24.x.5", "-24.11"] {
            let error = text.parse::<SlurmRelease>().unwrap_err();
            assert_eq!(error, NoRelease(text.to_owned()));
        }
    }

    #[test]
    fn releases_are_in_the_order_of_time() {
        let texts = ["22.05.8", "23.02.0", "23.11.4", "23.11.10", "24.05.0"];
        let releases = texts.map(|text| text.parse::<SlurmRelease>().unwrap());
        assert!(releases.is_sorted());
    }
}
