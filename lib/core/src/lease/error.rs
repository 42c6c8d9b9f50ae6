//! What can be wrong with a lease.

use super::state::LeaseState;
use crate::ids::JobId;
use crate::mechanism::Mechanism;

/// The version of the text that this build writes and reads.
pub const VERSION: u32 = 3;

/// Why a text is not a lease, or a lease can not change as asked.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The last line, with the checksum, is missing: the file was cut short.
    #[error("the last line has no checksum: the lease was not written to its end")]
    Torn,
    /// The checksum is that of another text.
    #[error("the checksum does not match: the lease was damaged or edited")]
    Checksum,
    /// Not a lease, though the checksum is right.
    #[error("not a lease: {source}")]
    Text {
        /// What the reader of TOML says.
        source: Box<toml::de::Error>,
    },
    /// Written by another version of gpufrac.
    #[error(
        "lease version {found}, this build reads {VERSION}; drain the node before an upgrade, or run the version that wrote it"
    )]
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
    #[error("job {job_id}: a lease can not go from {from} to {to}")]
    Transition {
        /// The lease's job.
        job_id: JobId,
        /// Its state.
        from: LeaseState,
        /// The state that was asked for.
        to: LeaseState,
    },
    /// A value that can not be written as TOML.
    #[error("job {job_id}: can not write the lease: {source}")]
    Write {
        /// The lease's job.
        job_id: JobId,
        /// What the writer of TOML says.
        source: Box<toml::ser::Error>,
    },
}
