//! Nodes and partitions.

use std::collections::BTreeMap;

use gpufrac_core::per_gpu::PerGpu;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Its nodes: indexes into [`Cluster::nodes`], ascending.
    pub nodes: Vec<usize>,
    /// Its longest time limit in seconds; None without.
    pub limit: Option<u64>,
    /// Jobs of a partition with a higher tier start first.
    pub tier: u32,
    /// Its QOS (`QoS=`), whose limits hold for all of its jobs.
    pub qos: Option<String>,
    /// What a GPU brings to a job that says nothing of CPUs and memory.
    pub per_gpu: PerGpu,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNode {
    pub name: String,
    pub gpus: u32,
    /// Its CPUs for jobs; None where they are not known.
    pub cpus: Option<u32>,
    /// Its memory for jobs in MiB; None where it is not known, or not counted.
    pub memory: Option<u32>,
    /// Its shards, of all GPUs together.
    pub shards: u32,
    /// Its percents of MPS, of all GPUs together.
    pub mps: u32,
    /// Percents of a GPU that its largest MIG instance takes; 0 where it has whole GPUs.
    pub instance: u32,
}

/// Nodes with GPUs, and the partitions over them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The nodes with GPUs.
    pub nodes: Vec<ClusterNode>,
    /// The partitions with such nodes.
    pub partitions: Vec<Partition>,
}

impl Cluster {
    /// Equal nodes in one partition.
    pub fn uniform(nodes: u32, gpus: u32) -> Cluster {
        let width = nodes.to_string().len();
        let node = |number| ClusterNode {
            name: format!("gpu{number:0width$}"),
            gpus,
            ..ClusterNode::default()
        };
        Cluster {
            nodes: (1..=nodes).map(node).collect(),
            partitions: vec![Partition {
                name: "gpu".to_owned(),
                nodes: (0..nodes as usize).collect(),
                ..Partition::default()
            }],
        }
    }

    /// All GPUs.
    pub fn gpus(&self) -> u32 {
        self.nodes.iter().map(|node| node.gpus).sum()
    }

    pub fn gpus_by_node(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.gpus).collect()
    }

    pub fn cpus_by_node(&self) -> Vec<Option<u32>> {
        self.nodes.iter().map(|node| node.cpus).collect()
    }

    /// The partition with a name; else all nodes, for histories of other clusters.
    pub fn partition(&self, name: &str) -> Partition {
        let mut known = self.partitions.iter().filter(|it| it.name == name);
        known.next().cloned().unwrap_or_else(|| Partition {
            name: name.to_owned(),
            nodes: (0..self.nodes.len()).collect(),
            ..Partition::default()
        })
    }

    /// The same cluster with `part` of the nodes of each partition, rounded up.
    pub fn smaller(&self, part: f64) -> Cluster {
        let mut keeps = vec![false; self.nodes.len()];
        // Nodes of the same partitions are cut together.
        let mut groups: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for node in 0..self.nodes.len() {
            let of = |partition: &Partition| partition.nodes.binary_search(&node).is_ok();
            let of = self.partitions.iter().map(of).collect();
            groups.entry(of).or_default().push(node);
        }
        for nodes in groups.values() {
            let count = (nodes.len() as f64 * part).ceil() as usize;
            for node in nodes.iter().take(count) {
                keeps[*node] = true;
            }
        }
        self.only(&keeps)
    }

    /// The nodes that are marked.
    fn only(&self, keeps: &[bool]) -> Cluster {
        let mut numbers = vec![None; self.nodes.len()];
        let mut nodes = Vec::new();
        let kept = self.nodes.iter().enumerate();
        for (number, node) in kept.filter(|(number, _)| keeps[*number]) {
            numbers[number] = Some(nodes.len());
            nodes.push(node.clone());
        }
        let number = |node: &usize| numbers[*node];
        let of = |partition: &Partition| Partition {
            nodes: partition.nodes.iter().filter_map(number).collect(),
            ..partition.clone()
        };
        Cluster {
            nodes,
            partitions: self.partitions.iter().map(of).collect(),
        }
    }

    /// One partition alone.
    pub fn only_partition(&self, name: &str) -> Cluster {
        let mut keeps = vec![false; self.nodes.len()];
        for node in self.partition(name).nodes {
            keeps[node] = true;
        }
        let mut cluster = self.only(&keeps);
        cluster.partitions.retain(|it| it.name == name);
        cluster
    }
}
