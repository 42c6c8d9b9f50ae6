//! How a pool's GPUs are shared.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the GPUs of a pool are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mechanism {
    /// MIG instances: memory, compute and faults are fenced by hardware.
    #[serde(rename = "mig")]
    Mig,
    /// NVIDIA's Multi-Process Service: limits of multiprocessors and memory, one fault domain.
    #[serde(rename = "mps")]
    Mps,
    /// MPS inside MIG instances: one instance on each half, shared by jobs.
    #[serde(rename = "mig+mps")]
    MigMps,
    /// The driver's time slices, no fence.
    #[serde(rename = "timeslice")]
    Timeslice,
    /// HAMi-core's library, installed by the site.
    #[serde(rename = "hami")]
    Hami,
}

/// A word that names no mechanism.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mechanism `{0}`; the mechanisms are mig, mps, mig+mps, timeslice, hami")]
pub struct UnknownMechanism(pub String);

impl Mechanism {
    /// Every mechanism that has a name.
    pub const ALL: [Mechanism; 5] = [
        Mechanism::Mig,
        Mechanism::Mps,
        Mechanism::MigMps,
        Mechanism::Timeslice,
        Mechanism::Hami,
    ];

    /// The word for it in requests, configuration and leases.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Mig => "mig",
            Mechanism::Mps => "mps",
            Mechanism::MigMps => "mig+mps",
            Mechanism::Timeslice => "timeslice",
            Mechanism::Hami => "hami",
        }
    }

    /// Whether its GPUs are in MIG mode.
    pub fn uses_mig(self) -> bool {
        matches!(self, Mechanism::Mig | Mechanism::MigMps)
    }

    /// Whether jobs are clients of a control daemon.
    pub fn uses_mps(self) -> bool {
        matches!(self, Mechanism::Mps | Mechanism::MigMps)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Mechanism::ALL
            .into_iter()
            .find(|mechanism| mechanism.name() == text)
            .ok_or_else(|| UnknownMechanism(text.to_owned()))
    }
}
