//! How many GPUs a node has.
//!
//! On a node that counts gpufrac's devices their counts tell. On any other node facts do: NVML, the files of gres.conf,
//! and the counts of `gpu`. Instances, shards and mps count no GPUs. NVML of this host also holds for the other nodes
//! of its line.

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::config::Config;
use gpufrac_core::mig_type::MigType;
use gpufrac_slurm_conf::{Counts, SlurmNode, counts};

use super::gres_lines::{GresDevice, NodeLines, is_own_type};
use super::{HostGpus, Settings};

/// The Types of a node's GPUs that Slurm itself lends, because no pool has them.
pub fn types_without_pool(node: &SlurmNode, config: &Config) -> Vec<String> {
    let pools = config.pools_of_node(&node.name);
    let has_others = pools.iter().all(|pool| pool.gpus.is_some());
    let gpus = counts(node.gres().unwrap_or_default()).into_keys();
    let types = gpus.filter_map(|(name, kind)| (name == "gpu").then_some(kind));
    types
        .filter(|kind| has_others && !is_own_type(kind))
        .collect()
}

/// The number of GPUs of the nodes, where the admin says it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gpus {
    /// The number, whatever Slurm and NVML count.
    pub told: Option<u32>,
}

/// What is known of the GPUs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuCount {
    /// Their number.
    Known(u32),
    /// The number on another node of its line, taken for its own.
    Assumed(u32),
    /// Nothing says it. `instances`: the MIG instances that Slurm counts there.
    Unknown {
        /// `gpu:h100_3g.40gb:2`; empty without instances.
        instances: String,
    },
    /// Two facts that do not agree.
    Differs([Fact; 2]),
}

impl GpuCount {
    /// The number, if one is known or assumed.
    pub fn number(&self) -> Option<u32> {
        match self {
            GpuCount::Known(count) | GpuCount::Assumed(count) => Some(*count),
            GpuCount::Unknown { .. } | GpuCount::Differs(_) => None,
        }
    }
}

/// A number of GPUs, and what says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    pub count: u32,
    /// `NVML`, or a text of Slurm with its place.
    pub source: String,
}

/// What Slurm's files and slurmctld say of a node.
struct Sources<'a> {
    /// Each `Gres=`, with its place.
    texts: Vec<(String, Counts)>,
    lines: Option<NodeLines>,
    host: Option<&'a HostGpus>,
    is_host: bool,
}

/// The number of GPUs of a node of pools.
pub fn of(settings: &Settings, config: &Config, node: &str) -> GpuCount {
    let pools = config.pools_of_node(node);
    if pools.iter().all(|pool| pool.gpus.is_some()) {
        return GpuCount::Known(0);
    }
    let sources = sources(settings, config, node);
    if !sources.is_set_up(config) {
        return of_whole(&sources);
    }
    let counted = match sources.host.filter(|_| sources.is_host) {
        Some(host) => Some(host.count()),
        None => sources.of_own_devices(config, node),
    };
    counted.map_or_else(|| of_whole(&sources), GpuCount::Known)
}

/// The number of all GPUs of a node, with those that have no pool.
pub(super) fn of_all(settings: &Settings, config: &Config, node: &str) -> GpuCount {
    of_whole(&sources(settings, config, node))
}

/// The number of GPUs by which the CPUs and the memory of a node are divided: those of pools, also where `gpus` lists
/// them, and those without a pool.
pub(super) fn with_resources(settings: &Settings, config: &Config, node: &str) -> Option<u32> {
    let sources = sources(settings, config, node);
    if !sources.is_set_up(config) {
        return of_whole(&sources).number();
    }
    let whole = of(settings, config, node).number()?;
    let devices = config.devices_of_node(node, whole).into_iter();
    let pooled: BTreeSet<_> = devices.map(|device| device.gpu_index).collect();
    let plain = sources.lines.iter().flat_map(NodeLines::plain_gpus);
    let plain: usize = plain.map(|(_, files)| files.len()).sum();
    u32::try_from(pooled.len() + plain).ok()
}

/// The Types of the whole GPUs that Slurm's files and slurmctld count on a node, in small letters.
pub fn types(settings: &Settings, config: &Config, node: &str) -> BTreeSet<String> {
    let sources = sources(settings, config, node);
    let counted = sources.texts.iter().flat_map(|(_, counts)| counts.keys());
    let counted = counted.filter(|(name, _)| name == "gpu");
    let counted = counted.map(|(_, type_name)| type_name.as_str());
    let lines = sources.lines.iter().flat_map(|lines| &lines.gpus);
    let named = lines.filter_map(|gpu| gpu.type_name.as_deref());
    let is_whole = |name: &&str| {
        let has_instances = |lines: &NodeLines| lines.has_instances_of(name);
        !name.is_empty()
            && !is_own_type(name)
            && MigType::of(name).is_none()
            && !sources.lines.as_ref().is_some_and(has_instances)
    };
    let all = counted.chain(named).filter(is_whole);
    all.map(str::to_ascii_lowercase).collect()
}

fn of_whole(sources: &Sources<'_>) -> GpuCount {
    let facts = sources.facts();
    let Some(first) = facts.first() else {
        let assumed = sources.host.map(HostGpus::count);
        let unknown = GpuCount::Unknown {
            instances: sources.instances(),
        };
        return assumed.map_or(unknown, GpuCount::Assumed);
    };
    match facts.iter().find(|fact| fact.count != first.count) {
        Some(other) => GpuCount::Differs([first.clone(), other.clone()]),
        None => GpuCount::Known(first.count),
    }
}

/// The GPUs of a node in NVML, for this host and for the other nodes of its line.
pub(super) fn in_nvml<'a>(settings: &'a Settings, node: &str) -> Option<&'a HostGpus> {
    let place = |name: &str| Some(settings.line_of_node(name)?.entry.place());
    let is_beside = |host: &HostGpus| place(node).is_some_and(|own| place(&host.node) == Some(own));
    let host = settings.gpus.as_ref();
    host.filter(|host| host.node == node || is_beside(host))
}

/// N of `/dev/nvidiaN` of the GPU with this index in NVML; the index where NVML cannot be asked.
pub(super) fn minor(settings: &Settings, node: &str, index: u32) -> u32 {
    let host = in_nvml(settings, node);
    let gpu = host.and_then(|host| host.gpus.get(index as usize));
    gpu.map_or(index, |gpu| gpu.minor)
}

fn sources<'a>(settings: &'a Settings, config: &Config, node: &str) -> Sources<'a> {
    let files = settings.files.as_ref();
    let (line, record) = (settings.line_of_node(node), settings.record_of_node(node));
    let written = line.and_then(|line| Some((line.entry.place().to_string(), line.gres()?)));
    let counted =
        record.and_then(|record| Some(("scontrol show node".to_owned(), record.get("Gres")?)));
    let texts = written.into_iter().chain(counted);
    let host = in_nvml(settings, node);
    Sources {
        texts: texts
            .map(|(place, text)| (format!("{place} Gres={text}"), counts(text)))
            .collect(),
        lines: files.map(|files| NodeLines::of(&files.gres, node, &config.count_name)),
        host,
        is_host: host.is_some_and(|host| host.node == node),
    }
}

impl Sources<'_> {
    /// Whether Slurm counts gpufrac's devices there.
    fn is_set_up(&self, config: &Config) -> bool {
        let name = config.count_name.as_str();
        let mut keys = self.texts.iter().flat_map(|(_, counts)| counts.keys());
        let in_gres = keys.any(|(known, type_name)| known == name || is_own_type(type_name));
        let is_own = |gpu: &GresDevice| gpu.type_name.as_deref().is_some_and(is_own_type);
        let mut lines = self.lines.iter();
        in_gres || lines.any(|lines| lines.fractions > 0 || lines.gpus.iter().any(is_own))
    }

    /// The number that most counts of gpufrac's devices agree on. None where no count is above zero.
    fn of_own_devices(&self, config: &Config, node: &str) -> Option<u32> {
        let pools = config.pools_of_node(node);
        let capacity = pools
            .first()
            .map_or(100, |pool| u64::from(pool.layout.capacity.0))
            .max(1);
        let devices = config.devices_of_node(node, 1);
        let is_of_pools = |name: &str| devices.iter().any(|device| device.type_name == name);
        let mut units = Vec::new();
        for ((name, type_name), count) in self.texts.iter().flat_map(|(_, counts)| counts) {
            let has_pool = type_name.is_empty() || is_of_pools(type_name);
            match name.as_str() {
                name if name == config.count_name.as_str() => units.push(*count),
                "shard" if has_pool => units.push(*count),
                "gpu" if has_pool => units.push(count * capacity),
                _ => {}
            }
        }
        if let Some(lines) = &self.lines {
            let ours = |gpu: &&GresDevice| gpu.type_name.as_deref().is_none_or(is_of_pools);
            let devices = lines.gpus.iter().filter(ours).count() as u64;
            units.extend([lines.fractions, lines.shard_count, devices * capacity]);
        }
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for units in units.into_iter().filter(|units| *units > 0) {
            *votes.entry(units.div_ceil(100)).or_default() += 1;
        }
        let best = votes
            .into_iter()
            .max_by_key(|(count, votes)| (*votes, *count));
        best.and_then(|(count, _)| u32::try_from(count).ok())
    }

    /// What says how many whole GPUs there are.
    fn facts(&self) -> Vec<Fact> {
        let nvml = self.host.filter(|_| self.is_host).map(|host| Fact {
            count: host.count(),
            source: "NVML".to_owned(),
        });
        let files = self.lines.as_ref().and_then(|lines| {
            Some(Fact {
                count: lines.whole_gpus()?,
                source: lines.place.as_ref()?.to_string(),
            })
        });
        // Plain GPUs beside instances are not all of them.
        let texts = self
            .texts
            .iter()
            .filter(|(_, counts)| self.instances_in(counts).is_empty());
        let texts = texts.map(|(source, counts)| {
            let plain = counts.iter();
            let plain = plain.filter(|((name, own), _)| name == "gpu" && !is_own_type(own));
            let count: u64 = plain.map(|(_, count)| *count).sum();
            Fact {
                count: u32::try_from(count).unwrap_or(u32::MAX),
                source: source.clone(),
            }
        });
        let all = nvml.into_iter().chain(files).chain(texts);
        all.filter(|fact| fact.count > 0).collect()
    }

    /// The MIG instances that Slurm counts, as in `Gres=`.
    fn instances(&self) -> String {
        let all = self
            .texts
            .iter()
            .flat_map(|(_, counts)| self.instances_in(counts));
        let all: BTreeSet<String> = all.collect();
        all.into_iter().collect::<Vec<_>>().join(",")
    }

    /// The MIG instances among counts: by their Type, or by their files in gres.conf.
    fn instances_in(&self, counts: &Counts) -> Vec<String> {
        let of_files = |name: &str| {
            let lines = self.lines.as_ref();
            lines.is_some_and(|lines| lines.has_instances_of(name))
        };
        let instances = counts.iter().filter(|((name, type_name), _)| {
            name == "gpu" && (MigType::of(type_name).is_some() || of_files(type_name))
        });
        let texts = instances.map(|((_, type_name), count)| match type_name.as_str() {
            "" => format!("gpu:{count}"),
            name => format!("gpu:{name}:{count}"),
        });
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gpufrac_slurm_conf::Files;

    use super::*;

    const POOL: &str = "version = 1\n[pool.h]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\n";

    fn count(gres: &str, gres_conf: &str, host: Option<usize>) -> GpuCount {
        let read = |path: &Path| match path.to_str() {
            Some("/slurm.conf") => Ok(format!("NodeName=gn[01-02] Gres={gres}\n")),
            Some("/gres.conf") => Ok(gres_conf.to_owned()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        };
        let gpu = |minor| super::super::HostGpu {
            cores: None,
            minor,
            product: "NVIDIA H100 80GB HBM3".to_owned(),
        };
        let settings = Settings {
            files: Some(Files::read(Path::new("/slurm.conf"), &read, &|_| Vec::new()).unwrap()),
            gpus: host.map(|count| HostGpus {
                node: "gn01".to_owned(),
                gpus: (0..).map(gpu).take(count).collect(),
            }),
            ..Settings::default()
        };
        let config = Config::parse(POOL, "gpufrac.toml").unwrap();
        of(&settings, &config, "gn02")
    }

    #[test]
    fn instances_shards_and_mps_count_no_gpus() {
        let known = GpuCount::Known;
        let unknown = |instances: &str| GpuCount::Unknown {
            instances: instances.to_owned(),
        };
        for (gres, gres_conf, expected) in [
            ("gpu:4", "", known(4)),
            ("gpu:h100:3,gpu:1", "", known(4)),
            ("gpu:2,shard:400", "", known(2)),
            ("gpu:h100:2,mps:200", "", known(2)),
            (
                "gpu:h100:2(S:0-1),shard:h100:48",
                "AutoDetect=nvml",
                known(2),
            ),
            ("gpu:1g.10gb:7,gpu:h100:1", "", unknown("gpu:1g.10gb:7")),
            // Instances without the name of one.
            (
                "gpu:small:7",
                "Name=gpu Type=small File=/dev/nvidia-caps/nvidia-cap[21-27]",
                unknown("gpu:small:7"),
            ),
            (
                "gpu:7",
                "Name=gpu File=/dev/nvidia-caps/nvidia-cap[21-27]",
                unknown("gpu:7"),
            ),
            // Each instance is named with its GPU.
            (
                "gpu:h100:1,gpu:1g.10gb:2",
                "Name=gpu Type=h100 File=/dev/nvidia1\nName=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\nName=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap30",
                known(2),
            ),
            // Devices of gpufrac.
            ("gpu:half:8,shard:half:400,gpufrac:400", "", known(4)),
            (
                "gpufrac:400",
                "Name=gpu File=/dev/gpufrac/half[0-7]",
                known(4),
            ),
        ] {
            assert_eq!(count(gres, gres_conf, None), expected, "{gres}");
        }
    }

    #[test]
    fn facts_that_differ_are_both_told() {
        let found = count("gpu:4", "Name=gpu File=/dev/nvidia[0-1]", None);
        let GpuCount::Differs([one, other]) = found else {
            panic!("{found:?}");
        };
        assert_eq!((one.count, one.source.as_str()), (2, "/gres.conf:1"));
        assert_eq!(
            (other.count, other.source.as_str()),
            (4, "/slurm.conf:1 Gres=gpu:4")
        );
    }

    #[test]
    fn nvml_holds_for_the_other_nodes_of_a_line_that_nothing_counts() {
        let instances = "gpu:h100_1g.10gb:7";
        assert_eq!(count(instances, "", Some(8)), GpuCount::Assumed(8));
        assert_eq!(count("gpu:4", "", Some(8)), GpuCount::Known(4));
    }
}
