//! The errors of leases.

use super::state::LeaseState;
use crate::ids::JobId;
use crate::mechanism::Mechanism;

/// The version of the text that this build writes. A further key, or a key with another meaning, needs a new version.
pub const VERSION: u32 = 4;
/// The oldest version that this build reads, because jobs run on during an upgrade of a node.
pub const OLDEST: u32 = VERSION - 1;

/// The reasons why a text is not a lease, or a lease cannot change its state.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    // The last line, with the checksum, is missing: the file is incomplete.
    /// The node lost power while the lease was written, or the disk is full.
    /// Cure: `gpufrac lease drop LEASE` when the job has ended.
    #[error("the last line has no checksum: the lease was not written to its end")]
    Torn,
    /// The file was damaged or edited.
    /// Cure: `gpufrac lease drop LEASE` when the job has ended.
    #[error("the checksum does not match: the lease was damaged or edited")]
    Checksum,
    /// The package was downgraded while the job ran.
    /// Cure: Install the newer package again until the job ends.
    #[error(
        "a newer gpufrac wrote this lease: {source}; install that build again to end the lease"
    )]
    Text { source: Box<toml::de::Error> },
    /// Another version of gpufrac wrote the lease.
    #[error("{}", unread(*found))]
    Version { found: i64 },
    /// The file was edited.
    /// Cure: `gpufrac lease drop LEASE` when the job has ended.
    #[error("job {job_id}: a lease in state active must name its instance")]
    NoInstance { job_id: JobId },
    /// The file was edited.
    /// Cure: `gpufrac lease drop LEASE` when the job has ended.
    #[error("job {job_id}: the sections below [slice] are not those of mechanism {mechanism}")]
    Sections { job_id: JobId, mechanism: Mechanism },
    // States only go forward: carving, active, releasing.
    /// Two programs changed the lease, or a bug of gpufrac.
    /// Cure: Report the message with the node's syslog of the job.
    #[error("job {job_id}: a lease cannot go from {from} to {to}")]
    Transition {
        job_id: JobId,
        from: LeaseState,
        to: LeaseState,
    },
    /// The file could not be written.
    /// Cure: Free space on /run, or follow the text.
    #[error("job {job_id}: writing the lease failed: {source}")]
    Write {
        job_id: JobId,
        source: Box<toml::ser::Error>,
    },
}

impl LeaseError {
    /// Whether the lease is complete, but a newer build wrote it, so that only that build can read it.
    pub fn is_of_newer_build(&self) -> bool {
        match self {
            LeaseError::Version { found } => *found > i64::from(VERSION),
            // The checksum is right, so gpufrac wrote the text: with a key that this build does not know.
            LeaseError::Text { .. } => true,
            _ => false,
        }
    }
}

fn unread(found: i64) -> String {
    if found > i64::from(VERSION) {
        format!(
            "a newer gpufrac wrote this lease (version {found}; this build reads {OLDEST} to {VERSION}); install that build again to end the lease"
        )
    } else {
        format!(
            "lease version {found} is too old, this build reads {OLDEST} to {VERSION}; install the build that wrote it until the job is over"
        )
    }
}
