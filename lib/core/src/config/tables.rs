//! What the tables of the file say, once it is read.

use crate::fraction::Fraction;
use crate::ids::{DeviceIndex, GpuIndex};
use crate::layout::MenuEntry;
use crate::policy::Reaper;
use crate::pool::{Device, Pool};
use crate::pools_sum::PoolsSum;

/// The version of the file that this build reads.
pub const VERSION: u32 = 1;

/// The whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where things are on a node.
    pub paths: Paths,
    /// The pools, in the order of the file.
    pub pools: Vec<Pool>,
    /// The rules of partitions, in the order of the file.
    pub partitions: Vec<PartitionRules>,
    /// What reclaims idle slices.
    pub reaper: Reaper,
}

/// Where things are on a node. `%n` stands for the node's name, as in Slurm's own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Leases and locks; gone after a reboot.
    pub run: String,
    /// Usage records.
    pub state: String,
    /// The placeholder nodes that Slurm takes for GPUs.
    pub devices: String,
    /// Prefix of `dev/nvidia*`, `dev/nvidia-caps`, `proc/devices` and `proc/driver/nvidia*`.
    pub driver_root: String,
    /// NVML: a path, or a name for the dynamic linker.
    pub nvml: String,
    /// The control daemon of MPS.
    pub mps_control: String,
    /// nvidia-smi, for the one thing that NVML cannot set: the length of time slices.
    pub nvidia_smi: String,
    /// A folder that all nodes share, where root alone can write: what nodes tell each other of jobs that run on
    /// several of them.
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
            shared: self.shared.as_ref().map(expand),
        }
    }
}

/// What may be asked for in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRules {
    /// The partition.
    pub name: String,
    /// The least that is given.
    pub min: Option<Fraction>,
    /// The most that is given.
    pub max: Option<Fraction>,
    /// What a job gets that asks for no GPU at all.
    pub default: Option<Fraction>,
    /// Whether users may ask for `gres/shard` and `gres/gpu` themselves.
    pub allow_raw: bool,
}

impl PartitionRules {
    /// Whether a size is between `min` and `max`.
    #[must_use]
    pub fn allow(&self, size: &MenuEntry) -> bool {
        // `covers` for the same reason as in requests: 0.143 is how 1/7 prints.
        let enough = self.min.is_none_or(|min| size.fraction.covers(min));
        let not_too_much = self.max.is_none_or(|max| size.fraction <= max);
        enough && not_too_much
    }
}

impl Config {
    /// One that says nothing: no pool, and all paths as they are where a file names none.
    pub fn empty() -> Config {
        Config {
            paths: Paths::default(),
            pools: Vec::new(),
            partitions: Vec::new(),
            reaper: Reaper::default(),
        }
    }

    /// What the pools come to, to be compared with those of another host.
    pub fn pools_sum(&self) -> PoolsSum {
        PoolsSum::of(&self.pools)
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Whether a Type of Slurm's is that of a pool's devices, in whatever letters.
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

    /// The rules of a partition, if the file has any.
    pub fn rules(&self, partition: &str) -> Option<&PartitionRules> {
        self.partitions.iter().find(|rules| rules.name == partition)
    }

    /// The devices of a node in Slurm's order: its pools in the order of the file, the GPUs of each
    /// in order, the sides of each GPU; but all devices of one Type together, where the first of
    /// them stands, because Slurm numbers Type by Type. `gpu_count` is how many GPUs the node has; it
    /// matters to pools that take every GPU. A GPU that a pool names and the node has not is
    /// listed all the same, so that the numbers of the others hold.
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
