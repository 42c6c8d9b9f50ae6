//! Pools: GPUs that are shared in one way, and the devices that Slurm sees of them.

use std::fmt;
use std::time::Duration;

use crate::fraction::{MemoryMib, Units};
use crate::geometry::Geometry;
use crate::hostlist::Hostlist;
use crate::ids::{DeviceIndex, GpuIndex};
use crate::layout::{Layout, LayoutKind, Side};
use crate::mechanism::Mechanism;

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
    pub gpus: Option<Vec<GpuIndex>>,
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
    /// `reuse`, for mig: how long an instance stands after its job for the next job of the same user.
    pub reuse: Option<Duration>,
    /// `library`, for hami: the path of HAMi-core's `libvgpu.so`.
    pub library: Option<String>,
}

/// Who has a control daemon of MPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tenancy {
    /// All jobs on a GPU together: their kernels run side by side, and they share their faults.
    #[default]
    Shared,
    /// Each job its own, with limits that it cannot raise; the daemons take turns.
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

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
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
            (LayoutKind::Uniform, _) => "uniform",
            (LayoutKind::Halves, Mechanism::MigMps) => "mpshalf",
            (LayoutKind::Halves, _) => "half",
            (LayoutKind::Shares, mechanism) => mechanism.name(),
        }
    }

    /// Every name that [`Pool::type_name`] gives.
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

    /// Whether a whole GPU of it can be lent, as one of Slurm's devices.
    pub fn lends_whole(&self) -> bool {
        self.layout.entry(Units::WHOLE).is_some()
    }
}

/// One device of a node, as Slurm sees it: a GPU or half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// Slurm's index, the number in the placeholder's name and its minor.
    pub index: DeviceIndex,
    /// The pool of the GPU.
    pub pool: &'a Pool,
    /// NVML's index of the GPU.
    pub gpu_index: GpuIndex,
    /// Which part of the GPU it is.
    pub side: Side,
    /// Slurm's `Type`: [`Pool::type_name`].
    pub type_name: &'static str,
}

impl Device<'_> {
    /// The placeholder's file name: `half3`.
    pub fn file_name(&self) -> String {
        format!("{}{}", self.type_name, self.index)
    }

    /// Whether a file has a name that a placeholder can have, of this configuration or another.
    pub fn is_file_name(name: &str) -> bool {
        let type_name = name.trim_end_matches(|c: char| c.is_ascii_digit());
        type_name.len() < name.len() && Pool::TYPE_NAMES.contains(&type_name)
    }
}
