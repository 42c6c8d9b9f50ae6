//! The sample of a slice, and the trait that takes samples.

use std::collections::HashMap;
use std::fmt;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::Policy;
use gpufrac_node::node::Node;
use gpufrac_records::evidence::{Point, Source};

use crate::key::SliceId;

/// Whether the slice was active during the time of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Activity {
    Busy,
    Idle,
    /// The activity is unknown; with the reason. Counts as active.
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

/// A use beyond the job's share.
#[derive(Clone, Debug, PartialEq)]
pub enum Excess {
    /// The job uses more memory than its share.
    Memory { held: MemoryMib, share: MemoryMib },
    /// Processes that do not use the MPS control daemon of their pool.
    OutsideMps { pids: Vec<u32> },
    /// Processes that compute without limits, because a container hides from them what would limit them: the folder of
    /// MPS or the library of HAMi-core.
    Hidden { pids: Vec<u32>, limiter: String },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Excess::Memory { held, share } => {
                write!(f, "holds {held} of GPU memory, its share is {share}")
            }
            Excess::OutsideMps { pids } => {
                write!(f, "processes {} are not clients of MPS", list(pids))
            }
            Excess::Hidden { pids, limiter } => write!(
                f,
                "processes {} compute without limits, because {limiter} is hidden from them; mount {limiter} in the \
                 container",
                list(pids)
            ),
        }
    }
}

fn list(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub source: Source,
    pub activity: Activity,
    /// The busy part of the time, 0 to 1; None if the source has no figure.
    pub busy_share: Option<f64>,
    /// The number of the job's processes on the slice; None if they could not be listed.
    pub contexts: Option<u32>,
    /// Memory on the slice that the job holds.
    pub memory: Option<MemoryMib>,
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

    /// The sample of a job from those of its slices: the busiest slice decides. If one activity is unknown, that of
    /// the job is.
    pub fn of_job(samples: &[Sample]) -> Sample {
        let busiest = samples.iter().max_by(|one, other| {
            let share = |sample: &Sample| sample.busy_share.unwrap_or_default();
            let by_activity = one.activity.rank().cmp(&other.activity.rank());
            by_activity.then(share(one).total_cmp(&share(other)))
        });
        let Some(busiest) = busiest else {
            return Sample::missing("it has no slice");
        };
        // None if one of the numbers is unknown.
        let contexts: Option<Vec<u32>> = samples.iter().map(|sample| sample.contexts).collect();
        let memory: Option<Vec<MemoryMib>> = samples.iter().map(|sample| sample.memory).collect();
        Sample {
            contexts: contexts.and_then(|all| all.into_iter().max()),
            memory: memory.and_then(|all| all.into_iter().max()),
            excess: samples.iter().find_map(|sample| sample.excess.clone()),
            ..busiest.clone()
        }
    }
}

impl From<&Sample> for Point {
    fn from(sample: &Sample) -> Point {
        let busy = sample.activity == Activity::Busy;
        Point {
            samples: 1,
            unknown: u32::from(matches!(sample.activity, Activity::Unknown(_))),
            busy: u32::from(busy),
            peak: sample.busy_share.unwrap_or(if busy { 1.0 } else { 0.0 }) as f32,
            memory_mib: sample.memory.map_or(0, |memory| memory.0 as u32),
            source: sample.source,
        }
    }
}

/// The samples of all slices of a node.
#[derive(Debug, Default)]
pub struct NodeSamples {
    pub samples: HashMap<SliceId, Sample>,
    /// Energy counters of the GPUs in millijoules, by UUID; of those that have one.
    pub energy: HashMap<String, u64>,
    /// Errors of the driver or the exporter.
    pub errors: Vec<String>,
}

pub trait Sampler {
    /// Samples active leases. `observe` waits while activity is measured, and returns whether the time was long
    /// enough; `policy` returns the policy of a lease.
    fn sample_all<'p>(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        observe: &mut dyn FnMut() -> bool,
        policy: &dyn Fn(&Lease) -> &'p Policy,
    ) -> NodeSamples;

    /// Samples the leases of one job again, in the shortest time in which activity can be measured; returns a sample
    /// of each, in order. `neighbours`: all leases on their GPUs.
    fn sample_again(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        neighbours: &[&Lease],
        policy: &Policy,
    ) -> Vec<Sample>;

    /// Whether a job has processes on the node; true if that is unknown.
    fn has_processes(&self, lease: &Lease) -> bool;

    /// Whether Slurm has suspended a job: all processes of its steps are frozen.
    fn is_suspended(&self, lease: &Lease) -> bool;

    fn reload(&mut self, node: &Node);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_as_active_as_its_busiest_slice() {
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
