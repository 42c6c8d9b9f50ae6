//! What a proposal changes for users: requests that Slurm served before and no longer serves on these nodes.

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::fraction::Fraction;
use gpufrac_core::hostlist;
use gpufrac_core::mig_type::MigType;
use gpufrac_slurm_conf::{ConfFile, Counts, Site, SlurmNode, counts};

use super::super::gres_lines::{NodeLines, PLAIN, is_own_type};
use super::super::nodes::expected;
use super::super::rules::is;
use super::super::{Settings, gpu_count};

/// A kind of request that ends.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    Instances(String),
    /// The Type, and what to write instead.
    Type(String, String),
    Shards(u64),
    Mps,
    NoType,
    /// What gres.conf said of the cores near GPUs.
    Cores,
}

/// What ends with select/linear (slurm.conf(5)).
const SHARED_NODES: &str = "with select/linear each job got whole nodes; with select/cons_tres jobs share nodes, also nodes without GPUs: a job that needs a \
     whole node asks for --exclusive, or its partition, if it has no pool, has OverSubscribe=EXCLUSIVE";

/// The sentences. `after`: the nodes with the changes; `changed`: those whose devices change.
pub(super) fn of(
    settings: &Settings,
    after: &Site,
    config: &Config,
    changed: &[String],
) -> Vec<String> {
    let Some(files) = &settings.files else {
        return Vec::new();
    };
    let mut ends: BTreeMap<Ends, Vec<&str>> = BTreeMap::new();
    for name in changed {
        let of = |site: &Site| {
            counts(
                site.node(name)
                    .and_then(SlurmNode::gres)
                    .unwrap_or_default(),
            )
        };
        for end in of_node(name, &of(&files.site), &of(after), config) {
            ends.entry(end).or_default().push(name);
        }
        if loses_cores(settings, &files.gres, config, name) {
            ends.entry(Ends::Cores).or_default().push(name);
        }
    }
    let sentences = ends.iter();
    let sentences = sentences.map(|(end, nodes)| end.text(&hostlist::short(nodes)));
    let is_linear = settings
        .value("SelectType")
        .is_some_and(|value| is(value, "select/linear"));
    let shared = is_linear.then(|| SHARED_NODES.to_owned());
    let untyped = without_type(&files.site, after, config, changed);
    sentences.chain(untyped).chain(shared).collect()
}

/// The sentences about requests of GPUs without a Type, which no partition with pools takes.
fn without_type(before: &Site, after: &Site, config: &Config, changed: &[String]) -> Vec<String> {
    let gres = |site: &Site, node: &str| {
        let gres = site.node(node).and_then(SlurmNode::gres);
        counts(gres.unwrap_or_default())
    };
    let is_whole = |(name, type_name): &(String, String)| {
        name == "gpu" && !is_own_type(type_name) && MigType::of(type_name).is_none()
    };
    let mut partitions: BTreeSet<&String> = BTreeSet::new();
    for node in changed {
        if gres(before, node).keys().any(is_whole) {
            let pools = config.pools_of_node(node).into_iter();
            partitions.extend(pools.flat_map(|pool| &pool.partitions));
        }
    }
    partitions.retain(|name| !config.rules(name).is_some_and(|rules| rules.allow_raw));
    let mut by_cure: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in partitions {
        let pools = config.pools_of_partition(name);
        let mut cure = instead_of_whole(pools.iter().filter_map(|pool| largest(pool)).max());
        let nodes = after.partition(name).map(|partition| &partition.nodes);
        let counted = nodes
            .into_iter()
            .flatten()
            .flat_map(|node| gres(after, node));
        let types = counted.map(|(key, _)| key).filter(is_whole);
        if let Some((_, other)) = types.filter(|(_, name)| !name.is_empty()).min() {
            cure += &format!(", or the Type of a GPU that is in no pool, --gres=gpu:{other}:1");
        }
        by_cure.entry(cure).or_default().push(name);
    }
    let sentence = |(cure, partitions): (String, Vec<&str>)| {
        format!(
            "GPUs without a Type (--gres=gpu:1) are refused in partition {}: users write {cure}",
            partitions.join(", ")
        )
    };
    by_cure.into_iter().map(sentence).collect()
}

/// Whether Slurm knew the cores near the GPUs of a node, by `Cores=` or AutoDetect, and the new lines do not say them.
fn loses_cores(settings: &Settings, gres: &ConfFile, config: &Config, node: &str) -> bool {
    let lines = NodeLines::of(gres, node, &config.count_name);
    let detects = lines.detects().is_some();
    let gpus = gpu_count::of(settings, config, node).number();
    let says = |gpus| {
        let lines = expected(settings, config, node, gpus)?;
        let mut lines = lines.gres_conf(node).into_iter();
        Some(lines.any(|line| line.contains(" Cores=")))
    };
    (detects || !lines.cores.is_empty()) && !gpus.and_then(says).unwrap_or(false)
}

fn of_node(node: &str, before: &Counts, after: &Counts, config: &Config) -> BTreeSet<Ends> {
    let mut ends = BTreeSet::new();
    let mut instances = Vec::new();
    let stays = |type_name: &str| {
        let key = ("gpu".to_owned(), type_name.to_owned());
        after.get(&key).copied().unwrap_or(0)
    };
    // Shards of gpufrac may have no Type.
    let mut names = before.keys();
    let has_fractions = names.any(|(name, _)| name == config.count_name.as_str());
    for ((name, type_name), count) in before {
        match name.as_str() {
            "gpu" if is_own_type(type_name) => {}
            "gpu" if MigType::of(type_name).is_some() => {
                let gone = count.saturating_sub(stays(type_name));
                if gone > 0 {
                    instances.push(format!("gpu:{type_name}:{gone}"));
                }
            }
            "gpu" if type_name.is_empty() && stays(PLAIN) > 0 => {
                ends.insert(Ends::NoType);
            }
            "gpu" if !type_name.is_empty() && stays(type_name) == 0 => {
                let pools = pools_of_type(config.pools_of_node(node), type_name);
                let instead = instead_of_whole(pools.iter().filter_map(|pool| largest(pool)).min());
                ends.insert(Ends::Type(type_name.clone(), instead));
            }
            "shard" if !is_own_type(type_name) && !has_fractions => {
                ends.insert(Ends::Shards(*count));
            }
            "mps" => {
                ends.insert(Ends::Mps);
            }
            _ => {}
        }
    }
    if !instances.is_empty() {
        ends.insert(Ends::Instances(instances.join(",")));
    }
    ends
}

/// The pools whose models a Type of the site names: `l40s` the pools of L40S-48; all pools where it names none.
fn pools_of_type<'c>(mut pools: Vec<&'c Pool>, type_name: &str) -> Vec<&'c Pool> {
    let type_name = type_name.to_ascii_lowercase();
    // The length of the model's name, because `l40` is also a part of `l40s`.
    let likeness = |pool: &Pool| {
        let model = pool.geometry.model.to_ascii_lowercase();
        let name = model.split('-').next().unwrap_or_default();
        if type_name.contains(name) { name.len() } else { 0 }
    };
    let best = pools.iter().map(|pool| likeness(pool)).max().unwrap_or(0);
    pools.retain(|pool| likeness(pool) == best);
    pools
}

/// The largest part of a GPU that a pool lends.
fn largest(pool: &Pool) -> Option<Fraction> {
    Some(pool.layout.menu.last()?.fraction)
}

/// The request for a whole GPU, or for the largest part where no whole GPU is lent.
fn instead_of_whole(largest: Option<Fraction>) -> String {
    match largest.filter(|size| *size < Fraction::ONE) {
        Some(size) => {
            format!("--gres=gpufrac:{size}, the largest part, because no whole GPU is lent there")
        }
        None => "--gres=gpufrac:1".to_owned(),
    }
}

impl Ends {
    fn text(&self, nodes: &str) -> String {
        match self {
            Ends::Instances(all) => format!(
                "{nodes} has MIG instances that the site made ({all}). gpufrac makes instances itself: while the nodes are drained, destroy \
                 these (`nvidia-smi mig -dci`, then `nvidia-smi mig -dgi`), and switch off what makes them at boot. Users write \
                 --gres=gpufrac:0.25 instead of the Types"
            ),
            Ends::Type(name, instead) => format!(
                "the Type {name} of whole GPUs ends on {nodes}: instead of --gres=gpu:{name}:1 users write {instead}"
            ),
            Ends::Shards(count) => format!(
                "the {count} shards of {nodes} end: instead of --gres=shard:N users write the part of a GPU, --gres=gpufrac:0.25"
            ),
            Ends::Mps => format!(
                "mps ends on {nodes}: instead of --gres=mps:50 users write the part of a GPU, --gres=gpufrac:0.5"
            ),
            Ends::NoType => format!(
                "the GPUs without a pool on {nodes} get the Type {PLAIN}: for one of them users write --gres=gpu:{PLAIN}:1"
            ),
            Ends::Cores => format!(
                "a job's CPUs may be on another socket than its slice on {nodes}: gres.conf no longer says which cores are near the GPUs. Before \
                 Slurm 23.11.5 a job of a whole GPU could then get one with fractions on it; from that release on `gpufrac init` on the node writes Cores="
            ),
        }
    }
}
