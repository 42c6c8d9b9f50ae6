//! The values of the file's tables; `keys` has what each key means.

use std::time::Duration;

use crate::count_name::CountName;
use crate::crc64::crc64;
use crate::fraction::Fraction;
use crate::ids::{DeviceIndex, GpuIndex};
use crate::layout::MenuEntry;
use crate::per_gpu::PerGpu;
use crate::policy::Reaper;
use crate::pool::{Device, Pool};
use crate::pools_sum::PoolsSum;
use crate::rates::Rates;

/// The format version of the file that this build reads.
pub const VERSION: u32 = 1;

/// The content of gpufrac.toml.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub paths: Paths,
    /// The name under which Slurm counts fractions.
    pub count_name: CountName,
    /// The pools, in the order of the file.
    pub pools: Vec<Pool>,
    /// The rules of partitions, in the order of the file.
    pub partitions: Vec<PartitionRules>,
    pub reaper: Reaper,
    pub rates: Rates,
    /// `[web]`; None where no pages are written.
    pub web: Option<Web>,
    pub stuck: WhenStuck,
    pub hooks: Hooks,
}

/// `stuck`: what happens to a node with places that cannot be freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenStuck {
    /// A job of root takes their units from Slurm; the node is drained only if more than half of a GPU stays lost.
    #[default]
    Avoid,
    /// The node is drained at once.
    Drain,
}

/// `[hooks]`: programs of the site, which run as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    pub before_destroy: Option<String>,
    /// Runs when a place is stuck, before the node is drained for it.
    pub stuck: Option<String>,
    pub time_limit: Duration,
}

impl Default for Hooks {
    fn default() -> Self {
        Hooks {
            before_destroy: None,
            stuck: None,
            time_limit: Duration::from_secs(30),
        }
    }
}

/// `[web]`: pages of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Web {
    pub host: String,
    pub folder: String,
}

/// Folders, programs and libraries on a node. `%n` stands for the name of the node, as in Slurm's own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub run: String,
    pub state: String,
    pub devices: String,
    pub driver_root: String,
    pub nvml: String,
    pub mps_control: String,
    pub nvidia_smi: String,
    pub cdi: String,
    pub shared: Option<String>,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            run: "/run/gpufrac".to_owned(),
            state: "/var/lib/gpufrac".to_owned(),
            devices: "/dev/gpufrac".to_owned(),
            driver_root: "/".to_owned(),
            nvml: "libnvidia-ml.so.1".to_owned(),
            mps_control: "/usr/bin/nvidia-cuda-mps-control".to_owned(),
            nvidia_smi: "/usr/bin/nvidia-smi".to_owned(),
            cdi: "/run/cdi".to_owned(),
            shared: None,
        }
    }
}

impl Paths {
    /// The paths of one node: `%n` replaced by its name.
    pub fn for_node(&self, node: &str) -> Paths {
        let expand = |path: &String| path.replace("%n", node);
        Paths {
            run: expand(&self.run),
            state: expand(&self.state),
            devices: expand(&self.devices),
            driver_root: expand(&self.driver_root),
            nvml: expand(&self.nvml),
            mps_control: expand(&self.mps_control),
            nvidia_smi: expand(&self.nvidia_smi),
            cdi: expand(&self.cdi),
            shared: self.shared.as_ref().map(expand),
        }
    }
}

/// `[partition.NAME]`: which sizes a partition gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionRules {
    pub name: String,
    pub min: Option<Fraction>,
    pub max: Option<Fraction>,
    pub default: Option<Fraction>,
    pub allow_raw: bool,
    /// The CPUs and the memory that come with a GPU, and with a fraction in part.
    pub per_gpu: PerGpu,
    /// The most of them that a job may have.
    pub max_per_gpu: PerGpu,
    pub above_max: AboveMax,
}

/// What happens to a job that asks for more CPUs or memory than [`PartitionRules::max_per_gpu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AboveMax {
    /// It is refused.
    #[default]
    Refuse,
    /// It gets the most that it may have.
    Lower,
}

impl PartitionRules {
    pub fn allow(&self, size: &MenuEntry) -> bool {
        // `covers`, as for requests: a user sees 1/7 as 0.143.
        let enough = self.min.is_none_or(|min| size.fraction.covers(min));
        let not_too_much = self.max.is_none_or(|max| size.fraction <= max);
        enough && not_too_much
    }
}

impl Config {
    pub fn empty() -> Config {
        Config::default()
    }

    /// The checksum of the pools, to compare them with those of another host.
    pub fn pools_sum(&self) -> PoolsSum {
        PoolsSum::of(&self.pools, &self.count_name)
    }

    /// The checksum of all values, by which programs of one build compare their configurations. Comments and the order
    /// of keys do not change it.
    pub fn sum(&self) -> String {
        format!("{:016x}", crc64(format!("{self:?}").as_bytes()))
    }

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Whether a Type of Slurm is that of a pool's devices; upper and lower case are the same.
    pub fn has_type(&self, name: &str) -> bool {
        let mut pools = self.pools.iter();
        pools.any(|pool| pool.type_name().eq_ignore_ascii_case(name))
    }

    /// The pools that serve a partition, in the order of the file.
    pub fn pools_of_partition(&self, partition: &str) -> Vec<&Pool> {
        self.pools
            .iter()
            .filter(|pool| pool.serves(partition))
            .collect()
    }

    /// The pools that have GPUs on a node, in the order of the file.
    pub fn pools_of_node(&self, node: &str) -> Vec<&Pool> {
        self.pools
            .iter()
            .filter(|pool| pool.nodes.contains(node))
            .collect()
    }

    pub fn rules(&self, partition: &str) -> Option<&PartitionRules> {
        self.partitions.iter().find(|rules| rules.name == partition)
    }

    /// The devices of a node in Slurm's order. The order is that of the pools in the file and of the GPUs in each
    /// pool, except that all devices of one Type stand together at the place of the first, because Slurm numbers
    /// devices Type by Type.
    ///
    /// `gpu_count` is the number of GPUs of the node, for pools that take every GPU. A GPU that a pool names and that
    /// the node does not have is listed, too, so that the numbers of the other devices stay the same.
    pub fn devices_of_node(&self, node: &str, gpu_count: u32) -> Vec<Device<'_>> {
        let places = self.pools_of_node(node).into_iter().flat_map(|pool| {
            let gpus = pool
                .gpus
                .clone()
                .unwrap_or_else(|| (0..gpu_count).map(GpuIndex).collect());
            gpus.into_iter().flat_map(move |gpu_index| {
                let sides = pool.layout.sides.iter();
                sides.map(move |side| (pool, gpu_index, *side))
            })
        });
        let mut places: Vec<_> = places.collect();
        let mut types: Vec<&str> = Vec::new();
        for (pool, ..) in &places {
            let name = pool.type_name();
            if !types.contains(&name) {
                types.push(name);
            }
        }
        let rank = |name| types.iter().position(|known| *known == name);
        places.sort_by_key(|(pool, ..)| rank(pool.type_name()));
        (0..)
            .zip(places)
            .map(|(index, (pool, gpu_index, side))| Device {
                index: DeviceIndex(index),
                pool,
                gpu_index,
                side,
                type_name: pool.type_name(),
            })
            .collect()
    }
}
