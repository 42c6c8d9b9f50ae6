//! The lease: a node's record of one slice.
//!
//! Each slice has one file, in the form of [`Lease::to_text`]: TOML, then a last line with a checksum of everything
//! before it. A file that is incomplete or was edited by hand is refused and never read as another lease. The node
//! writes the file (whole, then renamed).

use crate::fraction::{Fraction, Units};
use crate::ids::{GroupId, JobId, UserId};
use crate::mechanism::Mechanism;
use crate::policy::IdleWish;

mod checksum;
mod error;
mod slice;
mod state;
#[cfg(test)]
mod tests;
mod text;
pub mod variables;
pub mod visible;

pub use error::{LeaseError, OLDEST, VERSION};
pub use slice::{HamiSlice, Held, Instance, MigSlice, MpsSlice, Slice};
pub use state::LeaseState;

/// Whether a text has the form of a SLUID, Slurm's identifier of one run of a job: `s` and 13 digits of Crockford's
/// base 32 (`sEKNKTV3WPV500`, cgroup.conf(5) of 26.05).
pub fn is_sluid(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    match text.strip_prefix('s') {
        Some(digits) => digits.len() == 13 && digits.bytes().all(is_digit),
        None => false,
    }
}

/// The job id in the name of a control group, `job_<id>`.
pub fn id_of_group(name: &str) -> Option<JobId> {
    name.strip_prefix("job_")?.parse().ok()
}

/// A record of one slice: its job, and what the job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The [`VERSION`] of the text.
    pub version: u32,
    pub state: LeaseState,
    /// Slurm's job id; each component of a heterogeneous job has its own.
    pub job_id: JobId,
    /// The number of the slice among those of the job on this node, from 0. Only a job with a slice for each task,
    /// or with several whole GPUs, has more than one.
    pub number: u32,
    /// How often Slurm restarted the job before this run.
    pub restart_count: u32,
    /// Slurm's SLUID of this run of the job, from 26.05 on ([`is_sluid`]).
    pub sluid: Option<String>,
    pub user_id: UserId,
    pub group_id: GroupId,
    pub user: String,
    /// The account of the job, if Slurm has accounting.
    pub account: Option<String>,
    pub partition: String,
    /// The node that wrote the lease.
    pub node: String,
    pub pool: String,
    /// The granted size, in units of its device.
    pub units: Units,
    /// The fraction of the menu entry.
    pub fraction: Fraction,
    /// Whether Slurm confirmed the size. Otherwise it is that of the entry, and a job that was changed while it was
    /// pending may hold less.
    pub confirmed: bool,
    /// Whether Slurm allocated the device itself, and not shares of it.
    pub whole_device: bool,
    /// The value of `--gpufrac-idle`.
    pub idle_wish: IdleWish,
    /// The time when the lease was first written, in seconds since 1970.
    pub created_unix: u64,
    /// When the lease was first written, in milliseconds since the node was booted. None in leases of version 2 and 3.
    pub created_boot_ms: Option<u64>,
    /// The time since when the instance is kept, in seconds since 1970; the usage of its job was recorded then.
    pub kept_unix: Option<u64>,
    /// The part of the GPU that the job holds.
    pub slice: Slice,
}

/// The job and the number in a lease's name ([`Lease::name`]); None for other texts.
pub fn read_name(text: &str) -> Option<(JobId, u32)> {
    let (job, number) = match text.split_once('.') {
        Some((job, number)) => (job, Some(number)),
        None => (text, None),
    };
    let (job_id, number) = (job.parse().ok()?, number.map_or(Ok(0), str::parse).ok()?);
    (name(job_id, number) == text).then_some((job_id, number))
}

/// As [`Lease::name`], for a lease that does not exist yet.
pub fn name(job_id: JobId, number: u32) -> String {
    match number {
        0 => job_id.to_string(),
        number => format!("{job_id}.{number}"),
    }
}

impl Lease {
    /// The name of the lease and of its file, unique on the node: the job's id, with the number behind it for further
    /// slices (`4711.1`).
    pub fn name(&self) -> String {
        name(self.job_id, self.number)
    }

    /// Whether `name` is the name of a control group of the job: `job_<id>`, or its SLUID on version 2 from 26.05 on.
    pub fn is_group(&self, name: &str) -> bool {
        self.sluid.as_deref() == Some(name) || id_of_group(name) == Some(self.job_id)
    }

    /// Whether a control group on the GPU belongs to this lease's job. `neighbours` are all leases of the GPU, with
    /// this one. Returns None if that is unknown: after an upgrade of Slurm to SLUIDs, further steps of a running job
    /// have groups with a SLUID that its lease does not have.
    pub fn owns_group(&self, name: &str, neighbours: &[&Lease]) -> Option<bool> {
        let is_known = neighbours.iter().any(|lease| lease.is_group(name));
        let have_all = neighbours.iter().all(|lease| lease.sluid.is_some());
        if is_known || have_all || !is_sluid(name) {
            Some(self.is_group(name))
        } else {
            None
        }
    }

    /// Whether both are of the same slice of the same job.
    pub fn is_same(&self, other: &Lease) -> bool {
        (self.job_id, self.number) == (other.job_id, other.number)
    }

    pub fn mechanism(&self) -> Mechanism {
        self.slice.held.mechanism()
    }

    /// The MIG profile, with `+mps` where it is shared; `bare` for a whole GPU with MIG off; else the mechanism.
    pub fn kind(&self) -> String {
        match &self.slice.held {
            Held::Mig(mig) => mig.profile_name.clone(),
            Held::MigMps { mig, .. } => format!("{}+mps", mig.profile_name),
            Held::Bare => "bare".to_owned(),
            held => held.mechanism().to_string(),
        }
    }

    /// The place of the slice, for messages.
    pub fn place(&self) -> String {
        let (slice, kind) = (&self.slice, self.kind());
        match slice.mig() {
            Some(mig) => format!(
                "GPU {} {kind} at {}:{}",
                slice.gpu_index, mig.placement.start, mig.placement.size
            ),
            None => format!("GPU {} {} by {kind}", slice.gpu_index, self.fraction),
        }
    }

    /// How much of a GPU's compute the job may have while its neighbours are idle, if that is more than its share.
    pub fn burst(&self) -> Option<Units> {
        let mps = |mps: &MpsSlice, capacity| Some(Units(mps.burst_percentage? * capacity / 100));
        match &self.slice.held {
            // The daemon's device is half of the GPU.
            Held::MigMps { mps: part, .. } => mps(part, 50),
            Held::Mps(Some(part)) => mps(part, 100),
            Held::Hami(Some(hami)) => hami.burst.then_some(Units::WHOLE),
            Held::Mps(None) | Held::Hami(None) | Held::Mig(_) | Held::Bare | Held::Timeslice => {
                None
            }
        }
    }

    /// Changes the state.
    ///
    /// # Errors
    /// The state machine does not allow the change, or the lease would be active without an instance. The lease is
    /// then unchanged.
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

    /// Changes the state to [`LeaseState::Kept`].
    /// Errors: as for [`Lease::advance`], and if the job has no instance of its own. The lease is then unchanged.
    pub fn keep(&mut self, now_unix: u64) -> Result<(), LeaseError> {
        if self.mechanism() != Mechanism::Mig || self.slice.instance().is_none() {
            return Err(LeaseError::NoInstance {
                job_id: self.job_id,
            });
        }
        self.advance(LeaseState::Kept)?;
        self.kept_unix = Some(now_unix);
        Ok(())
    }
}
