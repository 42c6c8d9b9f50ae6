//! Judges whether the CPUs and the memory of a node suffice for all pieces that its GPUs make.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::per_gpu::{Part, PerGpu};
use gpufrac_slurm_conf::{Partition, Site, SlurmNode};

use super::super::{Settings, gpu_count};

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
    let counts_memory = setting(settings, "SelectTypeParameters")
        .is_some_and(|text| text.to_ascii_uppercase().contains("MEMORY"));
    let mut seen = BTreeSet::new();
    for node in partition.nodes.iter().filter_map(|node| site.node(node)) {
        let Some(pieces) = pieces(settings, config, partition, node) else {
            continue;
        };
        if !seen.insert((pieces.count, node.cpus(), node.memory())) {
            continue;
        }
        let place = settings
            .line_of_partition(name)
            .map(|it| it.entry.place().to_string());
        let mut warn = |what: String, fix: String| {
            found.push(Finding {
                severity: Severity::Warning,
                place: place.clone(),
                what,
                fix,
            });
        };
        if let (Some(cpus), Some(all), Some(each)) =
            (node.cpus(), pieces.all.cpus, pieces.each.cpus)
            && all > cpus.into()
        {
            warn(
                format!(
                    "partition {name}: the GPUs of node {} make {} pieces ({} GPUs), and its {cpus} CPUs at {each} for a piece end at {}",
                    node.name,
                    pieces.count,
                    pieces.gpus,
                    u64::from(cpus) / each.max(1),
                ),
                format!(
                    "write in [partition.{name}] of gpufrac.toml: cpus_per_gpu = {}",
                    (cpus / pieces.gpus).max(1)
                ),
            );
        }
        let Some(memory) = node.memory().filter(|_| counts_memory) else {
            continue;
        };
        let per_gpu = memory / u64::from(pieces.gpus);
        let fix =
            format!("write in [partition.{name}] of gpufrac.toml: memory_per_gpu = \"{per_gpu}M\"");
        match (pieces.all.memory, pieces.each.memory) {
            (Some(all), Some(each)) if all > memory => warn(
                format!(
                    "partition {name}: the GPUs of node {} make {} pieces ({} GPUs), and its {memory} MB at {each} for a piece end at {}",
                    node.name,
                    pieces.count,
                    pieces.gpus,
                    memory / each.max(1),
                ),
                fix,
            ),
            (None, _) => warn(
                format!(
                    "partition {name}: a job that names no memory gets all of its node, so that the {} pieces of node {} wait for each other",
                    pieces.count, node.name
                ),
                fix,
            ),
            _ => {}
        }
    }
}

/// The smallest pieces that the partition gives on a node; None without any.
fn pieces(
    settings: &Settings,
    config: &Config,
    partition: &Partition,
    node: &SlurmNode,
) -> Option<Pieces> {
    let gpus = gpu_count::of(settings, config, &node.name)
        .number()
        .unwrap_or(0);
    let rules = config.rules(&partition.name);
    let per_gpu = per_gpu(settings, config, partition);
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

/// What a GPU brings in a partition: by gpufrac.toml, then by the partition, then by the cluster.
pub(in super::super) fn per_gpu(
    settings: &Settings,
    config: &Config,
    partition: &Partition,
) -> PerGpu {
    let of_file = config.rules(&partition.name).map(|rules| rules.per_gpu);
    let of_partition = defaults(&|key| partition.entry.get(key).map(str::to_owned));
    let of_cluster = defaults(&|key| setting(settings, key));
    of_file.unwrap_or_default().or(of_partition).or(of_cluster)
}

/// `DefCpuPerGPU` and `DefMemPerGPU`, by themselves or in `JobDefaults`.
fn defaults(value: &dyn Fn(&str) -> Option<String>) -> PerGpu {
    let all = value("JobDefaults").unwrap_or_default();
    let number = |name: &str| {
        let mut pairs = all.split(',').filter_map(|pair| pair.split_once('='));
        let joined = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
        let own = value(name);
        own.as_deref()
            .or(joined.map(|(_, number)| number))
            .and_then(|text| text.trim().parse().ok())
    };
    PerGpu {
        cpus: number("DefCpuPerGPU"),
        memory: number("DefMemPerGPU"),
    }
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
        .or_else(|| of(&|key| setting(settings, key)))
}

/// A value of the running slurmctld, or of slurm.conf.
fn setting(settings: &Settings, key: &str) -> Option<String> {
    let running = settings.running_value(key).map(str::to_owned);
    running.or_else(|| {
        let (_, value) = settings.files.as_ref()?.slurm.last(key)?;
        Some(value.to_owned())
    })
}
