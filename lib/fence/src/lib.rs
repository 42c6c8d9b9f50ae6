//! The device control group of a job: which device nodes its processes can open. In version 1 these are rules of the
//! kernel, in version 2 BPF programs.

use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::cgroup::{MOUNTS, Mount, has_devices};
use gpufrac_host::files::DeviceRule;

mod bpf;
mod version1;
mod version2;

/// The reasons why the devices could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum DevCgroupError {
    /// The file is missing or not readable.
    /// Cure: Correct the path, the owner and the mode.
    #[error("reading `{}` failed: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The kernel refused a rule.
    /// Cure: Admins: report the rule and the kernel's version.
    #[error("denying `{rule}` in `{}` failed: {source}", path.display())]
    Deny {
        /// The `devices.deny` of the job.
        path: PathBuf,
        rule: DeviceRule,
        source: io::Error,
    },
    /// The kernel has no BPF for devices, or the node forbids it.
    /// Cure: Admins: `gpufrac check` on the node; enable `CONFIG_CGROUP_BPF`.
    #[error("the kernel does not accept BPF programs for devices of control groups: {0}")]
    NoPrograms(io::Error),
    /// The control group could not be changed.
    /// Cure: Admins: follow the text.
    #[error("{action} `{}` failed: {source}", path.display())]
    Bpf {
        action: &'static str,
        /// The folder of the group.
        path: PathBuf,
        source: io::Error,
    },
    /// The job has no control group for devices, so other GPUs cannot be closed to it.
    /// Cure: Admins: `TaskPlugin=task/cgroup`, `ConstrainDevices=yes`, restart slurmd.
    #[error(
        "job {0} has no control group that denies devices; set TaskPlugin=task/cgroup and ConstrainDevices=yes"
    )]
    NotConstrained(JobId),
}

/// The caller's own folder in /proc.
pub const OWN: &str = "self";

/// The devices to close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// Devices closed to the whole job. Version 2 has no group for that, so each step must be fenced.
    pub to_job: Vec<DeviceRule>,
    /// Devices closed to the step, at least those closed to the job.
    pub to_step: Vec<DeviceRule>,
}

impl Closed {
    /// The same devices for job and step.
    pub fn alike(rules: Vec<DeviceRule>) -> Self {
        Self {
            to_job: rules.clone(),
            to_step: rules,
        }
    }
}

/// Closes devices to a process, its step and its job. Returns the group that was closed: the job's in version 1, the
/// step's in version 2. `process` is a folder in /proc, [`OWN`] for the caller's. It must be the step's slurmstepd:
/// this process belongs to root, so that only root can move it to another group; the job's user can move the tasks.
///
/// # Errors
/// A system call failed; or the process is in no group of the job ([`DevCgroupError::NotConstrained`]), and nothing
/// was closed.
pub fn fence(process: &str, job_id: JobId, closed: &Closed) -> Result<PathBuf, DevCgroupError> {
    let memberships = read(&format!("/proc/{process}/cgroup"))?;
    let mounts = read(MOUNTS)?;
    let closed = match version1::fence(&memberships, &mounts, job_id, closed)? {
        Some(group) => Some(group),
        None => version2::fence(&memberships, &mounts, job_id, &closed.to_step)?,
    };
    closed.ok_or(DevCgroupError::NotConstrained(job_id))
}

/// Whether jobs can be fenced on this machine, as far as this can be seen without a job: if only version 2 is
/// mounted, the kernel must support BPF programs (`CONFIG_CGROUP_BPF`).
pub fn probe() -> Result<(), DevCgroupError> {
    match Mount::of(Path::new("/"), &read(MOUNTS)?, has_devices) {
        Some(_) => Ok(()),
        None => version2::probe(),
    }
}

fn read(path: &str) -> Result<String, DevCgroupError> {
    std::fs::read_to_string(path).map_err(|source| DevCgroupError::Read {
        path: path.into(),
        source,
    })
}
