//! The device cgroup of a job: which device nodes its processes can open. In version 1 these are rules of the
//! kernel's, in version 2 programs.

use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::cgroup::{MOUNTS, Mount, has_devices};
use gpufrac_host::files::DeviceRule;

mod bpf;
mod version1;
mod version2;

/// Why the devices could not be denied.
#[derive(Debug, thiserror::Error)]
pub enum DevCgroupError {
    /// A file of /proc could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused a rule.
    #[error("cannot deny `{rule}` in `{}`: {source}", path.display())]
    Deny {
        /// The `devices.deny` of the job.
        path: PathBuf,
        /// The rule.
        rule: DeviceRule,
        /// The cause.
        source: io::Error,
    },
    /// bpf(2) takes no programs.
    #[error("the kernel takes no program for devices of control groups: {0}")]
    NoPrograms(io::Error),
    /// bpf(2) failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Bpf {
        /// What was to be done.
        action: &'static str,
        /// The group.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The process is in no group of this job that could be closed.
    #[error(
        "job {0} has no control group that keeps devices from it; set TaskPlugin=task/cgroup and ConstrainDevices=yes"
    )]
    NotConstrained(JobId),
}

/// The caller's own folder in /proc.
pub const OWN: &str = "self";

/// What is to be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// To the whole job. Version 2 has no group for that: there each step is to be fenced.
    pub to_job: Vec<DeviceRule>,
    /// To the step: at least what is closed to the job.
    pub to_step: Vec<DeviceRule>,
}

impl Closed {
    /// The same to both.
    #[must_use]
    pub fn alike(rules: Vec<DeviceRule>) -> Self {
        Self {
            to_job: rules.clone(),
            to_step: rules,
        }
    }
}

/// Closes devices to a process, with its step and its job. Gives the group that is closed: the job's in version 1, the
/// step's in version 2. `process` is a folder in /proc, [`OWN`] for the caller's. It
/// must be the step's slurmstepd: this is root's, so that nobody else can move it to another group, as the job's user can do
/// with the tasks.
///
/// # Errors
/// Also where the process is in no group of the job ([`DevCgroupError::NotConstrained`]): then nothing is closed.
pub fn fence(process: &str, job_id: JobId, closed: &Closed) -> Result<PathBuf, DevCgroupError> {
    let memberships = read(&format!("/proc/{process}/cgroup"))?;
    let mounts = read(MOUNTS)?;
    let closed = match version1::fence(&memberships, &mounts, job_id, closed)? {
        Some(group) => Some(group),
        None => version2::fence(&memberships, &mounts, job_id, &closed.to_step)?,
    };
    closed.ok_or(DevCgroupError::NotConstrained(job_id))
}

/// Whether jobs can be fenced here, as far as that can be seen without one: where version 2 alone is mounted the kernel
/// must take programs (`CONFIG_CGROUP_BPF`).
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
