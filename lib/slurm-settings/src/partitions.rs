//! Judges the partitions of the pools.

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist::Hostlist;

use super::Settings;
use super::conf::{ConfFile, Place};
use super::rules::{SUSPENDED, suspends};

/// The line of a partition, with the DEFAULT lines before it.
struct Written<'a> {
    place: &'a Place,
    values: Vec<(&'static str, &'a Place, &'a str)>,
}

/// `Shared` is the old name of `OverSubscribe`.
const KEYS: [&str; 5] = [
    "Shared",
    "OverSubscribe",
    "Exclusive",
    "PreemptMode",
    "Nodes",
];

impl<'a> Written<'a> {
    fn of(file: &'a ConfFile, name: &str) -> Option<Written<'a>> {
        let mut defaults = Vec::new();
        let mut found = None;
        for line in file.starting("PartitionName") {
            let names = line.get("PartitionName").unwrap_or_default();
            let own = KEYS
                .into_iter()
                .filter_map(|key| Some((key, &line.place, line.get(key)?)));
            if names.eq_ignore_ascii_case("DEFAULT") {
                defaults.extend(own);
            } else if names.split(',').any(|known| known == name) {
                let mut values: Vec<_> = defaults.clone();
                values.extend(own);
                found = Some(Written {
                    place: &line.place,
                    values,
                });
            }
        }
        found
    }

    fn get(&self, key: &str) -> Option<(&'a Place, &'a str)> {
        let last = self.values.iter().rev().find(|(known, _, _)| *known == key);
        last.map(|(_, place, value)| (*place, *value))
    }
}

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let mut names: Vec<&str> = Vec::new();
    for pool in &config.pools {
        for name in &pool.partitions {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    for name in &names {
        one(settings, name, found);
        found.extend(without_nodes(settings, config, name));
    }
    without_pools(settings, config, &names, found);
}

/// Reports partitions that have nodes of pools, but no pool. `served`: the partitions with pools.
fn without_pools(settings: &Settings, config: &Config, served: &[&str], found: &mut Vec<Finding>) {
    let files = settings.files.iter();
    let lines = files.flat_map(|files| files.slurm.starting("PartitionName"));
    for line in lines {
        let nodes = line.get("Nodes").unwrap_or_default();
        let names = line.get("PartitionName").unwrap_or_default();
        let others = names.split(',').filter(|name| {
            let default = name.eq_ignore_ascii_case("DEFAULT");
            !default && !served.contains(name)
        });
        let Some(node) = node_of_pools(config, nodes) else {
            continue;
        };
        found.extend(others.map(|name| Finding {
            severity: Severity::Note,
            place: Some(line.place.to_string()),
            what: format!(
                "partition {name} has no pool, and {node} has GPUs of one: for a job of {name} with --get-user-env or --export=NONE slurmd runs the user's ~/.profile there outside of the fence"
            ),
            fix: format!("give partition {name} other nodes, or a pool in gpufrac.toml"),
        }));
    }
}

/// A partition of pools that has none of their nodes.
fn without_nodes(settings: &Settings, config: &Config, name: &str) -> Option<Finding> {
    let files = settings.files.as_ref()?;
    let (place, nodes) = Written::of(&files.slurm, name)?.get("Nodes")?;
    let sets = files.slurm.starting("NodeSet");
    let sets: Vec<&str> = sets.filter_map(|line| line.get("NodeSet")).collect();
    let is_set = |word: &str| sets.contains(&word);
    if nodes.eq_ignore_ascii_case("ALL") || nodes.split(',').any(is_set) {
        return None;
    }
    let own = Hostlist::parse(nodes).ok()?;
    let pools: Vec<&Pool> = config
        .pools
        .iter()
        .filter(|pool| pool.serves(name))
        .collect();
    if pools.iter().any(|pool| own.common(&pool.nodes).is_some()) {
        return None;
    }
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
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

/// The first of these nodes that is in a pool.
fn node_of_pools(config: &Config, nodes: &str) -> Option<String> {
    let mut pools = config.pools.iter().map(|pool| &pool.nodes);
    if nodes.eq_ignore_ascii_case("ALL") {
        return pools.next()?.names().first().cloned();
    }
    let nodes = Hostlist::parse(nodes).ok()?;
    pools.find_map(|pool| nodes.common(pool)).map(str::to_owned)
}

fn one(settings: &Settings, name: &str, found: &mut Vec<Finding>) {
    let line = settings
        .files
        .as_ref()
        .and_then(|files| Written::of(&files.slurm, name));
    let record = settings
        .running
        .as_ref()
        .and_then(|running| running.partitions.get(name));
    if line.is_none() && record.is_none() {
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
    let place_of_line = || {
        let line = line.as_ref().map(|line| line.place.to_string());
        line.unwrap_or("scontrol show partition".into())
    };
    // The value in the file, otherwise the running one, if it is bad.
    let bad = |key: &'static str, is_bad: &dyn Fn(&str) -> bool| -> Option<(String, String)> {
        let written = line.as_ref().and_then(|line| line.get(key));
        if let Some((place, value)) = written.filter(|(_, value)| is_bad(value)) {
            return Some((place.to_string(), value.to_owned()));
        }
        let running = record.and_then(|record| record.get(key));
        let running = running.filter(|value| is_bad(value));
        running.map(|value| (place_of_line(), value.to_owned()))
    };
    // `Exclusive=NODE` since 26.05.
    let whole_nodes = [
        ("Shared", "EXCLUSIVE"),
        ("OverSubscribe", "EXCLUSIVE"),
        ("Exclusive", "NODE"),
    ];
    for (key, value) in whole_nodes {
        if let Some((place, _)) = bad(key, &|is| super::rules::is(is, value)) {
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
    let general = settings
        .running
        .as_ref()
        .and_then(|running| running.get("PreemptMode"));
    let suspends_itself = |mode: &str| suspends(mode) && Some(mode) != general;
    if let Some((place, mode)) = bad("PreemptMode", &suspends_itself) {
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(place),
            what: format!("partition {name}, PreemptMode={mode}: {SUSPENDED}"),
            fix: format!("write in the line of partition {name}: PreemptMode=REQUEUE"),
        });
    }
}
