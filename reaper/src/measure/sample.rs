//! What one look at a slice found, and who looks.

use std::collections::HashMap;
use std::fmt;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::Policy;
use gpufrac_node::node::Node;
use serde::{Deserialize, Serialize};

use crate::key::SliceId;

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

impl Activity {
    fn rank(&self) -> u8 {
        match self {
            Activity::Idle => 0,
            Activity::Unknown(_) => 1,
            Activity::Busy => 2,
        }
    }
}

/// What a job takes beyond its share.
#[derive(Clone, Debug, PartialEq)]
pub enum Excess {
    /// More memory than its share.
    Memory {
        /// The memory in use.
        held: MemoryMib,
        /// The limit.
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

    /// What the samples of a job's slices say of the job: its busiest slice speaks for it. Where one cannot tell, nobody
    /// can.
    pub fn of_job(samples: &[Sample]) -> Sample {
        let busiest = samples.iter().max_by(|one, other| {
            let share = |sample: &Sample| sample.busy_share.unwrap_or_default();
            let by_activity = one.activity.rank().cmp(&other.activity.rank());
            by_activity.then(share(one).total_cmp(&share(other)))
        });
        let Some(busiest) = busiest else {
            return Sample::missing("it has no slice");
        };
        // None is less than any number, and not known.
        let contexts = samples.iter().map(|sample| sample.contexts);
        let memory = samples.iter().map(|sample| sample.memory);
        Sample {
            contexts: contexts
                .clone()
                .min()
                .flatten()
                .and(contexts.max().flatten()),
            memory: memory.clone().min().flatten().and(memory.max().flatten()),
            excess: samples.iter().find_map(|sample| sample.excess.clone()),
            ..busiest.clone()
        }
    }
}

/// One look at all slices of a node.
#[derive(Debug, Default)]
pub struct Look {
    /// By slice.
    pub samples: HashMap<SliceId, Sample>,
    /// What the driver or the exporter refused.
    pub errors: Vec<String>,
}

/// Takes samples of slices.
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

    /// Looks at the leases of one job once more, for as short a time as can be measured; a sample of each, in their order.
    /// `neighbours`: all leases on their GPU.
    fn look_at(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        neighbours: &[&Lease],
        policy: &Policy,
    ) -> Vec<Sample>;

    /// Whether a job has processes on the node; true if it is unknown.
    fn has_processes(&self, lease: &Lease) -> bool;

    /// Takes another configuration.
    fn reload(&mut self, node: &Node);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_slice_speaks_for_its_job() {
        let sample = |activity, busy_share, contexts, memory: Option<u64>| Sample {
            source: Source::Gpm,
            activity,
            busy_share,
            contexts,
            memory: memory.map(MemoryMib),
            excess: None,
        };
        let idle = sample(Activity::Idle, Some(0.0), Some(0), Some(16));
        let busy = sample(Activity::Busy, Some(0.25), Some(2), Some(300));
        let busier = sample(Activity::Busy, Some(0.5), Some(1), Some(200));
        let unknown = sample(Activity::Unknown("why".to_owned()), None, None, None);
        for one in [&idle, &busy, &busier, &unknown] {
            assert_eq!(Sample::of_job(std::slice::from_ref(one)), *one);
        }
        let job = Sample::of_job(&[idle.clone(), busy, busier]);
        let expected = sample(Activity::Busy, Some(0.5), Some(2), Some(300));
        assert_eq!(job, expected);
        let excess = Excess::OutsideMps { pids: vec![1] };
        let over = Sample {
            excess: Some(excess.clone()),
            ..idle
        };
        let job = Sample::of_job(&[unknown.clone(), over]);
        assert_eq!(
            job,
            Sample {
                excess: Some(excess),
                ..unknown
            }
        );
    }
}
