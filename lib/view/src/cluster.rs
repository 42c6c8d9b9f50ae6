//! A cluster: its nodes by their files or by Slurm's count, the jobs that wait, and the sums.

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::ids::JobId;
use serde::{Deserialize, Serialize};

use crate::{GpuStatus, NodeStatus, Owner, Place, Slice, Stuck, Usage};

/// What `gpufrac status --json` prints. The keys and their meanings are stable within a version; a later build may
/// add keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`crate::VERSION`].
    pub version: u32,
    /// When it was printed: seconds since 1970.
    pub at: u64,
    /// The nodes, by name.
    pub nodes: Vec<NodeState>,
    /// Jobs that have room now, by partition and size.
    pub free: Vec<Free>,
    /// Jobs that wait for a fraction. None where Slurm was not asked or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Vec<Waiting>>,
    /// The jobs of the user who asks. None where Slurm was not asked or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Vec<OwnJob>>,
    /// What could start now, by partition. None where Slurm was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<Start>>,
    /// What could not be read, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Where the state of a node comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The driver and the leases, asked on the node.
    Node,
    /// The file that the node's daemon writes.
    File,
    /// Slurm's count of units, which knows no slices.
    Slurm,
    /// There is neither.
    #[default]
    None,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// Slurm's name of the node.
    pub node: String,
    /// Where `gpus` come from.
    pub source: Source,
    /// Slurm's state of the node, such as `mixed` or `drained`; None where Slurm was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason that an admin or Slurm gave for the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the node's file was written: seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    /// Whether the file is so old that the node or its daemon must have stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The places that are stuck, by the node's file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<Stuck>,
    /// The GPUs of pools, by index.
    pub gpus: Vec<GpuState>,
}

/// A GPU and what Slurm counts on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuState {
    /// The GPU, by the file of its node.
    #[serde(flatten)]
    pub gpu: GpuStatus,
    /// The units of each of its devices by Slurm's count, in Slurm's order; empty where the slices are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<Counted>,
}

/// The units of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Units that jobs hold.
    pub taken: u32,
    /// Units of the device: 100 are a GPU.
    pub units: u32,
}

/// Room for jobs of a size in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Free {
    pub partition: String,
    /// The size as users write it.
    pub fraction: String,
    /// Units that Slurm counts for a job.
    pub units: u32,
    /// Jobs of this size that have room, if no other job starts.
    pub jobs: u32,
}

/// A job that waits for a fraction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Slurm's id of the job; of an array, that of the array.
    pub job: JobId,
    /// The job as squeue prints it: `12_[3-5]`.
    pub name: String,
    /// The user; None where Slurm hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The partition, or several with commas.
    pub partition: String,
    /// What the job asks for on each node: `0.25`, or `2` for whole GPUs.
    pub fraction: String,
    /// Units that Slurm counts on each node.
    pub units: u32,
    /// Nodes that the job asks for.
    pub nodes: u32,
    /// Since when it waits: seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// When Slurm expects to start it: seconds since 1970; None where Slurm has not planned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<u64>,
    /// Slurm's reason: `Resources`, `Priority`, `QOSMaxGRESPerUser`.
    pub reason: String,
}

/// A job of the user who asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnJob {
    /// Slurm's id of the job.
    pub job: JobId,
    /// The job as squeue prints it.
    pub name: String,
    pub partition: String,
    /// Slurm's state: `RUNNING`.
    pub state: String,
    /// What the job has or asks for on each node.
    pub fraction: String,
    /// Units that Slurm counts on each node.
    pub units: u32,
    /// The nodes on which it runs.
    pub nodes: Vec<String>,
    /// When Slurm expects to start a job that waits: seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<u64>,
    /// Why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its slices, by node.
    pub slices: Vec<OwnSlice>,
}

/// A slice of such a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnSlice {
    pub node: String,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The MIG profile, or the mechanism.
    pub kind: String,
    /// Memory that the job may use, in MiB.
    pub memory_limit_mib: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// What could start in a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub partition: String,
    /// The largest size that would start now; None where none would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// The largest size that has room now, where Slurm plans it for later because jobs wait: a short job may start now,
    /// by backfill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<String>,
    /// The next larger size, and when Slurm expects to start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<Later>,
    /// Why Slurm refuses a job of this user in the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A size that would start later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    pub fraction: String,
    /// When Slurm expects to start it: seconds since 1970; None where Slurm does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<u64>,
}

/// States of nodes that take no new jobs, by the beginning of Slurm's text.
const CLOSED: [&str; 12] = [
    "down",
    "drain",
    "fail",
    "error",
    "future",
    "inval",
    "maint",
    "not_resp",
    "perfctrs",
    "planned_down",
    "powered_down",
    "unk",
];

impl NodeState {
    pub fn of_file(node: NodeStatus, now: u64) -> NodeState {
        NodeState {
            stale: node.is_stale(now),
            written: Some(node.written),
            ..NodeState::of(node, Source::File)
        }
    }

    /// A node as it is described.
    pub fn of(node: NodeStatus, source: Source) -> NodeState {
        let gpus = node.gpus.into_iter();
        let gpus = gpus.map(|gpu| GpuState {
            gpu,
            counted: Vec::new(),
        });
        NodeState {
            node: node.node,
            source,
            stuck: node.stuck,
            gpus: gpus.collect(),
            ..NodeState::default()
        }
    }

    /// Whether Slurm starts jobs on the node, as far as that is known.
    pub fn takes_jobs(&self) -> bool {
        let state = self.state.as_deref().unwrap_or_default();
        let is_closed = CLOSED.iter().any(|word| state.starts_with(word));
        // Slurm marks a node that does not answer.
        !is_closed && !state.ends_with('*') && self.source != Source::None
    }

    /// Whether its room counts: the node takes jobs, and what is known of it is not old.
    pub fn has_room(&self) -> bool {
        self.takes_jobs() && (!self.stale || self.source == Source::Slurm)
    }
}

/// A slice with its place in the cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterSlice<'a> {
    pub node: &'a NodeState,
    pub gpu: &'a GpuStatus,
    pub slice: &'a Slice,
}

impl Waiting {
    /// Whether the job may start in a partition.
    pub fn wants(&self, partition: &str) -> bool {
        self.partition.split(',').any(|name| name == partition)
    }
}

impl Report {
    /// Nodes without jobs that wait.
    pub fn new(at: u64, nodes: Vec<NodeState>) -> Report {
        let free = free(&nodes);
        Report {
            version: crate::VERSION,
            at,
            nodes,
            free,
            waiting: None,
            own: None,
            start: None,
            problems: Vec::new(),
        }
    }

    /// All slices, by node and GPU.
    pub fn slices(&self) -> impl Iterator<Item = ClusterSlice<'_>> {
        self.nodes.iter().flat_map(|node| {
            node.gpus.iter().flat_map(move |state| {
                let gpu = &state.gpu;
                gpu.slices
                    .iter()
                    .map(move |slice| ClusterSlice { node, gpu, slice })
            })
        })
    }

    /// The pools of the nodes, by name, with a GPU of each.
    pub fn pools(&self) -> BTreeMap<&str, &GpuStatus> {
        let gpus = self.nodes.iter().flat_map(|node| &node.gpus);
        let mut pools = BTreeMap::new();
        for state in gpus {
            pools.entry(state.gpu.pool.as_str()).or_insert(&state.gpu);
        }
        pools
    }
}

/// Room by partition, largest size first.
fn free(nodes: &[NodeState]) -> Vec<Free> {
    let mut sums: BTreeMap<(&str, std::cmp::Reverse<u32>), (&str, u32)> = BTreeMap::new();
    for node in nodes {
        let is_open = node.has_room();
        for GpuStatus {
            partitions, room, ..
        } in node.gpus.iter().map(|state| &state.gpu)
        {
            for partition in partitions {
                for size in room {
                    let key = (partition.as_str(), std::cmp::Reverse(size.units));
                    let sum = sums.entry(key).or_insert((&size.fraction, 0));
                    sum.1 += if is_open { size.jobs } else { 0 };
                }
            }
        }
    }
    let sums = sums.into_iter();
    let sums = sums.map(|((partition, units), (fraction, jobs))| Free {
        partition: partition.to_owned(),
        fraction: fraction.to_owned(),
        units: units.0,
        jobs,
    });
    sums.collect()
}

impl OwnSlice {
    /// A slice of the cluster.
    pub fn of(held: ClusterSlice<'_>) -> OwnSlice {
        OwnSlice {
            node: held.node.node.clone(),
            gpu: held.gpu.index.0,
            kind: held.slice.kind.clone(),
            memory_limit_mib: held.slice.memory_limit_mib,
            usage: held.slice.usage.clone(),
        }
    }
}

impl ClusterSlice<'_> {
    /// The owner; None where Slurm hides it.
    pub fn owner(&self) -> Option<&Owner> {
        self.slice.owner.as_ref()
    }
}

impl Place {
    /// The memory slice after the last.
    pub fn end(self) -> u32 {
        u32::from(self.start) + u32::from(self.size)
    }
}

/// The nodes of a cluster, each by its file, or by Slurm's count where the file is missing or stale. `names`: the nodes
/// of pools; files of others are left out.
pub fn joined<'n>(
    names: impl Iterator<Item = &'n str>,
    files: Vec<NodeStatus>,
    slurm: Vec<NodeState>,
    now: u64,
) -> Vec<NodeState> {
    let files = files.into_iter().map(|file| (file.node.clone(), file));
    let mut files: BTreeMap<String, NodeStatus> = files.collect();
    let slurm = slurm.into_iter().map(|node| (node.node.clone(), node));
    let mut slurm: BTreeMap<String, NodeState> = slurm.collect();
    let names: BTreeSet<&str> = names.collect();
    let nodes = names.into_iter().map(|name| {
        let file = files.remove(name).map(|it| NodeState::of_file(it, now));
        match (file, slurm.remove(name)) {
            (Some(file), Some(counted)) if file.stale && !counted.gpus.is_empty() => NodeState {
                stale: true,
                written: file.written,
                ..counted
            },
            (Some(file), Some(counted)) => NodeState {
                state: counted.state,
                reason: counted.reason,
                ..file
            },
            (Some(file), None) => file,
            (None, Some(counted)) => counted,
            (None, None) => NodeState {
                node: name.to_owned(),
                ..NodeState::default()
            },
        }
    });
    nodes.collect()
}
