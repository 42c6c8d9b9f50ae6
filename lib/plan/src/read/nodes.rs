//! The nodes and partitions of a Slurm: slurm.conf, or the output of `scontrol --oneliner show node` and `show partition`.

use gpufrac_core::hostlist::Hostlist;

use super::value;
use crate::cluster::{Cluster, Node, Partition};

/// The nodes with GPUs of a text. None where it has none.
pub fn read(text: &str) -> Option<Cluster> {
    let mut cluster = Cluster::default();
    let mut parts: Vec<(Partition, String)> = Vec::new();
    for line in text.replace("\\\n", " ").lines() {
        let line = line.split('#').next().unwrap_or_default();
        let value = |key: &str| {
            let mut words = line
                .split_whitespace()
                .filter_map(|word| word.split_once('='));
            words
                .find(|(name, _)| name.eq_ignore_ascii_case(key))
                .map(|(_, value)| value.trim_matches('"'))
        };
        if let Some(list) = value("NodeName") {
            let gres = value("Gres").unwrap_or_default();
            let gpus = value::gpus_of_node(gres).unwrap_or(0);
            let (shards, mps) = value::shares_of_node(gres).unwrap_or((0, 0));
            let names = Hostlist::parse(list).ok()?;
            if gpus == 0 || list == "DEFAULT" {
                continue;
            }
            let cpus = cpus(value);
            for name in names.names() {
                cluster.nodes.push(Node {
                    name: name.clone(),
                    gpus,
                    cpus,
                    shards,
                    mps,
                });
            }
        } else if let Some(name) = value("PartitionName").filter(|name| *name != "DEFAULT") {
            let partition = Partition {
                name: name.to_owned(),
                nodes: Vec::new(),
                limit: value("MaxTime")
                    .and_then(|text| value::limit(text).ok())
                    .flatten(),
                tier: value("PriorityTier")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(1),
                qos: value("QoS")
                    .filter(|name| !["", "N/A", "(null)"].contains(name))
                    .map(str::to_owned),
            };
            parts.push((partition, value("Nodes").unwrap_or("ALL").to_owned()));
        }
    }
    for (mut partition, list) in parts {
        let named = Hostlist::parse(&list).ok();
        let all = list.eq_ignore_ascii_case("ALL");
        let is_member =
            |node: &Node| all || named.as_ref().is_some_and(|list| list.contains(&node.name));
        let members = cluster
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| is_member(node));
        partition.nodes = members.map(|(number, _)| number).collect();
        if !partition.nodes.is_empty() {
            cluster.partitions.push(partition);
        }
    }
    (!cluster.nodes.is_empty()).then_some(cluster)
}

/// The CPUs of a node for jobs: the words of scontrol, then those of slurm.conf.
fn cpus<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<u32> {
    let number = |key| value(key).and_then(|text| text.parse::<u32>().ok());
    let product = || {
        let threads = number("ThreadsPerCore").unwrap_or(1);
        let boards = number("Boards").unwrap_or(1);
        let sockets =
            number("Sockets").or_else(|| number("SocketsPerBoard")?.checked_mul(boards))?;
        let cores = sockets.checked_mul(number("CoresPerSocket").unwrap_or(1))?;
        cores.checked_mul(threads)
    };
    let known = ["CPUEfctv", "CPUTot", "CPUs", "Procs"].into_iter();
    known
        .filter_map(number)
        .next()
        .or_else(product)
        .filter(|cpus| *cpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_conf_has_nodes_with_gpus_and_their_partitions() {
        let text = "NodeName=gn[01-02] CPUs=8 Gres=gpu:a100:4 # four\nNodeName=c1 CPUs=4\n\
            PartitionName=gpu Nodes=gn01 MaxTime=1-00:00:00 PriorityTier=5 QOS=part\nPartitionName=all Nodes=ALL QoS=N/A\nPartitionName=cpu Nodes=c1\n";
        let cluster = read(text).unwrap();
        assert_eq!(cluster.gpus_by_node(), [4, 4]);
        let names: Vec<&str> = cluster
            .partitions
            .iter()
            .map(|partition| partition.name.as_str())
            .collect();
        assert_eq!(names, ["gpu", "all"]);
        assert_eq!(
            (cluster.partitions[0].limit, cluster.partitions[0].tier),
            (Some(86_400), 5)
        );
        assert_eq!(cluster.partitions[1].nodes, [0, 1]);
        let qos: Vec<Option<&str>> = cluster
            .partitions
            .iter()
            .map(|partition| partition.qos.as_deref())
            .collect();
        assert_eq!(qos, [Some("part"), None]);
    }

    #[test]
    fn scontrol_has_the_same_words() {
        let text = "NodeName=gn01 Arch=x86_64 Gres=gpu:a100:4(S:0-1) Partitions=gpu\n";
        assert_eq!(read(text).unwrap().gpus(), 4);
        assert_eq!(read("NodeName=c1 Gres=(null)\n"), None);
    }

    #[test]
    fn instances_are_the_gpus_that_they_fill_and_shares_are_no_gpus() {
        let text = "NodeName=gn01 Gres=gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:14 CPUTot=64 RealMemory=512000\n\
            NodeName=gn02 Gres=gpu:a100:4 CPUTot=64 RealMemory=512000\n\
            NodeName=gn03 Gres=gpu:a100:4,shard:32,mps:400 CPUTot=64 RealMemory=512000\n";
        let cluster = read(text).unwrap();
        assert_eq!(cluster.gpus_by_node(), [4, 4, 4]);
        let shares = cluster.nodes.iter().map(|node| (node.shards, node.mps));
        assert_eq!(shares.collect::<Vec<_>>(), [(0, 0), (0, 0), (32, 400)]);
    }
}
