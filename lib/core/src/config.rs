//! The configuration: `gpufrac.toml`, the same file on every host.
//!
//! [`Config::parse`] reports every mistake of the file at once, each with its line and key, and
//! proves the layout of every pool, so that a configuration that could start jobs for which there
//! is no place is never used.

use std::fmt;

use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::Geometry;
use crate::hostlist::Hostlist;
use crate::layout::{Layout, LayoutKind, Side};
use crate::policy::Reaper;

mod checks;
mod error;
mod options;
mod read;
mod reaper;
mod sections;
#[cfg(test)]
mod tests;

pub use crate::mechanism::Mechanism;
pub use error::{ConfigError, ConfigErrors, Problem};

/// Where the configuration is on every host.
pub const PATH: &str = "/etc/gpufrac/gpufrac.toml";
/// The variable that names another one. Users may set it for their own commands only: what runs
/// as root or in slurmctld gets its environment from an admin.
pub const PATH_ENV: &str = "GPUFRAC_CONFIG";
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
    /// nvidia-smi, for the one thing that NVML can not set: the length of time slices.
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

/// GPUs that are shared in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name in the file.
    pub name: String,
    /// How they are shared.
    pub mechanism: Mechanism,
    /// What the model offers; a node compares it with its GPUs before it carves.
    pub geometry: Geometry,
    /// The proven layout, with the menu.
    pub layout: Layout,
    /// The partitions that it serves.
    pub partitions: Vec<String>,
    /// The nodes on which it has GPUs.
    pub nodes: Hostlist,
    /// NVML's indexes of these GPUs, ascending as given; `None` for every GPU of the node.
    pub gpus: Option<Vec<u32>>,
    /// Memory of one GPU, by the model or the key `memory`; a node compares it with its GPUs.
    pub gpu_memory: MemoryMib,
    /// What else the mechanism needs to know.
    pub options: PoolOptions,
}

/// Keys of a pool that only some mechanisms have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// `tenancy`, for mps; mig+mps is always shared.
    pub tenancy: Tenancy,
    /// `sm_chunks`, for mps and mig+mps: static partitions of multiprocessors instead of percentages
    /// (drivers of CUDA 13.1 and later); how many chunks the device has, as the control daemon's `lspart` says.
    pub sm_chunks: Option<u32>,
    /// `memory_limits`, for mps, timeslice and hami: the driver's limit for the job's control
    /// group (drivers r615 and later, cgroup v2).
    pub memory_limits: bool,
    /// `timeslice`, for timeslice: how long slices are; None leaves them as they are.
    pub timeslice: Option<TimesliceLength>,
    /// `framework_hints`, for all but mig.
    pub framework_hints: bool,
    /// `library`, for hami: the path of HAMi-core's `libvgpu.so`.
    pub library: Option<String>,
}

/// Who has a control daemon of MPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tenancy {
    /// All jobs on a GPU together: their kernels run side by side, and they share their faults.
    #[default]
    Shared,
    /// Each job its own, with limits that it can not raise; the daemons take turns.
    Private,
}

/// How long a time slice is: the words of `nvidia-smi compute-policy --set-timeslice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimesliceLength {
    /// The driver's own choice.
    Default,
    /// Short.
    Short,
    /// Medium.
    Medium,
    /// Long.
    Long,
}

impl TimesliceLength {
    /// The number that nvidia-smi takes.
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl Pool {
    /// Whether its GPUs are for jobs of a partition.
    pub fn serves(&self, partition: &str) -> bool {
        self.partitions.iter().any(|name| name == partition)
    }

    /// Slurm's `Type` of its devices, also the first part of the placeholders' names. What Slurm
    /// must not mix up has names of its own: it chooses among all devices of a Type.
    pub fn type_name(&self) -> &'static str {
        match (self.layout.kind, self.mechanism) {
            (LayoutKind::Whole, _) => "whole",
            (LayoutKind::Slices, _) => "slices",
            (LayoutKind::Halves, Mechanism::MigMps) => "mpshalf",
            (LayoutKind::Halves, _) => "half",
            (LayoutKind::Shares, mechanism) => mechanism.name(),
        }
    }

    /// Whether a whole GPU of it can be lent, as one of Slurm's devices.
    pub fn lends_whole(&self) -> bool {
        self.layout.entry(Units::WHOLE).is_some()
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

/// One device of a node, as Slurm sees it: a GPU or half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// Slurm's index, the number in the placeholder's name and its minor.
    pub index: u32,
    /// The pool of the GPU.
    pub pool: &'a Pool,
    /// NVML's index of the GPU.
    pub gpu_index: u32,
    /// Which part of the GPU it is.
    pub side: Side,
    /// Slurm's `Type`: [`Pool::type_name`].
    pub type_name: &'static str,
}

/// Every [`Pool::type_name`].
const TYPES: [&str; 7] = [
    "whole",
    "slices",
    "half",
    "mpshalf",
    "mps",
    "timeslice",
    "hami",
];

impl Device<'_> {
    /// The placeholder's file name: `half3`.
    pub fn file_name(&self) -> String {
        format!("{}{}", self.type_name, self.index)
    }

    /// Whether a file has a name that a placeholder can have, of this configuration or another.
    pub fn is_file_name(name: &str) -> bool {
        let type_name = name.trim_end_matches(|c: char| c.is_ascii_digit());
        type_name.len() < name.len() && TYPES.contains(&type_name)
    }
}

impl Config {
    /// Reads the text of a file; `path` is for the messages only.
    ///
    /// # Errors
    /// Every mistake of the file, in the order of its lines.
    pub fn parse(text: &str, path: &str) -> Result<Config, ConfigErrors> {
        sections::config(text, path)
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
                .unwrap_or_else(|| (0..gpu_count).collect());
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
                index,
                pool,
                gpu_index,
                side,
                type_name: pool.type_name(),
            })
            .collect()
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
