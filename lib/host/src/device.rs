//! Device nodes: their numbers, and the devices that the processes of a job must not open.

use nix::sys::stat::{FileStat, SFlag, major, makedev, minor};

/// The device number of a character device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device of this driver.
    pub minor: u32,
}

impl DeviceNumber {
    pub(crate) fn of(stat: &FileStat) -> Option<DeviceNumber> {
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        (kind == SFlag::S_IFCHR).then(|| DeviceNumber {
            major: major(stat.st_rdev) as u32,
            minor: minor(stat.st_rdev) as u32,
        })
    }

    pub(crate) fn raw(self) -> u64 {
        makedev(u64::from(self.major), u64::from(self.minor))
    }
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A device, or several, that a job must not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRule {
    Device(DeviceNumber),
    /// A device that is useless without another one, which is closed, too. Version 2 of control groups closes it,
    /// because a range of minor numbers costs no more than one; version 1 need not.
    Behind(DeviceNumber),
    /// All devices of a driver. The kernel cannot exclude single minor numbers later.
    Major(u32),
}

impl DeviceRule {
    /// Whether the rule is needed where the kernel checks every rule in turn (version 1).
    pub fn is_alone(self) -> bool {
        !matches!(self, DeviceRule::Behind(_))
    }
}

impl std::fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceRule::Device(number) | DeviceRule::Behind(number) => {
                write!(f, "c {number} rwm")
            }
            DeviceRule::Major(major) => write!(f, "c {major}:* rwm"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_kernels_form() {
        let device = DeviceNumber {
            major: 195,
            minor: 3,
        };
        assert_eq!(DeviceRule::Device(device).to_string(), "c 195:3 rwm");
        assert_eq!(DeviceRule::Major(234).to_string(), "c 234:* rwm");
    }
}
