//! The mechanisms by which GPUs are shared.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The mechanism by which the GPUs of a pool are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mechanism {
    /// MIG instances: hardware isolates memory, compute and faults.
    #[serde(rename = "mig")]
    Mig,
    /// NVIDIA's Multi-Process Service: limits of multiprocessors and memory; a fault can affect all clients of a
    /// daemon.
    #[serde(rename = "mps")]
    Mps,
    /// MPS inside MIG instances: each half has one instance that jobs share.
    #[serde(rename = "mig+mps")]
    MigMps,
    /// The driver's time slices, without isolation.
    #[serde(rename = "timeslice")]
    Timeslice,
    /// HAMi-core's library, installed by the site.
    #[serde(rename = "hami")]
    Hami,
}

/// The mechanism is misspelled.
/// Cure: Write one of the mechanisms of the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mechanism `{0}`; the mechanisms are mig, mps, mig+mps, timeslice, hami")]
pub struct UnknownMechanism(pub String);

impl Mechanism {
    pub const ALL: [Mechanism; 5] = [
        Mechanism::Mig,
        Mechanism::Mps,
        Mechanism::MigMps,
        Mechanism::Timeslice,
        Mechanism::Hami,
    ];

    /// The name in requests, configuration and leases.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Mig => "mig",
            Mechanism::Mps => "mps",
            Mechanism::MigMps => "mig+mps",
            Mechanism::Timeslice => "timeslice",
            Mechanism::Hami => "hami",
        }
    }

    /// Whether the GPUs are in MIG mode.
    pub fn uses_mig(self) -> bool {
        matches!(self, Mechanism::Mig | Mechanism::MigMps)
    }

    /// Whether jobs are clients of an MPS control daemon.
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
