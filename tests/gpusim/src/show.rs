//! The current state of a node.

use std::fmt::Write as _;

use nvidia_ml::code::Code;
use nvidia_ml::node::compute_mode;
use nvidia_ml::processes::{self, Process, Record, Role};
use nvidia_ml::store::{Store, StoreError};
use nvidia_ml::tree::Capability;
use serde::Serialize;

/// The reasons why the state cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// The node's folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state contradicts itself.
    #[error("GPU {gpu}, GPU instance {gi}: its profile is unknown ({code})")]
    Profile {
        gpu: usize,
        /// The GPU instance.
        gi: u32,
        /// NVML's code.
        code: Code,
    },
}

#[derive(Debug, Serialize)]
pub struct NodeView {
    /// Driver version.
    pub driver: String,
    /// Reboots so far.
    pub boots: u32,
    /// GPUs in NVML's order.
    pub gpus: Vec<GpuView>,
}

#[derive(Debug, Serialize)]
pub struct GpuView {
    /// NVML index.
    pub index: usize,
    /// The simulator's model name.
    pub model: &'static str,
    /// Product name.
    pub name: &'static str,
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// MIG mode in force.
    pub mig: bool,
    /// MIG mode after a reset.
    pub mig_pending: bool,
    /// Compute mode, in nvidia-smi's words.
    pub compute_mode: &'static str,
    /// Memory that is held without a process, on instances too.
    pub leaked_mib: u64,
    /// Memory slices of the GPU, 0 without MIG.
    pub memory_slices: u32,
    /// GPU instances by id.
    pub instances: Vec<InstanceView>,
    /// Processes on the GPU, those of its instances too.
    pub processes: Vec<ProcessView>,
}

/// A GPU instance.
#[derive(Debug, Serialize)]
pub struct InstanceView {
    /// GPU instance id.
    pub gi: u32,
    /// Profile name, `1g.10gb`.
    pub profile: &'static str,
    pub profile_id: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    pub memory_mib: u64,
    /// Minor of its capability node.
    pub cap_minor: u32,
    /// Compute instances by id.
    pub compute: Vec<ComputeView>,
}

/// A compute instance.
#[derive(Debug, Serialize)]
pub struct ComputeView {
    /// Compute instance id.
    pub ci: u32,
    pub profile_id: u32,
    /// MIG UUID.
    pub uuid: String,
    /// Minor of its capability node.
    pub cap_minor: u32,
}

#[derive(Debug, Serialize)]
pub struct ProcessView {
    /// Process id.
    pub pid: u32,
    pub name: String,
    /// Its MIG UUID, on a GPU in MIG mode.
    pub mig_uuid: Option<String>,
    /// Memory that it holds.
    pub memory_mib: u64,
    /// How busy it is.
    pub pattern: String,
    /// Pid of its MPS server, for a client of one.
    pub mps_server: Option<u32>,
}

const DEFAULT_NAME: &str = "Default";

fn compute_mode_name(mode: u32) -> &'static str {
    match mode {
        compute_mode::DEFAULT => DEFAULT_NAME,
        compute_mode::PROHIBITED => "Prohibited",
        compute_mode::EXCLUSIVE_PROCESS => "Exclusive_Process",
        _ => "?",
    }
}

/// Looks at a node. Errors: the answer of the file system.
pub fn view(store: &Store) -> Result<NodeView, ShowError> {
    let node = store.node()?;
    let present = processes::present(store.root())?;
    let mut gpus = Vec::new();
    for (index, gpu) in node.gpus.iter().enumerate() {
        let mut instances = Vec::new();
        for gi in &gpu.instances {
            let profile = gpu.profile_of(gi).map_err(|code| ShowError::Profile {
                gpu: index,
                gi: gi.id,
                code,
            })?;
            let compute = gi.compute.iter().map(|ci| ComputeView {
                ci: ci.id,
                profile_id: ci.profile,
                uuid: ci.uuid.clone(),
                cap_minor: Capability::ComputeInstance(gpu.minor, gi.id, ci.id).minor(),
            });
            instances.push(InstanceView {
                gi: gi.id,
                profile: profile.name,
                profile_id: profile.id,
                start: gi.start,
                size: gi.size,
                memory_mib: profile.memory_mib,
                cap_minor: Capability::GpuInstance(gpu.minor, gi.id).minor(),
                compute: compute.collect(),
            });
        }
        let mig_uuid = |process: &Process| {
            let serials = process.instance?;
            let mut devices = gpu.mig_devices();
            let found = devices.find(|(gi, ci)| (gi.serial, ci.serial) == serials)?;
            Some(found.1.uuid.clone())
        };
        let own = present
            .iter()
            .filter(|record| record.process.gpu_uuid == gpu.uuid);
        let processes = own.map(|Record { process, role, .. }| ProcessView {
            pid: process.pid,
            name: process.name.clone(),
            mig_uuid: mig_uuid(process),
            memory_mib: process.memory_mib,
            pattern: process.pattern.to_string(),
            mps_server: match role {
                Role::Client(server) => Some(*server),
                Role::Alone | Role::Server => None,
            },
        });
        let model = gpu.model();
        gpus.push(GpuView {
            index,
            model: model.name,
            name: model.product,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            mig: gpu.mig,
            mig_pending: gpu.mig_pending,
            compute_mode: compute_mode_name(gpu.compute_mode),
            leaked_mib: gpu.all_leaked_mib(),
            memory_slices: model
                .geometry()
                .map_or(0, |geometry| geometry.memory_slices),
            instances,
            processes: processes.collect(),
        });
    }
    Ok(NodeView {
        driver: node.driver.clone(),
        boots: node.boots,
        gpus,
    })
}

/// The view as text for a terminal.
pub fn text(node: &NodeView) -> String {
    let mut out = String::new();
    for gpu in &node.gpus {
        let mode = match (gpu.mig, gpu.mig_pending) {
            (true, true) => "MIG on",
            (false, false) => "MIG off",
            (true, false) => "MIG on, off after a reset",
            (false, true) => "MIG off, on after a reset",
        };
        let (index, name, uuid) = (gpu.index, gpu.name, &gpu.uuid);
        let _ = write!(out, "GPU {index}: {name} ({uuid}), {mode}");
        if gpu.compute_mode != DEFAULT_NAME {
            let _ = write!(out, ", compute mode {}", gpu.compute_mode);
        }
        out.push('\n');
        for gi in &gpu.instances {
            let (id, profile, start, size) = (gi.gi, gi.profile, gi.start, gi.size);
            let _ = write!(out, "  GI {id:2}  {profile:<14} {start}:{size}");
            if gi.compute.is_empty() {
                out.push_str("  no compute instance");
            }
            for ci in &gi.compute {
                let _ = write!(out, "  CI {} {}", ci.ci, ci.uuid);
            }
            out.push('\n');
        }
        if gpu.leaked_mib > 0 {
            let _ = writeln!(out, "  {} MiB held by no process", gpu.leaked_mib);
        }
        for process in &gpu.processes {
            let place = process.mig_uuid.as_deref().unwrap_or("the whole GPU");
            let (pid, name, memory, pattern) = (
                process.pid,
                &process.name,
                process.memory_mib,
                &process.pattern,
            );
            let _ = write!(
                out,
                "  process {pid} ({name}) on {place}: {memory} MiB, {pattern}"
            );
            if let Some(server) = process.mps_server {
                let _ = write!(out, ", by MPS server {server}");
            }
            out.push('\n');
        }
    }
    out
}
