//! The part of a GPU that a job holds.

use serde::{Deserialize, Serialize};

use crate::fraction::MemoryMib;
use crate::geometry::Placement;
use crate::ids::{DeviceIndex, DeviceMinor, GpuIndex};
use crate::layout::Side;
use crate::mechanism::Mechanism;

/// The part of a GPU that a job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Slurm's index of the device on this node (`SLURM_JOB_GPUS`).
    pub device_index: DeviceIndex,
    pub side: Side,
    /// UUID of the GPU, `GPU-...`.
    pub gpu_uuid: String,
    /// NVML's index of the GPU when the lease was written.
    pub gpu_index: GpuIndex,
    /// N of the GPU's `/dev/nvidiaN`.
    pub gpu_minor: DeviceMinor,
    /// Memory that the job may use, in MiB.
    pub memory_mib: MemoryMib,
    /// Whether the job gets variables that tell frameworks (such as PyTorch) to stay within their share.
    pub hints: bool,
    /// Whether the driver limits the memory of the job's control groups.
    pub group_limit: bool,
    /// The resources of the job's mechanism.
    pub held: Held,
}

/// The resources that a job holds, by mechanism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// A MIG instance of its own.
    Mig(MigSlice),
    /// The whole GPU with MIG off, in a pool of MIG (`whole = "bare"`).
    Bare,
    /// A part of a MIG instance by MPS.
    MigMps {
        /// The instance, which several jobs share.
        mig: MigSlice,
        /// The instance's control daemon and its limits for the job.
        mps: MpsSlice,
    },
    /// A part of the GPU by MPS; None for a whole GPU, which needs no control daemon.
    Mps(Option<MpsSlice>),
    /// Time slices of the GPU, or the whole GPU.
    Timeslice,
    /// A part of the GPU by HAMi-core; None for a whole GPU, which has no limits.
    Hami(Option<HamiSlice>),
}

impl Held {
    /// The mechanism of the GPU's pool.
    pub fn mechanism(&self) -> Mechanism {
        match self {
            Held::Mig(_) | Held::Bare => Mechanism::Mig,
            Held::MigMps { .. } => Mechanism::MigMps,
            Held::Mps(_) => Mechanism::Mps,
            Held::Timeslice => Mechanism::Timeslice,
            Held::Hami(_) => Mechanism::Hami,
        }
    }
}

impl Slice {
    /// The MIG instance or its planned place; None without MIG.
    pub fn mig(&self) -> Option<&MigSlice> {
        match &self.held {
            Held::Mig(mig) | Held::MigMps { mig, .. } => Some(mig),
            Held::Bare | Held::Mps(_) | Held::Timeslice | Held::Hami(_) => None,
        }
    }

    /// As [`Slice::mig`], to record the instance after it was created.
    pub fn mig_mut(&mut self) -> Option<&mut MigSlice> {
        match &mut self.held {
            Held::Mig(mig) | Held::MigMps { mig, .. } => Some(mig),
            Held::Bare | Held::Mps(_) | Held::Timeslice | Held::Hami(_) => None,
        }
    }

    /// The control daemon and its limits; None without MPS and for a whole GPU.
    pub fn mps(&self) -> Option<&MpsSlice> {
        match &self.held {
            Held::MigMps { mps, .. } | Held::Mps(Some(mps)) => Some(mps),
            Held::Mps(None) | Held::Mig(_) | Held::Bare | Held::Timeslice | Held::Hami(_) => None,
        }
    }

    /// As [`Slice::mps`], to record the partition of multiprocessors that the daemon gave.
    pub fn mps_mut(&mut self) -> Option<&mut MpsSlice> {
        match &mut self.held {
            Held::MigMps { mps, .. } | Held::Mps(Some(mps)) => Some(mps),
            Held::Mps(None) | Held::Mig(_) | Held::Bare | Held::Timeslice | Held::Hami(_) => None,
        }
    }

    /// The library and cache of HAMi-core; None without HAMi-core and for a whole GPU.
    pub fn hami(&self) -> Option<&HamiSlice> {
        match &self.held {
            Held::Hami(hami) => hami.as_ref(),
            Held::Mig(_) | Held::Bare | Held::MigMps { .. } | Held::Mps(_) | Held::Timeslice => {
                None
            }
        }
    }

    /// The folder or the library without which a program of the job computes without limits.
    pub fn limiter(&self) -> Option<String> {
        let library = || self.hami().map(|hami| hami.library.clone());
        self.mps().map(MpsSlice::pipe).or_else(library)
    }

    /// The MIG instance, after it was created.
    pub fn instance(&self) -> Option<&Instance> {
        self.mig()?.instance.as_ref()
    }

    /// Minor numbers of the capability nodes of its instance.
    pub fn capabilities(&self) -> impl Iterator<Item = u32> + use<> {
        let instance = self.instance();
        let minors = instance.map(|instance| [instance.gi_cap_minor, instance.ci_cap_minor]);
        minors.into_iter().flatten()
    }

    /// The UUID by which CUDA names the device: that of the MIG device, otherwise that of the GPU. None until the
    /// instance is created.
    pub fn cuda_device(&self) -> Option<&str> {
        match self.mig() {
            Some(mig) => mig.instance.as_ref().map(|i| i.mig_uuid.as_str()),
            None => Some(&self.gpu_uuid),
        }
    }
}

/// A MIG instance, created or planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigSlice {
    pub profile_id: u32,
    /// The profile's name, e.g. `2g.20gb`.
    pub profile_name: String,
    pub placement: Placement,
    /// The instance, after it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
}

/// A job's share of an MPS control daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsSlice {
    /// The daemon's folder, with `pipe` and `log` in it.
    pub folder: String,
    /// Whether only this job uses the daemon.
    pub private: bool,
    /// Percent of the multiprocessors of the daemon's device.
    pub thread_percentage: u32,
    /// The ceiling instead, where it is above: the job may use more while its neighbours are idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_percentage: Option<u32>,
    /// Memory limit of each client, in MiB.
    pub memory_limit_mib: MemoryMib,
    /// The static partition of multiprocessors, `UUID/ID`, if the pool uses them (`sm_chunks`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_partition: Option<String>,
}

impl MpsSlice {
    /// The ceiling of multiprocessors, in percent of those that the daemon's device has.
    pub fn ceiling(&self) -> u32 {
        self.burst_percentage.unwrap_or(self.thread_percentage)
    }

    /// The value of `CUDA_MPS_PIPE_DIRECTORY`.
    pub fn pipe(&self) -> String {
        format!("{}/pipe", self.folder)
    }

    /// The value of `CUDA_MPS_LOG_DIRECTORY`.
    pub fn log(&self) -> String {
        format!("{}/log", self.folder)
    }
}

/// A job's share by HAMi-core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HamiSlice {
    pub library: String,
    /// The path of the job's file of usage counters.
    pub cache: String,
    /// Percent of the multiprocessors.
    pub sm_limit: u32,
    /// Whether the daemon lifts the limit while the job's neighbours are idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub burst: bool,
}

/// A MIG instance as it was created. The driver reuses ids, and a new instance at the same place may have the same
/// UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// GPU instance id.
    pub gi_id: u32,
    /// Compute instance id.
    pub ci_id: u32,
    /// UUID of the compute instance's device, `MIG-...`.
    pub mig_uuid: String,
    /// Minor number of the GPU instance's capability node.
    pub gi_cap_minor: u32,
    /// Minor number of the compute instance's capability node.
    pub ci_cap_minor: u32,
}
