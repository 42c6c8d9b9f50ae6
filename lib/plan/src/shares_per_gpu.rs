//! How many shards, and percents of MPS, a GPU has, and what part of one an instance is.

use std::collections::HashMap;

use gpufrac_core::hostlist::Hostlist;

use crate::cluster::{Cluster, ClusterNode};

/// How many shards, and percents of MPS, a GPU of each node has. Empty where no file names the nodes.
#[derive(Clone, Debug, Default)]
pub struct SharesPerGpu {
    nodes: HashMap<String, Counts>,
}

/// Those of one GPU; 0 without.
#[derive(Clone, Copy, Debug)]
struct Counts {
    shards: f64,
    mps: f64,
    /// The largest instance; 0 where the node has whole GPUs.
    instance: f64,
}

impl SharesPerGpu {
    /// Those of a cluster.
    pub fn of(cluster: &Cluster) -> SharesPerGpu {
        let counts = |node: &ClusterNode| {
            let each = |count: u32| f64::from(count) / f64::from(node.gpus.max(1));
            Counts {
                shards: each(node.shards),
                mps: each(node.mps),
                instance: f64::from(node.instance) / 100.0,
            }
        };
        let nodes = cluster.nodes.iter();
        SharesPerGpu {
            nodes: nodes
                .map(|node| (node.name.clone(), counts(node)))
                .collect(),
        }
    }

    /// The shards of a GPU of these nodes. None where nothing says it.
    pub fn shards(&self, list: &str) -> Option<f64> {
        self.least(list, |counts| counts.shards)
    }

    /// The percents of MPS of a GPU of these nodes: 100, unless a file says another number.
    pub fn mps(&self, list: &str) -> f64 {
        self.least(list, |counts| counts.mps).unwrap_or(100.0)
    }

    /// The part of a GPU that a `gpu` without a Type is on these nodes, at most. None where it may be a whole GPU.
    pub fn instance(&self, list: &str) -> Option<f64> {
        let list = Hostlist::parse(list).unwrap_or_default();
        let parts = list.names().iter().map(|name| {
            let part = self.nodes.get(name)?.instance;
            (part > 0.0).then_some(part)
        });
        let parts: Option<Vec<f64>> = parts.collect();
        parts?.into_iter().reduce(f64::max)
    }

    /// The least number of these nodes. Nodes that are not known have the number of all others, if these have the same.
    fn least(&self, list: &str, of: impl Fn(&Counts) -> f64) -> Option<f64> {
        let list = Hostlist::parse(list).unwrap_or_default();
        let own = list.names().iter().filter_map(|name| self.nodes.get(name));
        let own = own.map(&of).filter(|count| *count > 0.0);
        own.reduce(f64::min).or_else(|| {
            let mut all = self.nodes.values().map(&of).filter(|count| *count > 0.0);
            let first = all.next()?;
            all.all(|count| count == first).then_some(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::nodes;

    #[test]
    fn the_node_of_a_job_says_how_many_a_gpu_has() {
        let text = "NodeName=a[1-2] Gres=gpu:4,shard:32,mps:400\nNodeName=b Gres=gpu:2,shard:8,mps:400\nNodeName=c Gres=gpu:4\n";
        let shares_per_gpu = SharesPerGpu::of(&nodes::read(text).unwrap());
        assert_eq!(shares_per_gpu.shards("a1"), Some(8.0));
        assert_eq!(shares_per_gpu.shards("b"), Some(4.0));
        assert_eq!(
            shares_per_gpu.shards("a[1-2],b"),
            Some(4.0),
            "the greatest part"
        );
        assert_eq!(shares_per_gpu.shards("x"), None, "nodes differ");
        assert_eq!(
            (shares_per_gpu.mps("a2"), shares_per_gpu.mps("b")),
            (100.0, 200.0)
        );
        let equal =
            SharesPerGpu::of(&nodes::read("NodeName=a[1-2] Gres=gpu:4,shard:32\n").unwrap());
        assert_eq!(equal.shards(""), Some(8.0));
        let none = SharesPerGpu::default();
        assert_eq!((none.shards("a1"), none.mps("a1")), (None, 100.0));
    }
}
