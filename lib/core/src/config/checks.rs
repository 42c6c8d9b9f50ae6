//! Contradictions between the tables of a file.

use std::ops::Range;

use super::error::Problem;
use super::read::{Section, Source};
use super::tables::{Config, PartitionRules};
use crate::device_type;
use crate::layout::{LayoutKind, MenuEntry};
use crate::pool::Pool;
use crate::rounding::{self, Demand};

/// The tables of the file, in the same order as the pools and rules that were read from them; errors point at them.
#[derive(Default)]
pub(super) struct Places<'a> {
    pub(super) pools: Vec<Section<'a>>,
    pub(super) partitions: Vec<Section<'a>>,
}

/// The range of the text that an error points at: the first of `keys` that is written, otherwise the heading of the
/// table.
fn place(section: Option<&Section<'_>>, keys: &[&str]) -> Range<usize> {
    section.map_or(0..0, |section| {
        let mut written = keys.iter().filter_map(|key| section.get(key));
        written.next().map_or(section.at.clone(), |item| item.at)
    })
}

pub(super) fn check(source: &Source<'_>, config: &Config, places: &Places<'_>) {
    for (position, pool) in config.pools.iter().enumerate() {
        let section = places.pools.get(position);
        for other in &config.pools[..position] {
            if let Some(problem) = overlap(pool, other) {
                let at = place(section, &["gpus", "nodes"]);
                source.error(&at, format!("pool.{}.gpus", pool.name), problem);
            }
        }
        for partition in &pool.partitions {
            let pools = config.pools_of_partition(partition);
            let last = pools.last().is_some_and(|other| other.name == pool.name);
            if let Some(problem) = last.then(|| same_type(config, partition, &pools)).flatten() {
                let at = place(section, &["layout", "mechanism"]);
                source.error(&at, format!("pool.{}", pool.name), problem);
            }
            if let Some(problem) = last.then(|| in_common(partition, &pools)).flatten() {
                let at = place(section, &["menu", "layout"]);
                source.error(&at, format!("pool.{}.menu", pool.name), problem);
            }
        }
    }
    if config.pools.is_empty() {
        // The missing pool is reported already; without a pool no partition can be served.
        return;
    }
    for (position, rules) in config.partitions.iter().enumerate() {
        let section = places.partitions.get(position);
        for (key, problem) in partition(config, rules) {
            let name = &rules.name;
            let full_key = if key.is_empty() {
                format!("partition.{name}")
            } else {
                format!("partition.{name}.{key}")
            };
            source.error(&place(section, &[key]), full_key, problem);
        }
    }
}

/// Whether two pools claim a GPU of the same node.
fn overlap(pool: &Pool, other: &Pool) -> Option<Problem> {
    let node = pool.nodes.common(&other.nodes)?;
    let gpus = match (&pool.gpus, &other.gpus) {
        (Some(mine), Some(theirs)) => {
            let gpu = mine.iter().find(|gpu| theirs.contains(gpu))?;
            format!("GPU {gpu}")
        }
        (None, Some(_)) => "some GPUs".to_owned(),
        (_, None) => "every GPU".to_owned(),
    };
    Some(Problem::Overlap {
        other: other.name.clone(),
        gpus,
        node: node.to_owned(),
    })
}

/// An error if Slurm could give jobs of the partition devices of another pool, because both have the same Type.
fn same_type(config: &Config, partition: &str, pools: &[&Pool]) -> Option<Problem> {
    let is_whole = |pool: &&&Pool| pool.layout.kind == LayoutKind::Whole;
    let (whole, parts): (Vec<&Pool>, Vec<&Pool>) = pools.iter().partition(is_whole);
    let type_name = whole.first().map(|pool| pool.type_name());
    let other = [(parts, None), (whole, type_name)]
        .into_iter()
        .filter(|(pools, _)| !pools.is_empty())
        .find_map(|(pools, name)| {
            device_type::of_pools(&config.pools, &[partition], &pools, name, false).err()
        })?;
    Some(Problem::SameType {
        other: other.name.clone(),
        partition: partition.to_owned(),
    })
}

fn in_common(partition: &str, pools: &[&Pool]) -> Option<Problem> {
    let is_part = |pool: &&&Pool| pool.layout.kind != LayoutKind::Whole;
    let parts: Vec<&Pool> = pools.iter().filter(is_part).copied().collect();
    if parts.is_empty() || !rounding::sizes(&parts).is_empty() {
        return None;
    }
    let names: Vec<&str> = parts.iter().map(|pool| pool.name.as_str()).collect();
    Some(Problem::NothingInCommon {
        pools: names.join(", "),
        partition: partition.to_owned(),
    })
}

fn partition(config: &Config, rules: &PartitionRules) -> Vec<(&'static str, Problem)> {
    let pools = config.pools_of_partition(&rules.name);
    if pools.is_empty() {
        let mut served: Vec<&str> = Vec::new();
        for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
            if !served.contains(&name.as_str()) {
                served.push(name);
            }
        }
        let problem = Problem::UnservedPartition {
            name: rules.name.clone(),
            served: served.join(", "),
        };
        return vec![("", problem)];
    }
    if let (Some(min), Some(max)) = (rules.min, rules.max)
        && min > max
    {
        return vec![("min", Problem::MinOverMax { min, max })];
    }
    let sizes = rounding::sizes(&pools);
    let mut found = Vec::new();
    if !sizes.is_empty() && !sizes.iter().any(|size| rules.allow(size)) {
        let sizes = listed(&sizes);
        found.push(("max", Problem::NothingAllowed { sizes }));
    } else if let Some(fraction) = rules.default {
        let reason = match rounding::grant(&pools, Demand::Fraction(fraction)) {
            Err(_) => Some(format!("the sizes are {}", listed(&sizes))),
            Ok(grant) if !rules.allow(&grant.size) && grant.size.fraction == fraction => {
                Some("min and max do not allow it".to_owned())
            }
            Ok(grant) if !rules.allow(&grant.size) => Some(format!(
                "it is rounded up to {}, which min and max do not allow",
                grant.size.fraction
            )),
            Ok(_) => None,
        };
        let problem = |reason| Problem::Default { fraction, reason };
        found.extend(reason.map(|reason| ("default", problem(reason))));
    }
    found
}

/// The sizes for a message. A menu of every percent is too long to list.
fn listed(sizes: &[MenuEntry]) -> String {
    match sizes {
        [first, .., last] if sizes.len() > rounding::MAX_LISTED_SIZES => {
            format!("{} to {}", first.fraction, last.fraction)
        }
        _ => {
            let sizes: Vec<String> = sizes.iter().map(|size| size.fraction.to_string()).collect();
            sizes.join(", ")
        }
    }
}
