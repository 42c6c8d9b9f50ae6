//! What one look at a slice found, and who looks.

use std::collections::HashMap;
use std::fmt;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::Policy;
use gpufrac_node::node::Node;
use serde::{Deserialize, Serialize};

/// Where a sample comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// GPM of NVML for a GPU instance: Hopper and later.
    Gpm,
    /// `GR_ENGINE_ACTIVE` of a GPU instance, by dcgm-exporter.
    Dcgm,
    /// Utilisation of processes, by NVML: GPUs without MIG.
    ProcessUtilization,
    /// Clients of the job at its MPS servers, and how busy these are.
    MpsClients,
    /// Processes and memory on the slice, and CPU time of the job.
    Processes,
    /// None answered.
    Missing,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 6] = [
        Source::Gpm,
        Source::Dcgm,
        Source::ProcessUtilization,
        Source::MpsClients,
        Source::Processes,
        Source::Missing,
    ];

    /// The word in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Source::Gpm => "gpm",
            Source::Dcgm => "dcgm",
            Source::ProcessUtilization => "process-utilization",
            Source::MpsClients => "mps-clients",
            Source::Processes => "processes",
            Source::Missing => "missing",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the slice was used in the time that a sample covers.
#[derive(Clone, Debug, PartialEq)]
pub enum Activity {
    /// It was.
    Busy,
    /// It was not.
    Idle,
    /// That cannot be said, and why. Counts as busy.
    Unknown(String),
}

/// What a job takes beyond its share.
#[derive(Clone, Debug, PartialEq)]
pub enum Excess {
    /// More memory than its share.
    Memory {
        /// What it holds.
        held: MemoryMib,
        /// What it may hold.
        share: MemoryMib,
    },
    /// Processes that went round the control daemon of their pool.
    OutsideMps {
        /// Their pids.
        pids: Vec<u32>,
    },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Excess::Memory { held, share } => {
                write!(f, "holds {held} of GPU memory, its share is {share}")
            }
            Excess::OutsideMps { pids } => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                write!(f, "processes {} are not clients of MPS", pids.join(", "))
            }
        }
    }
}

/// What one look found.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Where it comes from.
    pub source: Source,
    /// Whether the slice was used.
    pub activity: Activity,
    /// Busy part of the time, 0 to 1, where the source has one.
    pub busy_share: Option<f64>,
    /// The job's processes on the slice; None if they could not be listed.
    pub contexts: Option<u32>,
    /// Memory held on the slice by the job.
    pub memory: Option<MemoryMib>,
    /// What the job takes beyond its share.
    pub excess: Option<Excess>,
}

impl Sample {
    /// A sample that could not be taken.
    pub fn missing(why: impl Into<String>) -> Sample {
        Sample {
            source: Source::Missing,
            activity: Activity::Unknown(why.into()),
            busy_share: None,
            contexts: None,
            memory: None,
            excess: None,
        }
    }
}

/// One look at all slices of a node.
#[derive(Debug, Default)]
pub struct Look {
    /// By job.
    pub samples: HashMap<JobId, Sample>,
    /// What the driver or the exporter refused.
    pub errors: Vec<String>,
}

/// Who looks at slices.
pub trait Sampler {
    /// Looks at active leases. `observe` waits for as long as activity is to be measured, and says whether that was
    /// long enough to tell; `policy` is that of each lease.
    fn look<'p>(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        observe: &mut dyn FnMut() -> bool,
        policy: &dyn Fn(&Lease) -> &'p Policy,
    ) -> Look;

    /// Looks at one lease once more, for as short a time as can be measured. `neighbours`: all leases on its GPU.
    fn look_at(
        &mut self,
        node: &Node,
        lease: &Lease,
        neighbours: &[&Lease],
        policy: &Policy,
    ) -> Sample;

    /// Whether a job has processes on the node; true where that cannot be told.
    fn has_processes(&self, lease: &Lease) -> bool;

    /// Takes another configuration.
    fn reload(&mut self, node: &Node);
}
