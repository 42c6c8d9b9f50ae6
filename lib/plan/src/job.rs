//! A job of the history, as a plan needs it.

use std::collections::{BTreeMap, HashMap};

use gpufrac_core::hostlist::Hostlist;

use crate::cluster::{Cluster, ClusterNode, Partition};
use crate::shares_per_gpu::SharesPerGpu;

/// Names that are kept once and numbered.
#[derive(Clone, Debug, Default)]
pub struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    pub fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The name of a number; empty if there is none.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// The telemetry of a job. A job without telemetry has None everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Need {
    /// Greatest memory in use on one GPU: MiB.
    pub memory_mib: Option<f32>,
    /// Mean activity of a whole GPU, 0 to 1.
    pub activity: Option<f32>,
    /// The job already ran on this part of a GPU, on each of its nodes, in compute and memory. It needs that, unless
    /// its memory was measured.
    pub share: Option<f32>,
}

impl Need {
    /// Whether it says how much memory the job needs.
    pub fn is_known(&self) -> bool {
        self.memory_mib.is_some() || self.share.is_some()
    }
}

/// What limits count a job by, besides its user and partition. The default knows nothing: its names are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Charge {
    /// Its account, in [`History::accounts`].
    pub account: u32,
    /// Its QOS, in [`History::qos`].
    pub qos: u32,
    /// The type of its GPUs, in [`History::gpu_types`].
    pub gpu_type: u32,
}

impl Default for Charge {
    fn default() -> Charge {
        Charge {
            account: u32::MAX,
            qos: u32::MAX,
            gpu_type: u32::MAX,
        }
    }
}

/// A job that ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its id as accounting shows it.
    pub id: Box<str>,
    /// Its user, in [`History::users`].
    pub user: u32,
    /// What limits count it by.
    pub charge: Charge,
    /// Its partition, in [`History::partitions`].
    pub partition: u32,
    /// When it could start: seconds since 1970.
    pub submit: u64,
    /// How long it waited: seconds.
    pub waited: u64,
    /// How long it ran: seconds.
    pub ran: u64,
    /// Its time limit in seconds; None without one.
    pub limit: Option<u64>,
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs on each node.
    pub gpus: u32,
    /// CPUs on each node; 0 where they are not known.
    pub cpus: u32,
    /// Memory on each node in MiB; 0 where it is not known.
    pub memory: u32,
    /// Slurm's priority; 0 where it is not known.
    pub priority: u64,
    /// The use of the GPU.
    pub need: Need,
    /// When it began to be idle for each span of idleness, and how long: seconds since its start.
    pub idle: Vec<(u32, u32)>,
}

impl Job {
    /// GPUs on all nodes.
    pub fn all_gpus(&self) -> u32 {
        self.nodes * self.gpus
    }

    /// Whether it can get a part of a GPU: several GPUs stay whole. A job that had a part on each of several nodes can.
    pub fn can_share(&self) -> bool {
        self.gpus == 1 && (self.nodes == 1 || self.need.share.is_some())
    }
}

/// The kind of a line without a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Lines that cannot be read.
    pub broken: u64,
    /// The first of them: place and cause.
    pub first: Vec<String>,
    /// Jobs without a GPU.
    pub without_gpu: u64,
    /// Jobs that have not started.
    pub not_started: u64,
    /// Jobs with shards, of which nothing says what part of a GPU they are.
    pub with_shards: u64,
}

/// The most broken lines that are named.
const NAMED: usize = 5;

impl Skipped {
    /// A line cannot be read.
    pub fn line(&mut self, place: &str, line: u64, why: &dyn std::fmt::Display) {
        self.broken += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("{place}:{line}: {why}"));
        }
    }
}

/// All jobs that were read.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub jobs: Vec<Job>,
    pub users: Names,
    pub accounts: Names,
    pub qos: Names,
    pub partitions: Names,
    pub gpu_types: Names,
    /// Lines without a job.
    pub skipped: Skipped,
    /// What part of a GPU a shard is; to be set before jobs are read.
    pub shares_per_gpu: SharesPerGpu,
    /// Where and when jobs ran.
    pub placed: Placed,
}

/// Where jobs ran, if the history has names of nodes.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// Lists of nodes.
    pub lists: Names,
    pub spans: Vec<Span>,
}

/// A job held GPUs of nodes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The nodes, in [`Placed::lists`].
    pub list: u32,
    /// Its partition, in [`History::partitions`].
    pub partition: u32,
    /// From when: seconds since 1970.
    pub start: u64,
    /// Until when.
    pub end: u64,
    /// GPUs on each node, and parts of them.
    pub gpus: f64,
}

impl History {
    /// Sorts jobs by the time of their submission.
    pub fn sort(&mut self) {
        self.jobs.sort_by_key(|job| job.submit);
    }

    /// The nodes on which jobs ran. A node has as many GPUs as its jobs held at a time. None where the history
    /// names no node.
    pub fn cluster(&self) -> Option<Cluster> {
        let placed = &self.placed;
        let lists: Vec<Vec<String>> = (0..placed.lists.len())
            .map(|list| {
                let text = placed.lists.name(u32::try_from(list).unwrap_or(u32::MAX));
                Hostlist::parse(text).map_or_else(|_| Vec::new(), |list| list.names().to_vec())
            })
            .collect();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut names: Vec<&str> = lists.iter().flatten().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        for (number, name) in names.iter().enumerate() {
            numbers.insert(name, number);
        }
        let mut members: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut changes: Vec<(u64, bool, usize, f64)> = Vec::new();
        for span in &placed.spans {
            for name in &lists[span.list as usize] {
                let node = numbers[name.as_str()];
                // An end comes before a start of the same second.
                changes.push((span.start, true, node, span.gpus));
                changes.push((span.end.max(span.start + 1), false, node, span.gpus));
                members.entry(span.partition).or_default().push(node);
            }
        }
        changes.sort_unstable_by_key(|(time, is_start, ..)| (*time, *is_start));
        let (mut now, mut most) = (vec![0.0; names.len()], vec![0.0_f64; names.len()]);
        for (_, is_start, node, gpus) in changes {
            if is_start {
                now[node] += gpus
            } else {
                now[node] -= gpus
            }
            most[node] = most[node].max(now[node]);
        }
        let node = |(name, gpus): (&&str, &f64)| ClusterNode {
            name: (*name).to_owned(),
            gpus: crate::read::value::gpus_of_share(*gpus),
            ..ClusterNode::default()
        };
        let partition = |(number, mut nodes): (u32, Vec<usize>)| {
            nodes.sort_unstable();
            nodes.dedup();
            Partition {
                name: self.partitions.name(number).to_owned(),
                nodes,
                ..Partition::default()
            }
        };
        (!names.is_empty()).then(|| Cluster {
            nodes: names.iter().zip(&most).map(node).collect(),
            partitions: members.into_iter().map(partition).collect(),
        })
    }

    /// From the first submission to the last end: seconds since 1970.
    pub fn span(&self) -> (u64, u64) {
        let first = self.jobs.iter().map(|job| job.submit).min().unwrap_or(0);
        let ends = self
            .jobs
            .iter()
            .map(|job| job.submit + job.waited + job.ran);
        (first, ends.max().unwrap_or(0))
    }

    /// Jobs that ran on a part of a GPU.
    pub fn pieces(&self) -> usize {
        let is_piece = |job: &&Job| job.need.share.is_some_and(|share| share < 1.0);
        self.jobs.iter().filter(is_piece).count()
    }

    /// Jobs of which nothing says how much they need.
    pub fn unmeasured(&self) -> usize {
        let unknown = |job: &&Job| job.can_share() && !job.need.is_known();
        self.jobs.iter().filter(unknown).count()
    }
}
