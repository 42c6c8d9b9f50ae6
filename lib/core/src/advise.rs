//! Which mechanism, layout and menu fit a workload on a GPU model: what `gpufrac advise` prints. docs/admin/choose.md
//! has the reasons at length, and a test compares its table with this module.

use crate::config::Config;
use crate::fraction::{Fraction, MemoryMib};
use crate::geometry::Geometry;
use crate::mechanism::Mechanism;

#[cfg(test)]
mod tests;

/// The first driver whose MPS control daemon serves several users (Debian's 555.58 takes `-multiuser-server`, 550.163
/// refuses the option).
const SHARED_MPS_DRIVER: u32 = 555;

/// Resources that no mechanism limits, on any GPU that jobs share (NVIDIA's guides for MIG and MPS).
pub const NOT_LIMITED: [&str; 4] = [
    "managed memory beyond the share (cudaMallocManaged): without MIG it counts against no limit",
    "copy engines, without MIG",
    "PCIe and NVLink bandwidth",
    "power and clocks: one job can slow all jobs of the GPU",
];

/// The kind of work that most jobs of a pool do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Interactive sessions, idle most of the time.
    Notebooks,
    /// Training that fits in a part of a GPU.
    Training,
    /// Servers with a goal for their latency.
    Inference,
    /// Many small jobs that end by themselves.
    Batch,
    /// Courses: many users with the same small size.
    Teaching,
    /// Jobs of whole GPUs and small ones, in turns by demand.
    Mixed,
}

/// The question of `gpufrac advise`: a GPU and its intended use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    pub workload: Workload,
    /// The model, as gpufrac.toml(5) lists it, or another name.
    pub gpu: &'a str,
    /// Memory of one GPU in MiB, required for a model that gpufrac does not know.
    pub memory: Option<MemoryMib>,
    /// The major number of the driver's version (550 of 550.163); None if unknown.
    pub driver: Option<u32>,
    /// Whether users may try to exceed their limits.
    pub untrusted: bool,
    /// Whether the GPU is a vGPU in a virtual machine.
    pub vgpu: bool,
}

/// Where the pool of an advice lies: its nodes, GPUs and partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLocation<'a> {
    pub pool: &'a str,
    pub partitions: &'a [String],
    /// The nodes of the pool, as a hostlist of Slurm.
    pub nodes: &'a str,
    /// NVML's indexes of the GPUs of the pool; None for all GPUs of a node.
    pub gpus: Option<&'a [u32]>,
}

/// The answer of [`advise`]: a mechanism with its pool.
#[derive(Clone, Debug)]
pub struct Advice {
    pub mechanism: Mechanism,
    /// The reasons for the choice, one sentence each.
    pub reasons: Vec<&'static str>,
    /// The lines of the pool's table that do not depend on its [`PoolLocation`].
    keys: String,
    /// A complete gpufrac.toml; the admin replaces the partition and the nodes in it.
    pub file: String,
    /// [`Advice::file`], parsed.
    pub config: Config,
}

/// The reason why [`advise`] has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// Part of the message above: gpufrac knows no GPU model of this name, and the question has no memory.
    /// Cure: Name a model of the list, or give the memory.
    #[error(
        "GPU model `{name}` is unknown; give its memory with --memory MIB, or write one of {}",
        known().join(", ")
    )]
    UnknownModel { name: String },
    /// Part of the message above: the question is for a vGPU and has no memory.
    /// Cure: Give the memory that `nvidia-smi` prints in the guest.
    #[error(
        "the memory of a vGPU depends on its profile; give what nvidia-smi prints in the guest with --memory MIB"
    )]
    VgpuMemory,
    /// Part of the message above: gpufrac.toml does not accept the name or the memory.
    /// Cure: Follow the text.
    #[error("no pool can be made of these GPUs: {0}")]
    Refused(crate::config::ConfigErrors),
}

fn known() -> Vec<&'static str> {
    let with_mig = Geometry::builtin_names().iter().copied();
    with_mig.chain(Geometry::names_without_mig()).collect()
}

/// The group of GPU models that a plan's GPU belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mig,
    /// Volta or later, as are all models that gpufrac knows: MPS limits clients.
    Mps,
    /// A vGPU, or a model of which only the memory is known.
    Slices,
}

struct Choice {
    mechanism: Mechanism,
    keys: &'static str,
    reasons: Vec<&'static str>,
}

/// Chooses mechanism, layout and menu for a plan.
pub fn advise(plan: &Plan<'_>) -> Result<Advice, AdviseError> {
    let choice = choose(plan, kind(plan)?);
    let mut keys = format!("mechanism = \"{}\"\n", choice.mechanism);
    keys += choice.keys;
    keys += &format!("gpu = {:?}\n", plan.gpu);
    if let Some(memory) = plan.memory
        && !choice.mechanism.uses_mig()
    {
        keys += &format!("memory = {}\n", memory.0);
    }
    let mut file = format!("version = 1\n\n[pool.shared]\n{keys}");
    file += "partitions = [\"gpu\"]      # partitions of the site\n";
    file += "nodes = \"gn[01-04]\"       # nodes of the site\n";
    let config = Config::parse(&file, "gpufrac.toml").map_err(AdviseError::Refused)?;
    Ok(Advice {
        mechanism: choice.mechanism,
        reasons: choice.reasons,
        keys,
        file,
        config,
    })
}

impl Advice {
    /// How many pieces of the smallest size a GPU makes, and this size; None where jobs get whole GPUs alone.
    pub fn smallest_pieces(&self) -> Option<(u32, Fraction)> {
        let size = self.config.pools.first()?.layout.menu.first()?;
        let devices = self.config.devices_of_node("gn01", 1).into_iter();
        let counts = devices.map(|device| device.pool.layout.capacity.0 / size.units.0.max(1));
        (size.fraction != Fraction::ONE).then(|| (counts.sum(), size.fraction))
    }

    /// The table of the pool, as text for gpufrac.toml.
    pub fn pool(&self, place: &PoolLocation<'_>) -> String {
        let PoolLocation { pool, nodes, .. } = place;
        let mut text = format!("[pool.{pool}]\n{}", self.keys);
        text += &format!("partitions = {:?}\nnodes = {nodes:?}\n", place.partitions);
        if let Some(gpus) = place.gpus {
            text += &format!("gpus = {gpus:?}\n");
        }
        text
    }
}

fn kind(plan: &Plan<'_>) -> Result<Kind, AdviseError> {
    if plan.vgpu {
        return match plan.memory {
            Some(_) => Ok(Kind::Slices),
            None => Err(AdviseError::VgpuMemory),
        };
    }
    if Geometry::builtin(plan.gpu).is_some() {
        return Ok(Kind::Mig);
    }
    match (Geometry::without_mig(plan.gpu), plan.memory) {
        (Some(_), _) => Ok(Kind::Mps),
        (None, Some(_)) => Ok(Kind::Slices),
        (None, None) => Err(AdviseError::UnknownModel {
            name: plan.gpu.to_owned(),
        }),
    }
}

fn choose(plan: &Plan<'_>, kind: Kind) -> Choice {
    let shared_mps = plan
        .driver
        .is_some_and(|driver| driver >= SHARED_MPS_DRIVER);
    match kind {
        Kind::Mig => on_mig(plan, shared_mps),
        _ if plan.untrusted => Choice {
            mechanism: Mechanism::Timeslice,
            keys: "layout = \"whole\"\n",
            reasons: vec![
                "Without MIG only a whole GPU holds against users who try to exceed their limits.",
                "Each job gets a whole GPU with gpufrac:1.",
            ],
        },
        Kind::Mps => on_mps(plan.workload, shared_mps),
        Kind::Slices => slices(plan.vgpu),
    }
}

fn on_mig(plan: &Plan<'_>, shared_mps: bool) -> Choice {
    let mut reasons =
        vec!["An instance has its own memory, multiprocessors and cache, and a fault stays in it."];
    let keys = match plan.workload {
        Workload::Notebooks => {
            reasons.push("Notebooks crash often and are idle most of the time: a crash ends no other job, and the reaper sees idle instances.");
            "layout = \"halves\"\n"
        }
        Workload::Training => {
            reasons.push("Training wants memory: halves and quarters, none smaller.");
            "layout = \"halves\"\nmenu = [\"1/2\", \"1/4\"]\n"
        }
        Workload::Inference => {
            reasons.push("Cache and memory bandwidth of an instance are its own, so other jobs change the latency little.");
            "layout = \"halves\"\n"
        }
        Workload::Teaching => {
            reasons.push("All users get the same size: slices give the most of them on a GPU.");
            "layout = \"slices\"\n"
        }
        Workload::Mixed => {
            reasons.push("With uniform a GPU is lent whole or in quarters, as Slurm's queue asks for it: no GPU is set aside for either.");
            reasons.push("A whole GPU in MIG mode has no peer access over NVLink: jobs of several GPUs want pools without MIG.");
            "layout = \"uniform\"\nmenu = [\"1/4\"]\n"
        }
        Workload::Batch if shared_mps && !plan.untrusted => {
            return Choice {
                mechanism: Mechanism::MigMps,
                keys: "layout = \"halves\"\n",
                reasons: vec![
                    "More small jobs fit on a GPU than MIG has instances: each half is one instance, which jobs share by MPS.",
                    "A fault ends the GPU work of the jobs on the same half only.",
                ],
            };
        }
        Workload::Batch => {
            reasons.push("Short jobs of one user take over the instance of the job before (reuse), and wait for no driver.");
            "layout = \"halves\"\nreuse = \"30s\"\n"
        }
    };
    if plan.untrusted {
        reasons.push("Users cannot exceed the limits of an instance.");
    }
    Choice {
        mechanism: Mechanism::Mig,
        keys,
        reasons,
    }
}

fn on_mps(workload: Workload, shared_mps: bool) -> Choice {
    let side_by_side = matches!(workload, Workload::Inference | Workload::Batch);
    if side_by_side && shared_mps {
        return Choice {
            mechanism: Mechanism::Mps,
            keys: "tenancy = \"shared\"\n",
            reasons: vec![
                "Kernels of several jobs run side by side: no job waits for a turn.",
                "A fault of one job ends the GPU work of all jobs of the GPU: choose tenancy = \"private\" where that is too much.",
            ],
        };
    }
    let mut reasons = vec![
        "Each job has its own MPS server with a memory limit for each process; jobs take turns, and a fault ends one job only.",
    ];
    let keys = match workload {
        Workload::Training => "tenancy = \"private\"\nmenu = [\"1/2\"]\n",
        Workload::Teaching => "tenancy = \"private\"\nmenu = [\"1/4\", \"1/8\"]\n",
        Workload::Mixed => {
            reasons.push("Slurm lends a GPU whole while no job has a share of it, and with gpufrac:1 the job has no daemon and no limit.");
            "tenancy = \"private\"\nmenu = [\"1/2\", \"1/4\"]\n"
        }
        _ => "tenancy = \"private\"\n",
    };
    if side_by_side {
        reasons.push("With a driver from 555 on, tenancy = \"shared\" runs kernels of several jobs side by side.");
    }
    Choice {
        mechanism: Mechanism::Mps,
        keys,
        reasons,
    }
}

fn slices(vgpu: bool) -> Choice {
    let what = if vgpu {
        "A vGPU has neither MIG nor MPS for its guest: timeslice and hami work there."
    } else {
        "Only the memory of this model is known: MPS limits clients from Volta on, so time slices are the safe choice."
    };
    Choice {
        mechanism: Mechanism::Timeslice,
        keys: "menu = [\"1/2\", \"1/4\"]\n",
        reasons: vec![
            what,
            "Time slices limit nothing. For memory limits that programs keep to, install HAMi-core and choose hami.",
        ],
    }
}
