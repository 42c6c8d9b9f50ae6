//! The lease: a node's record of one slice.
//!
//! One file a slice, in [`Lease::to_text`]'s form: TOML, then a last line with a checksum of all
//! before it. A file that is torn, cut short or edited by hand is refused and never taken for
//! another lease. What to do on the disk (write whole, rename) is the node's business.

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

pub use error::{LeaseError, OLDEST, VERSION};
pub use slice::{HamiSlice, Held, Instance, MigSlice, MpsSlice, Slice};
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
pub fn id_of_group(name: &str) -> Option<JobId> {
    name.strip_prefix("job_")?.parse().ok()
}

/// Who holds what on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// [`VERSION`] of the text.
    pub version: u32,
    /// Where the slice is in its life.
    pub state: LeaseState,
    /// Slurm's job id; a component of a het job has its own.
    pub job_id: JobId,
    /// Which of the job's slices on this node, from 0. Only a job with a slice for each task has more than one.
    pub number: u32,
    /// How often Slurm restarted the job before.
    pub restart_count: u32,
    /// What Slurm calls this run of the job, from 26.05 on ([`is_sluid`]).
    pub sluid: Option<String>,
    /// The job's user id.
    pub user_id: UserId,
    /// The job's group id.
    pub group_id: GroupId,
    /// The job's user name.
    pub user: String,
    /// The account charged, where Slurm has accounts.
    pub account: Option<String>,
    /// The partition in which the job runs.
    pub partition: String,
    /// The node that wrote the lease.
    pub node: String,
    /// The pool of the GPU.
    pub pool: String,
    /// What the job was granted of its device.
    pub units: Units,
    /// The menu entry's part of the GPU.
    pub fraction: Fraction,
    /// Whether Slurm itself said how much the job holds. Where it could not be asked the size is
    /// the entry's, and a job that was changed while it waited may hold less.
    pub confirmed: bool,
    /// Whether Slurm said that the job holds the device itself, and not shares of it.
    pub whole_device: bool,
    /// What the user asked for with `--gpufrac-idle`.
    pub idle_wish: IdleWish,
    /// When the lease was first written: seconds since 1970.
    pub created_unix: u64,
    /// Since when the instance is kept, in seconds since 1970: its job's usage was recorded then.
    pub kept_unix: Option<u64>,
    /// Where the slice is.
    pub slice: Slice,
}

/// The job and the number that a lease's name stands for; see [`Lease::name`]. None for other texts.
#[must_use]
pub fn read_name(text: &str) -> Option<(JobId, u32)> {
    let (job, number) = match text.split_once('.') {
        Some((job, number)) => (job, Some(number)),
        None => (text, None),
    };
    let (job_id, number) = (job.parse().ok()?, number.map_or(Ok(0), str::parse).ok()?);
    (name(job_id, number) == text).then_some((job_id, number))
}

/// As [`Lease::name`], for a lease that is yet to be.
#[must_use]
pub fn name(job_id: JobId, number: u32) -> String {
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

    /// How the slice is made.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.slice.held.mechanism()
    }

    /// The MIG profile, with `+mps` where it is shared; else the mechanism.
    pub fn kind(&self) -> String {
        match &self.slice.held {
            Held::Mig(mig) => mig.profile_name.clone(),
            Held::MigMps { mig, .. } => format!("{}+mps", mig.profile_name),
            held => held.mechanism().to_string(),
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

    /// Goes to [`LeaseState::Kept`].
    ///
    /// # Errors
    /// As of [`Lease::advance`], and when there is no instance that is the job's alone; it is unchanged then.
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
