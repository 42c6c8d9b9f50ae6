//! Judges whether the CPUs and the memory of a node suffice for all pieces that its GPUs make.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::per_gpu::{Part, PerGpu};
use gpufrac_slurm_conf::value::job_defaults;
use gpufrac_slurm_conf::{Partition, Site, SlurmNode};

use super::super::Settings;
use super::super::gpu_count::{self, Gpus};
use super::super::rules::is;

/// What is known of the site.
struct Facts<'a> {
    settings: &'a Settings,
    config: &'a Config,
    /// The number of GPUs of each node, where the admin says it.
    gpus: Gpus,
}

impl Facts<'_> {
    /// The GPUs by which the CPUs and the memory of a node are divided.
    fn with_resources(&self, node: &SlurmNode) -> Option<u64> {
        let counted = || gpu_count::with_resources(self.settings, self.config, &node.name);
        let gpus = self.gpus.told.or_else(counted)?;
        Some(u64::from(gpus.max(1)))
    }
}

/// The smallest pieces of the GPUs of a node that a partition gives.
struct Pieces {
    gpus: u32,
    count: u64,
    /// CPUs and MiB of all pieces, and of the largest one.
    all: PerGpu,
    each: PerGpu,
}

/// The findings about the nodes of a partition, one for each kind of node.
pub(in super::super) fn judge(
    settings: &Settings,
    config: &Config,
    site: &Site,
    name: &str,
    found: &mut Vec<Finding>,
) {
    let Some(partition) = site.partition(name) else {
        return;
    };
    let facts = Facts {
        settings,
        config,
        gpus: Gpus::default(),
    };
    let per_gpu = per_gpu(settings, config, partition);
    let mut seen = BTreeSet::new();
    for node in partition.nodes.iter().filter_map(|node| site.node(node)) {
        let Some(pieces) = pieces(&facts, partition, node, per_gpu) else {
            continue;
        };
        if !seen.insert((pieces.count, node.cpus(), node.memory())) {
            continue;
        }
        let place = settings
            .line_of_partition(name)
            .map(|it| it.entry.place().to_string());
        let fits = || cpus_for_all(&facts, partition, node);
        let memory = counts_memory(settings, partition)
            .then(|| pieces.lack_of_memory(name, node))
            .flatten();
        let lacks = pieces
            .lack_of_cpus(name, node, fits)
            .into_iter()
            .chain(memory);
        found.extend(lacks.map(|(severity, what, fix)| Finding {
            severity,
            place: place.clone(),
            what,
            fix,
        }));
    }
}

impl Pieces {
    fn lack_of_cpus(
        &self,
        partition: &str,
        node: &SlurmNode,
        fits: impl Fn() -> Option<u64>,
    ) -> Option<(Severity, String, String)> {
        let (cpus, each) = (u64::from(node.cpus()?), self.each.cpus?);
        if self.all.cpus? <= cpus {
            return None;
        }
        let what = format!(
            "partition {partition}: the GPUs of node {} make {} pieces ({} GPUs), and its {cpus} CPUs at {each} for a piece end at {}",
            node.name,
            self.count,
            self.gpus,
            cpus / each.max(1),
        );
        Some(match fits() {
            Some(cpus) => (
                Severity::Warning,
                what,
                format!("write in [partition.{partition}] of gpufrac.toml: cpus_per_gpu = {cpus}"),
            ),
            None => (
                Severity::Note,
                what,
                "the node has fewer cores than pieces: offer larger sizes with `menu` in the pool"
                    .to_owned(),
            ),
        })
    }

    fn lack_of_memory(
        &self,
        partition: &str,
        node: &SlurmNode,
    ) -> Option<(Severity, String, String)> {
        let memory = node.memory()?;
        let what = match (self.all.memory, self.each.memory) {
            (Some(all), Some(each)) if all > memory => format!(
                "partition {partition}: the GPUs of node {} make {} pieces ({} GPUs), and its {memory} MB at {each} for a piece end at {}",
                node.name,
                self.count,
                self.gpus,
                memory / each.max(1),
            ),
            (None, _) => format!(
                "partition {partition}: a job that names no memory gets all of its node, so that the {} pieces of node {} wait for each other",
                self.count, node.name
            ),
            _ => return None,
        };
        let per_gpu = memory / u64::from(self.gpus);
        Some((
            Severity::Warning,
            what,
            format!(
                "write in [partition.{partition}] of gpufrac.toml: memory_per_gpu = \"{per_gpu}M\""
            ),
        ))
    }
}

/// The smallest pieces that the partition gives on a node; None without any.
fn pieces(
    facts: &Facts<'_>,
    partition: &Partition,
    node: &SlurmNode,
    per_gpu: PerGpu,
) -> Option<Pieces> {
    let (settings, config) = (facts.settings, facts.config);
    let counted = || gpu_count::of(settings, config, &node.name).number();
    let gpus = facts.gpus.told.or_else(counted).unwrap_or(0);
    let rules = config.rules(&partition.name);
    let threads: u64 = node
        .entry
        .get("ThreadsPerCore")
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let mut pieces = Pieces {
        gpus: 0,
        count: 0,
        all: PerGpu::default(),
        each: PerGpu::default(),
    };
    let mut gpu_indexes = BTreeSet::new();
    for device in config.devices_of_node(&node.name, gpus) {
        if !device.pool.serves(&partition.name) {
            continue;
        }
        let layout = &device.pool.layout;
        let mut sizes = layout.menu.iter();
        let Some(size) = sizes.find(|size| rules.is_none_or(|rules| rules.allow(size))) else {
            continue;
        };
        gpu_indexes.insert(device.gpu_index);
        let count = u64::from(layout.capacity.0 / size.units.0.max(1));
        let each = per_gpu.of(Part::of(size.fraction, size.units));
        // Slurm gives a job whole cores.
        let cpus = each.cpus.unwrap_or(1).div_ceil(threads) * threads;
        let memory = each
            .memory
            .or_else(|| default_memory(settings, partition, cpus));
        let each = PerGpu {
            // A job has at least one core: no setting gives it less.
            cpus: each.cpus.map(|_| cpus),
            memory,
        };
        let all = PerGpu {
            cpus: each.cpus.map(|cpus| cpus * count),
            memory: memory.map(|memory| memory * count),
        };
        pieces.count += count;
        pieces.each = pieces.each.joined(each, u64::max);
        pieces.all = pieces.all.joined(all, |one, two| one + two);
    }
    pieces.gpus = u32::try_from(gpu_indexes.len()).unwrap_or(u32::MAX);
    (pieces.count > 0).then_some(pieces)
}

/// The CPUs of a node by its GPUs, or as many fewer as let its smallest pieces run side by side; None where not even
/// one CPU for a GPU does.
fn cpus_for_all(facts: &Facts<'_>, partition: &Partition, node: &SlurmNode) -> Option<u64> {
    let cpus = u64::from(node.cpus()?);
    let gpus = facts.with_resources(node)?;
    let fits = |per_gpu: &u64| {
        let per_gpu = PerGpu {
            cpus: Some(*per_gpu),
            memory: None,
        };
        pieces(facts, partition, node, per_gpu)
            .and_then(|pieces| pieces.all.cpus)
            .is_some_and(|all| all <= cpus)
    };
    (1..=cpus / gpus).rev().find(fits)
}

/// What gpufrac.toml should say that a GPU brings in a partition, from its node with the least: the CPUs and the memory
/// of the node, without those that Slurm reserves, by its GPUs. Nothing of what the site says already.
pub fn proposed(settings: &Settings, config: &Config, gpus: Gpus, name: &str) -> PerGpu {
    let facts = Facts {
        settings,
        config,
        gpus,
    };
    let site = settings.site();
    let Some(partition) = site.partition(name) else {
        return PerGpu::default();
    };
    let known = per_gpu(settings, config, partition);
    let has_memory =
        !counts_memory(settings, partition) || default_memory(settings, partition, 1).is_some();
    let nodes = partition.nodes.iter().filter_map(|node| site.node(node));
    let of_node = |node: &SlurmNode| {
        pieces(&facts, partition, node, known)?;
        let gpus = facts.with_resources(node)?;
        let by_gpu = || Some(u64::from(node.cpus()?) / gpus).filter(|cpus| *cpus > 0);
        let cpus = || cpus_for_all(&facts, partition, node).or_else(by_gpu);
        Some(PerGpu {
            cpus: if known.cpus.is_none() { cpus() } else { None },
            memory: node
                .memory()
                .filter(|_| known.memory.is_none() && !has_memory)
                .map(|memory| memory / gpus),
        })
    };
    nodes
        .filter_map(of_node)
        .reduce(|one, two| one.joined(two, u64::min))
        .unwrap_or_default()
}

/// What a GPU brings in a partition: by gpufrac.toml, then by the partition, then by the cluster.
pub(in super::super) fn per_gpu(
    settings: &Settings,
    config: &Config,
    partition: &Partition,
) -> PerGpu {
    let of_file = config.rules(&partition.name).map(|rules| rules.per_gpu);
    let of_partition = job_defaults(&|key| partition.entry.get(key).map(str::to_owned));
    let of_cluster = job_defaults(&|key| settings.value(key).map(str::to_owned));
    of_file.unwrap_or_default().or(of_partition).or(of_cluster)
}

/// The MiB of a job that names no memory: `DefMemPerCPU` or `DefMemPerNode` of the partition, then of the cluster; None
/// for all memory of the node.
fn default_memory(settings: &Settings, partition: &Partition, cpus: u64) -> Option<u64> {
    let of = |value: &dyn Fn(&str) -> Option<String>| {
        let number = |key| {
            value(key)
                .and_then(|text| text.trim().parse::<u64>().ok())
                .filter(|mib| *mib > 0)
        };
        number("DefMemPerCPU")
            .map(|mib| mib * cpus)
            .or_else(|| number("DefMemPerNode"))
    };
    of(&|key| partition.entry.get(key).map(str::to_owned))
        .or_else(|| of(&|key| settings.value(key).map(str::to_owned)))
}

/// Whether the scheduler counts memory in a partition, whose own value replaces the cluster's (`_setup_cr_type` of
/// `cons_tres`). Without any it does (`SelectTypeParameters` of slurm.conf(5)).
fn counts_memory(settings: &Settings, partition: &Partition) -> bool {
    const KEY: &str = "SelectTypeParameters";
    let set = |text: &&str| !text.is_empty() && !is(text, "NONE");
    let own = partition.entry.get(KEY).filter(set);
    let text = own.or_else(|| settings.value(KEY).filter(set));
    text.is_none_or(|text| text.to_ascii_uppercase().contains("MEMORY"))
}
