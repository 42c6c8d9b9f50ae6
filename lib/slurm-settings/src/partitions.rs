//! Judges the partitions of the pools.

pub(super) mod billing;
mod room;

use std::collections::HashSet;

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::finding::{Finding, Severity};

pub use room::proposed as proposed_per_gpu;

use super::Settings;
use super::rules::{SUSPENDED, suspends};

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let mut seen = HashSet::new();
    let names = config.pools.iter().flat_map(|pool| &pool.partitions);
    let names: Vec<&str> = names
        .map(String::as_str)
        .filter(|name| seen.insert(*name))
        .collect();
    let site = settings.site();
    for name in &names {
        one(settings, config, name, found);
        found.extend(without_nodes(settings, config, name));
        room::judge(settings, config, &site, name, found);
    }
    without_pools(settings, config, &names, found);
}

/// Reports partitions that have nodes of pools, but no pool. `served`: the partitions with pools.
fn without_pools(settings: &Settings, config: &Config, served: &[&str], found: &mut Vec<Finding>) {
    let files = settings.files.iter();
    let partitions = files.flat_map(|files| &files.site.partitions);
    for partition in partitions.filter(|partition| !served.contains(&&*partition.name)) {
        let name = &partition.name;
        let has_pool = |node: &&String| !config.pools_of_node(node).is_empty();
        let Some(node) = partition.nodes.iter().find(has_pool) else {
            continue;
        };
        // A partition without a pool is on nodes of a pool. Cure: Give the partition other nodes, or a pool.
        found.push(Finding {
            severity: Severity::Note,
            place: Some(partition.entry.place().to_string()),
            what: format!(
                "partition {name} has no pool, and {node} has GPUs of one: for a job of {name} with --get-user-env or --export=NONE slurmd runs the user's ~/.profile there outside of the fence"
            ),
            fix: format!("give partition {name} other nodes, or a pool in gpufrac.toml"),
        });
    }
}

/// A partition of pools that has none of their nodes.
fn without_nodes(settings: &Settings, config: &Config, name: &str) -> Option<Finding> {
    let partition = settings.line_of_partition(name)?;
    let (place, _) = partition.entry.find("Nodes")?;
    let pools: Vec<&Pool> = config
        .pools
        .iter()
        .filter(|pool| pool.serves(name))
        .collect();
    let is_of = |node: &String| pools.iter().any(|pool| pool.nodes.contains(node));
    if partition.nodes.iter().any(is_of) {
        return None;
    }
    if partition.is_open {
        let site = settings.site();
        let known = site.partition(name).filter(|it| !it.is_open)?;
        if known.nodes.iter().any(is_of) {
            return None;
        }
    }
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    // `Nodes=` of the partition and `nodes` of the pool have no node in common. Cure: Add the nodes to the partition,
    // or take the partition out of the pool.
    Some(Finding {
        severity: Severity::Error,
        place: Some(place.to_string()),
        what: format!(
            "partition {name} has no node of its pool {}: Slurm refuses every fraction there",
            names.join(" or ")
        ),
        fix: format!(
            "add the nodes of a pool to the `Nodes=` of {name}, or take {name} out of the `partitions` of the pool"
        ),
    })
}

fn one(settings: &Settings, config: &Config, name: &str, found: &mut Vec<Finding>) {
    let running = settings.running.iter();
    let mut partitions = running.map(|running| &running.partitions);
    let runs = partitions.any(|partitions| partitions.contains_key(name));
    if settings.line_of_partition(name).is_none() && !runs {
        // A partition is misspelled or missing. Cure: Correct `partitions` of the pool, or add the partition to
        // slurm.conf.
        found.push(Finding {
            severity: Severity::Error,
            place: Some(settings.slurm_conf()),
            what: format!(
                "gpufrac.toml has a pool for partition {name}, which Slurm does not have"
            ),
            fix: "correct the `partitions` of the pool, or add the partition to slurm.conf".into(),
        });
        return;
    }
    let bad = |key: &'static str, is_bad: &dyn Fn(&str) -> bool| bad(settings, name, key, is_bad);
    // `Exclusive=NODE` since 26.05.
    let whole_nodes = [
        ("Shared", "EXCLUSIVE"),
        ("OverSubscribe", "EXCLUSIVE"),
        ("Exclusive", "NODE"),
    ];
    for (key, value) in whole_nodes {
        if let Some((place, _)) = bad(key, &|is| super::rules::is(is, value)) {
            // The partition is exclusive. Cure: Write the line of the hint.
            found.push(Finding {
                severity: Severity::Error,
                place: Some(place),
                what: format!("partition {name}, {key}={value}: each job gets whole nodes, and no shares of a GPU"),
                fix: format!("write in the line of partition {name}: {key}=NO"),
            });
            break;
        }
    }
    // A value that the partition has from slurm.conf is reported there.
    let general = settings.running_value("PreemptMode");
    let suspends_itself = |mode: &str| suspends(mode) && Some(mode) != general;
    if let Some((place, mode)) = bad("PreemptMode", &suspends_itself) {
        // Suspended jobs would keep their GPU memory. Cure: `PreemptMode=REQUEUE`; [preemption](../preemption.md).
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(place),
            what: format!("partition {name}, PreemptMode={mode}: {SUSPENDED}"),
            fix: format!("write in the line of partition {name}: PreemptMode=REQUEUE"),
        });
    }
    billing::judge(settings, config, name, found);
}

/// The value of a setting of a partition, if it is bad, and its place: the one in the file, otherwise the running one.
fn bad(
    settings: &Settings,
    name: &str,
    key: &'static str,
    is_bad: &dyn Fn(&str) -> bool,
) -> Option<(String, String)> {
    let line = settings.line_of_partition(name).map(|it| &it.entry);
    let written = line.and_then(|line| line.find(key));
    if let Some((place, value)) = written.filter(|(_, value)| is_bad(value)) {
        return Some((place.to_string(), value.to_owned()));
    }
    let running = settings.running.as_ref()?.partitions.get(name)?;
    let value = running.get(key).filter(|value| is_bad(value))?;
    let place = line.map(|line| line.place().to_string());
    Some((
        place.unwrap_or("scontrol show partition".into()),
        value.to_owned(),
    ))
}
