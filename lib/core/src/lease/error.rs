//! What can be wrong with a lease.

use super::state::LeaseState;
use crate::ids::JobId;
use crate::mechanism::Mechanism;

/// The version of the text that this build writes. A key more, or one that means something else, is a new version.
pub const VERSION: u32 = 3;
/// The oldest version that it reads: jobs run on while a node goes from one build to the next.
pub const OLDEST: u32 = VERSION - 1;

/// Why a text is not a lease, or a lease cannot change as asked.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The last line, with the checksum, is missing: the file was cut short.
    #[error("the last line has no checksum: the lease was not written to its end")]
    Torn,
    /// The checksum is that of another text.
    #[error("the checksum does not match: the lease was damaged or edited")]
    Checksum,
    /// Not a lease of this build, though the checksum is right.
    #[error(
        "a newer gpufrac wrote this lease: {source}; install that build again, it ends the lease"
    )]
    Text {
        /// What the reader of TOML says.
        source: Box<toml::de::Error>,
    },
    /// Written by another version of gpufrac.
    #[error("{}", unread(*found))]
    Version {
        /// The version in the text.
        found: i64,
    },
    /// An active lease says which instance it holds.
    #[error("job {job_id}: a lease in state active must name its instance")]
    NoInstance {
        /// The lease's job.
        job_id: JobId,
    },
    /// Parts that the mechanism does not have, or one that it needs is missing.
    #[error("job {job_id}: the sections below [slice] are not those of mechanism {mechanism}")]
    Sections {
        /// The lease's job.
        job_id: JobId,
        /// Its mechanism.
        mechanism: Mechanism,
    },
    /// Leases only go forward: carving, active, releasing.
    #[error("job {job_id}: a lease cannot go from {from} to {to}")]
    Transition {
        /// The lease's job.
        job_id: JobId,
        /// Its state.
        from: LeaseState,
        /// The state that was asked for.
        to: LeaseState,
    },
    /// A value that cannot be written as TOML.
    #[error("job {job_id}: cannot write the lease: {source}")]
    Write {
        /// The lease's job.
        job_id: JobId,
        /// What the writer of TOML says.
        source: Box<toml::ser::Error>,
    },
}

impl LeaseError {
    /// Whether the lease is whole, and a newer build than this one wrote it: that build reads it.
    #[must_use]
    pub fn is_of_newer_build(&self) -> bool {
        match self {
            LeaseError::Version { found } => *found > i64::from(VERSION),
            // The checksum is right, so a gpufrac wrote it: with a key that this one does not know.
            LeaseError::Text { .. } => true,
            _ => false,
        }
    }
}

fn unread(found: i64) -> String {
    match found > i64::from(VERSION) {
        true => format!(
            "a newer gpufrac wrote this lease (version {found}; this build reads {OLDEST} to {VERSION}); install that build again, it ends the lease"
        ),
        false => format!(
            "lease version {found} is too old, this build reads {OLDEST} to {VERSION}; install the build that wrote it until the job is over"
        ),
    }
}
