//! A gpufrac.toml for a way of lending, and the lines of Slurm's files that belong to it.

use std::collections::BTreeMap;
use std::fmt::Write;

use gpufrac_core::config::{Config, ConfigErrors};
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist;

use crate::candidate::{Candidate, Cut, Model};
use crate::cluster::Cluster;

/// The text of a gpufrac.toml.
pub fn file(candidate: Candidate, model: &Model, cluster: &Cluster) -> String {
    let mut text = "version = 1\n".to_owned();
    for (number, (group, nodes)) in groups(cluster).into_iter().enumerate() {
        let whole = candidate.whole_gpus(group.gpus);
        let pools = [(0, whole, Cut::Whole), (whole, group.gpus, candidate.cut)];
        for (from, until, cut) in pools {
            if from == until || (from > 0 && cut == Cut::Whole) {
                continue;
            }
            let name = match cut {
                Cut::Whole => "whole",
                _ => "shared",
            };
            let _ = write!(text, "\n[pool.{name}{}]\n", number + 1);
            keys(&mut text, cut, model);
            let partitions: Vec<String> = group
                .partitions
                .iter()
                .map(|name| format!("\"{name}\""))
                .collect();
            let _ = writeln!(
                text,
                "gpu = \"{}\"\npartitions = [{}]",
                model.name,
                partitions.join(", ")
            );
            let _ = writeln!(text, "nodes = \"{}\"", hostlist::short(&nodes));
            if (from, until) != (0, group.gpus) {
                let gpus: Vec<String> = (from..until).map(|gpu| gpu.to_string()).collect();
                let _ = writeln!(text, "gpus = [{}]", gpus.join(", "));
            }
        }
    }
    text.push_str("\n[reaper]\nmode = \"dry-run\"\n");
    text
}

fn keys(text: &mut String, cut: Cut, model: &Model) {
    let has_mig = model.geometry.is_some();
    let _ = match cut {
        Cut::Whole if has_mig => writeln!(text, "mechanism = \"mig\"\nlayout = \"whole\""),
        Cut::Whole => writeln!(text, "mechanism = \"mps\"\nlayout = \"whole\""),
        Cut::Halves => writeln!(text, "mechanism = \"mig\"\nlayout = \"halves\""),
        Cut::Uniform(size) => writeln!(
            text,
            "mechanism = \"mig\"\nlayout = \"uniform\"\nmenu = [\"{}\"]",
            size.ratio()
        ),
        Cut::Mps => writeln!(text, "mechanism = \"mps\"\ntenancy = \"shared\""),
    };
}

/// Nodes with the same GPUs and partitions.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    gpus: u32,
    partitions: Vec<String>,
}

fn groups(cluster: &Cluster) -> BTreeMap<Group, Vec<&str>> {
    let mut groups: BTreeMap<Group, Vec<&str>> = BTreeMap::new();
    for (number, node) in cluster.nodes.iter().enumerate() {
        let member = cluster
            .partitions
            .iter()
            .filter(|partition| partition.nodes.contains(&number));
        let mut partitions: Vec<String> = member.map(|partition| partition.name.clone()).collect();
        if partitions.is_empty() {
            partitions.push("gpu".to_owned());
        }
        let group = Group {
            gpus: node.gpus,
            partitions,
        };
        groups.entry(group).or_default().push(&node.name);
    }
    groups.retain(|group, _| group.gpus > 0);
    groups
}

/// The lines of gres.conf, and of slurm.conf, for a gpufrac.toml. Errors: when the text is no configuration.
pub fn lines(text: &str, cluster: &Cluster) -> Result<Vec<String>, ConfigErrors> {
    let config = Config::parse(text, "gpufrac.toml")?;
    let mut groups: Vec<(GresLines, Vec<&String>)> = Vec::new();
    for node in cluster.nodes.iter().filter(|node| node.gpus > 0) {
        let devices = config.devices_of_node(&node.name, node.gpus);
        let folder = config.paths.for_node(&node.name).devices;
        let lines = GresLines::of(&devices, folder.as_ref(), &config.count_name, &|_| None);
        hostlist::group(&mut groups, lines, &node.name);
    }
    let mut all = vec!["# gres.conf".to_owned()];
    for (lines, names) in &groups {
        all.extend(lines.gres_conf(&hostlist::short(names)));
    }
    all.push("# slurm.conf".to_owned());
    all.push(format!(
        "GresTypes={}",
        config.count_name.gres_types().join(",")
    ));
    all.push("SelectType=select/cons_tres".to_owned());
    all.push("PrologFlags=Alloc,Contain,DeferBatch".to_owned());
    for (lines, names) in &groups {
        all.push(format!(
            "NodeName={} Gres={}",
            hostlist::short(names),
            lines.gres
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Partition;

    #[test]
    fn every_candidate_has_a_configuration_with_lines_for_slurm() {
        let mut cluster = Cluster::uniform(3, 8);
        cluster.nodes[2].gpus = 4;
        cluster.partitions.push(Partition {
            name: "long".to_owned(),
            nodes: vec![1],
            ..Partition::default()
        });
        for name in ["H100-80", "A100-40", "A30-24", "L40S-48", "T4-16"] {
            let model = Model::named(name).unwrap();
            for candidate in Candidate::all(&model) {
                let text = file(candidate, &model, &cluster);
                let lines = lines(&text, &cluster)
                    .unwrap_or_else(|error| panic!("{candidate}: {error}\n{text}"));
                assert!(
                    lines.iter().any(|line| line.contains(" Gres=gpu:")),
                    "{lines:?}"
                );
            }
        }
    }

    #[test]
    fn mixtures_name_the_gpus_of_each_pool() {
        let model = Model::named("H100-80").unwrap();
        let text = file(
            Candidate::parse("halves+2").unwrap(),
            &model,
            &Cluster::uniform(2, 8),
        );
        assert!(
            text.contains("gpus = [0, 1]\n") && text.contains("gpus = [2, 3, 4, 5, 6, 7]\n"),
            "{text}"
        );
    }
}
