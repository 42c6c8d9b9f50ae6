//! Pools: GPUs that share one mechanism, and their devices in Slurm.

use std::fmt;
use std::time::Duration;

use crate::fraction::{MAX_GPUS, MemoryMib, Units};
use crate::geometry::Geometry;
use crate::hostlist::Hostlist;
use crate::ids::{DeviceIndex, GpuIndex};
use crate::layout::{Layout, LayoutKind, Side};
use crate::lease::visible::Visible;
use crate::mechanism::Mechanism;

/// GPUs that are shared by one mechanism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    pub mechanism: Mechanism,
    /// The MIG tables of the GPU model; a node compares them with its GPUs before it makes slices.
    pub geometry: Geometry,
    /// The proven layout, with the menu.
    pub layout: Layout,
    pub partitions: Vec<String>,
    pub nodes: Hostlist,
    /// NVML's indexes of the GPUs, in the order of the file; None for every GPU of the node.
    pub gpus: Option<Vec<GpuIndex>>,
    /// Memory of one GPU, from the model or the key `memory`; a node compares it with its GPUs.
    pub gpu_memory: MemoryMib,
    pub options: PoolOptions,
}

/// Keys of a pool that only some mechanisms have; `config/keys/pool.rs` has what each means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    pub tenancy: Tenancy,
    pub sm_chunks: Option<u32>,
    pub memory_limits: bool,
    pub timeslice: Option<TimesliceLength>,
    pub framework_hints: bool,
    pub visible: Visible,
    pub cdi: bool,
    pub whole: WholeGpu,
    pub reuse: Option<Duration>,
    /// `burst_max` and `burst_default`, for mps with tenancy `shared`, mig+mps and hami; None lends no idle compute.
    pub burst: Option<Burst>,
    pub library: Option<String>,
}

/// How much compute jobs may have beyond their shares while their neighbours are idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The highest ceiling of a job, in hundredths of a GPU.
    pub max: Units,
    /// The ceiling of a job that does not say one; None for its share.
    pub default: Option<Units>,
}

/// Which jobs share an MPS control daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tenancy {
    /// All jobs on a GPU share one daemon: kernels run at the same time, and a fault can affect all of them.
    #[default]
    Shared,
    /// Each job has its own daemon, with limits that it cannot raise; the daemons take turns on the GPU.
    Private,
}

/// The form of a whole GPU in a pool of MIG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WholeGpu {
    /// The largest MIG instance.
    #[default]
    Mig,
    /// The GPU itself with MIG off, with peer access over NVLink. MIG mode is switched by demand.
    Bare,
}

/// How long a time slice is: the words of `nvidia-smi compute-policy --set-timeslice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimesliceLength {
    /// The default of the driver.
    Default,
    Short,
    Medium,
    Long,
}

impl TimesliceLength {
    /// The number of the length in nvidia-smi's option.
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Pool {
    pub fn serves(&self, partition: &str) -> bool {
        self.partitions.iter().any(|name| name == partition)
    }

    /// Slurm's `Type` of its devices, and the first part of the placeholders' names. Kinds of devices that Slurm must
    /// not exchange have different Types, because Slurm chooses among all devices of a Type.
    pub fn type_name(&self) -> &'static str {
        match (self.layout.kind, self.mechanism) {
            (LayoutKind::Whole, _) => "whole",
            (LayoutKind::Slices, _) => "slices",
            (LayoutKind::Uniform, _) => "uniform",
            (LayoutKind::Halves, Mechanism::MigMps) => "mpshalf",
            (LayoutKind::Halves, _) => "half",
            (LayoutKind::Shares, mechanism) => mechanism.name(),
        }
    }

    /// All values of [`Pool::type_name`].
    pub const TYPE_NAMES: [&'static str; 8] = [
        "whole",
        "slices",
        "uniform",
        "half",
        "mpshalf",
        "mps",
        "timeslice",
        "hami",
    ];

    /// The ceiling of compute of a job with a share of `share` that asked for `asked`; None where it is the share. The
    /// share is never undercut, and `burst_max` holds for jobs that were submitted before the admin lowered it, too.
    pub fn ceiling(&self, share: Units, asked: Option<Units>) -> Option<Units> {
        let burst = self.options.burst?;
        let ceiling = asked.or(burst.default)?.min(burst.max);
        // HAMi-core can only lift its limit.
        let can_be = self.mechanism != Mechanism::Hami || ceiling == Units::WHOLE;
        (ceiling > share && can_be).then_some(ceiling)
    }

    /// Whether MIG mode of its GPUs changes for jobs.
    pub fn switches_mig(&self) -> bool {
        self.options.whole == WholeGpu::Bare
    }

    /// Whether a whole GPU can be lent as one device of Slurm.
    pub fn lends_whole(&self) -> bool {
        self.layout.entry(Units::WHOLE).is_some()
    }

    /// Whether its GPUs are only lent whole.
    pub fn is_never_shared(&self) -> bool {
        self.layout.kind == LayoutKind::Whole
    }

    /// The most GPUs of this pool on a node.
    pub fn most_gpus(&self) -> u32 {
        let named = self.gpus.as_ref().map(Vec::len);
        let named = named.and_then(|gpus| u32::try_from(gpus).ok());
        named.unwrap_or(MAX_GPUS).min(MAX_GPUS)
    }
}

/// One device of a node, as Slurm sees it: a GPU or half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// Slurm's index: the number in the placeholder's name and its minor number.
    pub index: DeviceIndex,
    pub pool: &'a Pool,
    pub gpu_index: GpuIndex,
    pub side: Side,
    /// Slurm's `Type`: [`Pool::type_name`].
    pub type_name: &'static str,
}

impl Device<'_> {
    /// The file name of the placeholder: `half3`.
    pub fn file_name(&self) -> String {
        format!("{}{}", self.type_name, self.index)
    }

    /// Whether a file name is that of a placeholder, of this configuration or another.
    pub fn is_file_name(name: &str) -> bool {
        let type_name = name.trim_end_matches(|c: char| c.is_ascii_digit());
        type_name.len() < name.len() && Pool::TYPE_NAMES.contains(&type_name)
    }
}
