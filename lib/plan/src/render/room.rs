//! How many pieces a node holds at once, and what limits it.

use gpufrac_core::fraction::Fraction;
use gpufrac_core::hostlist;
use gpufrac_core::per_gpu::{Part, PerGpu};

use crate::candidate::{Candidate, Model};
use crate::cluster::{Cluster, ClusterNode};

/// The smallest pieces of a node.
struct Pieces {
    size: Fraction,
    count: u64,
    /// CPUs and MiB that each brings.
    each: PerGpu,
}

/// A line for each kind of node, of the smallest pieces of a way of lending; nothing for whole GPUs.
pub(super) fn lines(candidate: Candidate, model: &Model, cluster: &Cluster) -> Vec<String> {
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for partition in &cluster.partitions {
        for node in partition
            .nodes
            .iter()
            .filter_map(|node| cluster.nodes.get(*node))
        {
            if let Some(pieces) = pieces(candidate, model, node, partition.per_gpu) {
                hostlist::group(&mut kinds, pieces.words(node), node.name.clone());
            }
        }
    }
    let line = |(words, mut nodes): (String, Vec<String>)| {
        // A node can be in several partitions. `gn9` stands before `gn10`.
        nodes.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
        nodes.dedup();
        format!("on {} {words}", hostlist::short(&nodes))
    };
    kinds.into_iter().map(line).collect()
}

fn pieces(
    candidate: Candidate,
    model: &Model,
    node: &ClusterNode,
    per_gpu: PerGpu,
) -> Option<Pieces> {
    let lendings = candidate.lendings(model).ok()?;
    let layout = &lendings.get(1)?.layout;
    let smallest = layout.menu.first()?;
    let cut = node.gpus.checked_sub(candidate.whole_gpus(node.gpus))?;
    let devices = u64::from(cut) * layout.sides.len() as u64;
    let each = per_gpu.of(Part::of(smallest.fraction, smallest.units));
    Some(Pieces {
        size: smallest.fraction,
        count: devices * u64::from(layout.capacity.0 / smallest.units.0.max(1)),
        each: PerGpu {
            // Slurm gives each job one at least.
            cpus: each.cpus.or(Some(1)),
            ..each
        },
    })
}

impl Pieces {
    /// `8 GPUs make 56 pieces of 0.125; 64 CPUs at 2 each end at 32`
    fn words(&self, node: &ClusterNode) -> String {
        let gpus = match node.gpus {
            1 => "1 GPU makes".to_owned(),
            several => format!("{several} GPUs make"),
        };
        let made = format!("{gpus} {} pieces of {}", self.count, self.size.ratio());
        let cpus = node.cpus.map(u64::from);
        let limits = [
            (cpus, self.each.cpus, "CPUs"),
            (node.memory.map(u64::from), self.each.memory, "MB"),
        ];
        let limit = |(all, each, what): (Option<u64>, Option<u64>, &str)| {
            let (all, each) = (all?, each?);
            let end = all / each.max(1);
            let words = format!("{all} {what} at {each} each end at {end}");
            Some((end, words)).filter(|(end, _)| *end < self.count)
        };
        let least = limits.into_iter().filter_map(limit).min();
        match (least, cpus) {
            (Some((_, words)), _) => format!("{made}; {words}"),
            (None, Some(_)) => format!("{made}, which fit side by side"),
            (None, None) => made,
        }
    }
}
