//! The nodes and partitions of a Slurm: slurm.conf with its includes, or the output of `scontrol --oneliner show node`
//! and `show partition`.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use gpufrac_core::mig_type::MigType;
use gpufrac_slurm_conf::value::job_defaults;
use gpufrac_slurm_conf::{ConfFile, Read, Site, counts, read_conf};

use super::value::{self, Devices};
use crate::cluster::{Cluster, ClusterNode, Partition};

/// The nodes with GPUs of a text without includes. None where it has none.
pub fn read(text: &str) -> Option<Cluster> {
    read_file(Path::new("slurm.conf"), text, &|_| {
        Err(io::ErrorKind::NotFound.into())
    })
}

/// The nodes with GPUs of the text of a file, whose includes `included` reads. None where it has none.
pub fn read_file(path: &Path, text: &str, included: Read<'_>) -> Option<Cluster> {
    let read = |file: &Path| if file == path { Ok(text.to_owned()) } else { included(file) };
    cluster(&read_conf(path, &read).ok()?)
}

fn cluster(file: &ConfFile) -> Option<Cluster> {
    let site = Site::of(file);
    let select = file.last("SelectTypeParameters");
    let counts_memory =
        select.is_some_and(|(_, text)| text.to_ascii_uppercase().contains("MEMORY"));
    let nodes = site.nodes.iter().filter_map(|node| {
        let gres = node.gres().unwrap_or_default();
        let devices = Devices::of(gres).unwrap_or_default();
        Some(ClusterNode {
            name: node.name.clone(),
            gpus: Some(devices.all_gpus()).filter(|gpus| *gpus > 0)?,
            cpus: node.cpus(),
            memory: node
                .memory()
                .filter(|_| counts_memory)
                .and_then(|mib| u32::try_from(mib).ok()),
            shards: devices.shards,
            mps: devices.mps,
            instance: match devices.gpus {
                0 => largest_instance(gres),
                _ => 0,
            },
        })
    });
    let nodes: Vec<ClusterNode> = nodes.collect();
    let of_cluster = job_defaults(&|key| file.last(key).map(|(_, value)| value.to_owned()));
    let partitions = site.partitions.iter().map(|partition| {
        let value = |key| partition.entry.get(key);
        let names: HashSet<&String> = partition.nodes.iter().collect();
        let is_member = |node: &ClusterNode| names.contains(&node.name);
        let members = nodes.iter().enumerate().filter(|(_, node)| is_member(node));
        Partition {
            name: partition.name.clone(),
            nodes: members.map(|(number, _)| number).collect(),
            limit: value("MaxTime")
                .and_then(|text| value::limit(text).ok())
                .flatten(),
            tier: value("PriorityTier")
                .and_then(|text| text.parse().ok())
                .unwrap_or(1),
            qos: value("QoS")
                .filter(|name| !["", "N/A", "(null)"].contains(name))
                .map(str::to_owned),
            per_gpu: job_defaults(&|key| partition.entry.get(key).map(str::to_owned))
                .or(of_cluster),
        }
    });
    let partitions = partitions.filter(|partition| !partition.nodes.is_empty());
    let partitions = partitions.collect();
    let cluster = Cluster { nodes, partitions };
    (!cluster.nodes.is_empty()).then_some(cluster)
}

/// Percents of a GPU, rounded down.
fn largest_instance(gres: &str) -> u32 {
    let counts = counts(gres);
    let types = counts.keys().filter(|(name, _)| name == "gpu");
    let shares = types.filter_map(|(_, name)| Some(MigType::of(name)?.part().share()));
    shares
        .map(|share| (share * 100.0) as u32)
        .max()
        .unwrap_or(0)
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

    /// Promise (admins): `gpufrac plan --cluster` reads slurm.conf with its includes, as the other commands do.
    #[test]
    fn defaults_sets_and_includes_hold_as_in_slurm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slurm.conf");
        std::fs::write(
            folder.path().join("nodes.conf"),
            "NodeName=DEFAULT Sockets=2 CoresPerSocket=32 Gres=gpu:h100:4\r\nNodeName=gn[01-04]\n",
        )
        .unwrap();
        let text = "Include nodes.conf\nNodeSet=some Nodes=gn[03-04]\nPartitionName=DEFAULT MaxTime=1-0 PriorityTier=5 QOS=part\nPartitionName = gpu Nodes=gn[01-02],gn02,\npartitionname=long Nodes=\\\n  some MaxTime=7-0\n";
        let cluster = read_file(&path, text, &|path| std::fs::read_to_string(path)).unwrap();
        assert_eq!(cluster.gpus_by_node(), [4; 4]);
        assert_eq!(cluster.cpus_by_node(), [Some(64); 4]);
        let partitions = cluster.partitions.iter();
        let partitions: Vec<_> = partitions
            .map(|it| (it.name.as_str(), it.nodes.as_slice(), it.limit, it.tier))
            .collect();
        assert_eq!(
            partitions,
            [
                ("gpu", &[0, 1][..], Some(86_400), 5),
                ("long", &[2, 3][..], Some(604_800), 5)
            ]
        );
    }
}
