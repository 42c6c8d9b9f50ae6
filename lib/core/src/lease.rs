//! The lease: a node's record of one slice.
//!
//! One file a slice, in [`Lease::to_text`]'s form: TOML, then a last line with a checksum of all
//! before it. A file that is torn, cut short or edited by hand is refused and never taken for
//! another lease. What to do on the disk (write whole, rename) is the node's business.

use serde::{Deserialize, Serialize};

use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::Placement;
use crate::layout::Side;
use crate::mechanism::Mechanism;
use crate::policy::IdleWish;

mod checksum;
mod error;
mod state;
#[cfg(test)]
mod tests;

pub use error::{LeaseError, VERSION};
pub use state::LeaseState;

/// Whether a text has the form of a SLUID, Slurm's own name for one run of a job: `s` and 13 digits of Crockford's
/// base 32 (`sEKNKTV3WPV500`, cgroup.conf(5) of 26.05).
#[must_use]
pub fn is_sluid(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    match text.strip_prefix('s') {
        Some(digits) => digits.len() == 13 && digits.bytes().all(is_digit),
        None => false,
    }
}

/// The job of a control group that is named by its id, `job_<id>`.
#[must_use]
pub fn id_of_group(name: &str) -> Option<u32> {
    name.strip_prefix("job_")?.parse().ok()
}

/// Who holds what on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// [`VERSION`] of the text.
    pub version: u32,
    /// Where the slice is in its life.
    pub state: LeaseState,
    /// Slurm's job id; a component of a het job has its own.
    pub job_id: u32,
    /// Which of the job's slices on this node, from 0. Only a job with a slice for each task has more than one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u32,
    /// How often Slurm restarted the job before.
    pub restart_count: u32,
    /// What Slurm calls this run of the job, from 26.05 on ([`is_sluid`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sluid: Option<String>,
    /// The job's user id.
    pub user_id: u32,
    /// The job's group id.
    pub group_id: u32,
    /// The job's user name.
    pub user: String,
    /// The account charged, where Slurm has accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The partition in which the job runs.
    pub partition: String,
    /// The node that wrote the lease.
    pub node: String,
    /// The pool of the GPU.
    pub pool: String,
    /// How the slice is made.
    pub mechanism: Mechanism,
    /// What the job was granted of its device.
    pub units: Units,
    /// The menu entry's part of the GPU.
    pub fraction: Fraction,
    /// Whether Slurm itself said how much the job holds. Where it could not be asked the size is
    /// the entry's, and a job that was changed while it waited may hold less.
    pub confirmed: bool,
    /// What the user asked for with `--gpufrac-idle`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idle_wish: IdleWish,
    /// When the lease was first written: seconds since 1970.
    pub created_unix: u64,
    /// Where the slice is.
    pub slice: Slice,
}

/// What a job holds of a GPU: which GPU, and one section for each mechanism that has a part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Slurm's index of the device on this node (`SLURM_JOB_GPUS`).
    pub device_index: u32,
    /// Which part of the GPU the device is.
    pub side: Side,
    /// UUID of the GPU, `GPU-...`.
    pub gpu_uuid: String,
    /// NVML's index of the GPU when the lease was written.
    pub gpu_index: u32,
    /// N of the GPU's `/dev/nvidiaN`.
    pub gpu_minor: u32,
    /// Memory that the job may use.
    pub memory_mib: MemoryMib,
    /// Whether the job gets variables that tell frameworks to stay within their share.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hints: bool,
    /// Whether the driver limits the memory of the job's control groups.
    #[serde(default, skip_serializing_if = "is_false")]
    pub group_limit: bool,
    /// The MIG instance (`mig`, `mig+mps`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
    /// The control daemon and its limits (`mps`, `mig+mps`); none for a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<MpsSlice>,
    /// HAMi-core's library and cache (`hami`); none for a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hami: Option<HamiSlice>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_default(wish: &IdleWish) -> bool {
    *wish == IdleWish::Default
}

impl Slice {
    /// The MIG instance, once it is known.
    pub fn instance(&self) -> Option<&Instance> {
        self.mig.as_ref()?.instance.as_ref()
    }

    /// What CUDA calls the device: the MIG device where there is one, else the GPU. None while the
    /// instance is not made.
    pub fn cuda_device(&self) -> Option<&str> {
        match &self.mig {
            Some(mig) => mig.instance.as_ref().map(|i| i.mig_uuid.as_str()),
            None => Some(&self.gpu_uuid),
        }
    }
}

/// A MIG instance: where it is, or will be, created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigSlice {
    /// NVML's profile id.
    pub profile_id: u32,
    /// The profile's name, e.g. `2g.20gb`.
    pub profile_name: String,
    /// Its position.
    pub placement: Placement,
    /// The instance, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
}

/// A job's part of what a control daemon of MPS serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsSlice {
    /// The daemon's folder; `pipe` and `log` are in it.
    pub folder: String,
    /// Whether the daemon is this job's alone.
    pub private: bool,
    /// Percent of the multiprocessors that the daemon's device has.
    pub thread_percentage: u32,
    /// Memory limit of each client.
    pub memory_limit_mib: MemoryMib,
    /// The static partition of multiprocessors, `UUID/ID`, where the pool uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_partition: Option<String>,
}

impl MpsSlice {
    /// `CUDA_MPS_PIPE_DIRECTORY`.
    pub fn pipe(&self) -> String {
        format!("{}/pipe", self.folder)
    }

    /// `CUDA_MPS_LOG_DIRECTORY`.
    pub fn log(&self) -> String {
        format!("{}/log", self.folder)
    }
}

/// HAMi-core's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HamiSlice {
    /// `libvgpu.so` where the site installed it.
    pub library: String,
    /// The job's own file of usage counters.
    pub cache: String,
    /// Percent of the multiprocessors.
    pub sm_limit: u32,
}

/// A MIG instance as it was created. The driver uses the ids again, never the UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// GPU instance id.
    pub gi_id: u32,
    /// Compute instance id.
    pub ci_id: u32,
    /// UUID of the compute instance's device, `MIG-...`.
    pub mig_uuid: String,
    /// Minor of the GPU instance's capability node.
    pub gi_cap_minor: u32,
    /// Minor of the compute instance's capability node.
    pub ci_cap_minor: u32,
}

/// All that is read before the version is known to be ours.
#[derive(Deserialize)]
struct Header {
    version: i64,
}

/// The job and the number that a lease's name stands for; see [`Lease::name`]. None for other texts.
#[must_use]
pub fn read_name(text: &str) -> Option<(u32, u32)> {
    let (job, number) = match text.split_once('.') {
        Some((job, number)) => (job, Some(number)),
        None => (text, None),
    };
    let (job_id, number) = (job.parse().ok()?, number.map_or(Ok(0), str::parse).ok()?);
    (name(job_id, number) == text).then_some((job_id, number))
}

/// As [`Lease::name`], for a lease that is yet to be.
#[must_use]
pub fn name(job_id: u32, number: u32) -> String {
    match number {
        0 => job_id.to_string(),
        number => format!("{job_id}.{number}"),
    }
}

impl Lease {
    /// What tells it from all other leases of the node, and names its file: the job's id, with the number behind it
    /// for a second slice and further ones (`4711.1`).
    #[must_use]
    pub fn name(&self) -> String {
        name(self.job_id, self.number)
    }

    /// Whether this is how Slurm names a control group of the job: `job_<id>`, or by its SLUID on version 2 from
    /// 26.05 on.
    #[must_use]
    pub fn is_group(&self, name: &str) -> bool {
        self.sluid.as_deref() == Some(name) || id_of_group(name) == Some(self.job_id)
    }

    /// Whether a group on the GPU of `neighbours`, this lease among them, is that of its own job. None where nobody
    /// knows: the groups of a job that began before Slurm named them by SLUIDs have such names from its next step on.
    #[must_use]
    pub fn owns_group(&self, name: &str, neighbours: &[&Lease]) -> Option<bool> {
        let is_known = neighbours.iter().any(|lease| lease.is_group(name));
        let have_all = neighbours.iter().all(|lease| lease.sluid.is_some());
        match is_known || have_all || !is_sluid(name) {
            true => Some(self.is_group(name)),
            false => None,
        }
    }

    /// Whether both are of the same slice of the same job.
    #[must_use]
    pub fn is_same(&self, other: &Lease) -> bool {
        (self.job_id, self.number) == (other.job_id, other.number)
    }

    /// The MIG profile, with `+mps` where it is shared; else the mechanism.
    pub fn kind(&self) -> String {
        match (&self.slice.mig, &self.slice.mps) {
            (Some(mig), None) => mig.profile_name.clone(),
            (Some(mig), Some(_)) => format!("{}+mps", mig.profile_name),
            (None, _) => self.mechanism.to_string(),
        }
    }

    /// Goes to another state.
    ///
    /// # Errors
    /// When the state machine does not allow it, or the lease would be active without an
    /// instance; it is unchanged then.
    pub fn advance(&mut self, to: LeaseState) -> Result<(), LeaseError> {
        if !self.state.may_become(to) {
            return Err(LeaseError::Transition {
                job_id: self.job_id,
                from: self.state,
                to,
            });
        }
        if to == LeaseState::Active && self.slice.cuda_device().is_none() {
            return Err(LeaseError::NoInstance {
                job_id: self.job_id,
            });
        }
        self.state = to;
        Ok(())
    }

    /// The text of the file.
    ///
    /// # Errors
    /// When a value has no form in TOML (a time after the year 292 277 026 596).
    pub fn to_text(&self) -> Result<String, LeaseError> {
        let body = toml::to_string(self).map_err(|source| LeaseError::Write {
            job_id: self.job_id,
            source: Box::new(source),
        })?;
        Ok(checksum::seal(body))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// When it is not, to the last byte, what [`Lease::to_text`] of this version wrote.
    pub fn parse(text: &str) -> Result<Lease, LeaseError> {
        let body = checksum::open(text)?;
        let wrong = |source| LeaseError::Text {
            source: Box::new(source),
        };
        let header: Header = toml::from_str(body).map_err(wrong)?;
        if header.version != i64::from(VERSION) {
            return Err(LeaseError::Version {
                found: header.version,
            });
        }
        let lease: Lease = toml::from_str(body).map_err(wrong)?;
        if lease.state == LeaseState::Active && lease.slice.cuda_device().is_none() {
            return Err(LeaseError::NoInstance {
                job_id: lease.job_id,
            });
        }
        Ok(lease)
    }
}
