//! The simulated GPUs of a lab's nodes, the instances on them, and the leases for these.

use std::fs;
use std::path::{Path, PathBuf};

use gpufrac_core::lease::{Lease, read_name};
use serde::Deserialize;

use crate::{JobId, Lab, LabError};

/// A MIG instance in the simulator's state, read without NVML.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Position of its GPU.
    pub gpu: usize,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// NVML's profile id.
    pub profile: u32,
    /// GPU instance id.
    pub id: u32,
    /// The simulator's number, which no other instance of the node has or had.
    pub serial: u64,
    /// UUIDs of its compute instances; the next instance at this place may have them too.
    pub uuids: Vec<String>,
}

/// The compute mode of a whole GPU in the simulator's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes may use it.
    Default,
    /// No process may use it.
    Prohibited,
    /// One process may use it.
    ExclusiveProcess,
    /// Another number of NVML.
    Other(u32),
}

impl From<u32> for ComputeMode {
    fn from(number: u32) -> Self {
        match number {
            0 => Self::Default,
            2 => Self::Prohibited,
            3 => Self::ExclusiveProcess,
            other => Self::Other(other),
        }
    }
}

#[derive(Deserialize)]
struct NodeState {
    gpus: Vec<GpuState>,
}

#[derive(Deserialize)]
struct GpuState {
    uuid: String,
    mig: bool,
    compute_mode: u32,
    instances: Vec<InstanceState>,
}

#[derive(Deserialize)]
struct InstanceState {
    id: u32,
    serial: u64,
    profile: u32,
    start: u32,
    size: u32,
    compute: Vec<ComputeState>,
}

#[derive(Deserialize)]
struct ComputeState {
    uuid: String,
}

impl Lab {
    fn simulator(&self, node: &str) -> Result<NodeState, LabError> {
        let path = self.folder().gpus(node).join("state/node.json");
        let text = fs::read(&path).map_err(LabError::file("reading", &path))?;
        serde_json::from_slice(&text).map_err(|e| LabError::file("reading", &path)(e.into()))
    }

    /// The MIG instances of a node, sorted by position. Errors: the simulator's state cannot be read.
    pub fn instances(&self, node: &str) -> Result<Vec<Instance>, LabError> {
        let mut instances: Vec<_> = self
            .simulator(node)?
            .gpus
            .into_iter()
            .enumerate()
            .flat_map(|(gpu, state)| {
                state.instances.into_iter().map(move |instance| Instance {
                    gpu,
                    start: instance.start,
                    size: instance.size,
                    profile: instance.profile,
                    id: instance.id,
                    serial: instance.serial,
                    uuids: instance
                        .compute
                        .into_iter()
                        .map(|compute| compute.uuid)
                        .collect(),
                })
            })
            .collect();
        instances.sort();
        Ok(instances)
    }

    /// UUIDs of a node's GPUs, in NVML's order. Errors: the simulator's state cannot be read.
    pub fn gpu_uuids(&self, node: &str) -> Result<Vec<String>, LabError> {
        Ok(self
            .simulator(node)?
            .gpus
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect())
    }

    /// Compute modes of a node's GPUs, in NVML's order, read without NVML.
    /// Errors: the simulator's state cannot be read.
    pub fn compute_modes(&self, node: &str) -> Result<Vec<ComputeMode>, LabError> {
        Ok(self
            .simulator(node)?
            .gpus
            .into_iter()
            .map(|gpu| gpu.compute_mode.into())
            .collect())
    }

    /// Which of a node's GPUs are in MIG mode, in NVML's order, read behind NVML's back.
    /// Errors: when the simulator's state cannot be read.
    pub fn mig_modes(&self, node: &str) -> Result<Vec<bool>, LabError> {
        let gpus = self.simulator(node)?.gpus.into_iter();
        Ok(gpus.map(|gpu| gpu.mig).collect())
    }

    /// The leases of a node, by job and number. Errors: a lease cannot be read.
    pub fn leases(&self, node: &str) -> Result<Vec<Lease>, LabError> {
        let place = self.folder().run(node).join("leases");
        let mut leases = Vec::new();
        let entries = match fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(leases),
            Err(error) => return Err(LabError::file("reading", place)(error)),
        };
        for entry in entries.flatten() {
            // Only complete files: a file that is being written has a name that is not a lease's.
            if entry.file_name().to_str().and_then(read_name).is_some() {
                leases.extend(read_lease(&entry.path())?);
            }
        }
        leases.sort_by_key(|lease| (lease.job_id, lease.number));
        Ok(leases)
    }

    /// A job's lease on a node; None if it has none. Errors: a lease cannot be read.
    pub fn lease(&self, node: &str, job: JobId) -> Result<Option<Lease>, LabError> {
        read_lease(&self.lease_path(node, job))
    }

    /// The leases of a job on a node, by number. Errors: as [`Lab::leases`].
    pub fn leases_of(&self, node: &str, job: JobId) -> Result<Vec<Lease>, LabError> {
        let mut leases = self.leases(node)?;
        leases.retain(|lease| lease.job_id == job);
        Ok(leases)
    }

    /// The path of a job's lease on a node.
    pub fn lease_path(&self, node: &str, job: JobId) -> PathBuf {
        self.folder().run(node).join("leases").join(job.to_string())
    }

    /// Runs the simulator of `node`: `gpusim <args...> --root ROOT`. Errors: gpusim fails.
    pub fn gpusim(&self, node: &str, args: &[&str]) -> Result<String, LabError> {
        let root = self.folder().gpus(node);
        self.command("gpusim")
            .args(args)
            .args(["--root"])
            .args([root])
            .stdout()
    }
}

fn read_lease(path: &Path) -> Result<Option<Lease>, LabError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LabError::file("reading", path)(error)),
    };
    Lease::parse(&text)
        .map(Some)
        .map_err(|error| LabError::Unexpected {
            what: path.display().to_string(),
            found: error.to_string(),
        })
}

/// Creates the simulated GPUs of `node`, in gpusim's notation.
pub(crate) fn init(
    lab: &Lab,
    node: &str,
    gpus: &[String],
    mig: bool,
    driver: Option<&str>,
) -> Result<(), LabError> {
    let library = lab
        .folder()
        .lib()
        .join("libnvidia_ml.so")
        .display()
        .to_string();
    let mut args = vec!["init", "--lib", &library];
    for gpu in gpus {
        args.extend(["--gpu", gpu]);
    }
    if mig {
        args.push("--mig");
    }
    if let Some(version) = driver {
        args.extend(["--driver", version]);
    }
    lab.gpusim(node, &args).map(drop)
}

/// The steps of a node's boot before slurmd.
pub(crate) fn node_setup(lab: &Lab, node: &str) -> Result<(), LabError> {
    lab.command("gpufrac")
        .args(["node-setup"])
        .env("SLURMD_NODENAME", node)
        .stdout()
        .map(drop)
}
