//! Identifiers. Each kind has its own type, so that the compiler finds one used for another.
//!
//! All are written as plain numbers in files, messages and environments of jobs.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map($name)
            }
        }
    )*};
}

ids! {
    /// Slurm's id of a job (`SLURM_JOB_ID`); each component of a heterogeneous job has its own.
    JobId;
    /// The operating system's id of a user.
    UserId;
    /// The operating system's id of a group.
    GroupId;
    /// Slurm's index of a device on a node (`SLURM_JOB_GPUS`): the number in the name of its placeholder. The halves
    /// of a GPU are two devices.
    DeviceIndex;
    /// NVML's index of a GPU on a node. It can change with a boot; the UUID does not.
    GpuIndex;
    /// N of a GPU's `/dev/nvidiaN`. It can differ from the [`GpuIndex`].
    DeviceMinor;
}

impl UserId {
    pub const ROOT: UserId = UserId(0);
}

impl GpuIndex {
    /// The position in a list of all GPUs of the node in NVML's order.
    pub fn position(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        job: JobId,
        gpus: Vec<GpuIndex>,
    }

    #[test]
    fn files_hold_bare_numbers() {
        let file = File {
            job: JobId(4711),
            gpus: vec![GpuIndex(0), GpuIndex(3)],
        };
        let text = toml::to_string(&file).unwrap();
        assert_eq!(text, "job = 4711\ngpus = [0, 3]\n");
        assert_eq!(toml::from_str::<File>(&text).unwrap(), file);
        assert!(toml::from_str::<File>("job = -1\ngpus = []\n").is_err());
    }

    #[test]
    fn a_number_is_shown_and_read_as_it_is() {
        assert_eq!(format!("{:>3}", DeviceIndex(7)), "  7");
        assert_eq!("7".parse(), Ok(DeviceMinor(7)));
        for text in ["", "-1", "4294967296", "7 ", "x"] {
            assert!(text.parse::<UserId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_in_their_order() {
        assert!(GroupId(9) < GroupId(10));
    }
}
