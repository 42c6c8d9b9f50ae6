//! Usage records: one line of JSON for each slice that a job held, in `<state>/usage.jsonl`.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use serde::{Deserialize, Serialize};

use gpufrac_host::files::{FileError, RootDir};

/// The name of the file in the state folder.
pub const FILE: &str = "usage.jsonl";
const VERSION: u32 = 1;
/// The bytes at the end of the file in which an earlier record of the same slice is searched: the releases of the
/// last hours.
const TAIL_BYTES: u64 = 64 << 10;

/// The reasons why a record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The folder or the file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A record could not be made into JSON.
    #[error("cannot write the usage record of job {job_id}: {source}")]
    Json {
        /// Slurm's id of the job.
        job_id: JobId,
        /// The cause.
        source: serde_json::Error,
    },
    /// Reading or writing failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The usage of a slice by a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The version of this format.
    pub version: u32,
    /// Slurm's id of the job.
    pub job: JobId,
    /// The number of the slice among those of the job on this node, from 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub slice: u32,
    /// How often the job was requeued before.
    pub restart_count: u32,
    /// The user name.
    pub user: String,
    /// The user id.
    pub uid: UserId,
    /// The account.
    pub account: Option<String>,
    /// The partition.
    pub partition: String,
    /// The node.
    pub node: String,
    /// The pool.
    pub pool: String,
    /// The fraction of a GPU, as a decimal.
    pub fraction: String,
    /// The units that Slurm counted.
    pub units: u32,
    /// The MIG profile, otherwise the mechanism.
    pub profile: String,
    /// The UUID of the GPU.
    pub gpu_uuid: String,
    /// The start, in seconds since 1970.
    pub start: u64,
    /// The end, in seconds since 1970.
    pub end: u64,
    /// The duration in seconds.
    pub seconds: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_first(slice: &u32) -> bool {
    *slice == 0
}

impl UsageRecord {
    /// The record of a lease that ends at `end_unix`.
    pub fn of(lease: &Lease, end_unix: u64) -> UsageRecord {
        UsageRecord {
            version: VERSION,
            job: lease.job_id,
            slice: lease.number,
            restart_count: lease.restart_count,
            user: lease.user.clone(),
            uid: lease.user_id,
            account: lease.account.clone(),
            partition: lease.partition.clone(),
            node: lease.node.clone(),
            pool: lease.pool.clone(),
            fraction: lease.fraction.to_string(),
            units: lease.units.0,
            profile: lease.kind(),
            gpu_uuid: lease.slice.gpu_uuid.clone(),
            start: lease.created_unix,
            end: end_unix,
            seconds: end_unix.saturating_sub(lease.created_unix),
        }
    }

    fn same_slice(&self, other: &UsageRecord) -> bool {
        (
            self.job,
            self.slice,
            self.restart_count,
            self.start,
            &self.node,
        ) == (
            other.job,
            other.slice,
            other.restart_count,
            other.start,
            &other.node,
        )
    }
}

/// Appends a record. `retried`: an earlier release may have written it and died before the lease was removed; the
/// file is then searched first.
pub fn append(state: &Path, record: &UsageRecord, retried: bool) -> Result<(), UsageError> {
    let (dir, _) = RootDir::create(state, 0o755)?;
    let path = dir.path().join(FILE);
    let io = |action| {
        let path = path.clone();
        move |source| UsageError::Io {
            action,
            path,
            source,
        }
    };
    let mut file = dir.append(FILE)?;
    let length = file.seek(SeekFrom::End(0)).map_err(io("read"))?;
    let from = length.saturating_sub(if retried { TAIL_BYTES } else { 1 });
    file.seek(SeekFrom::Start(from)).map_err(io("read"))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).map_err(io("read"))?;
    // Few lines are about this job; only those are parsed.
    let job = record.job.to_string();
    let known = String::from_utf8_lossy(&tail)
        .lines()
        .filter(|line| line.contains(&job))
        .filter_map(|line| serde_json::from_str::<UsageRecord>(line).ok())
        .any(|earlier| earlier.same_slice(record));
    if known {
        return Ok(());
    }
    let mut line = serde_json::to_string(record).map_err(|source| UsageError::Json {
        job_id: record.job,
        source,
    })?;
    line.push('\n');
    // A line that a crash cut short must not be joined with this one.
    if tail.last().is_some_and(|&byte| byte != b'\n') {
        line.insert(0, '\n');
    }
    // One write, so that two epilogs do not mix their lines. Not synced: that would cost every epilog a disk write,
    // and after a power failure Slurm's accounting still has the job.
    file.write_all(line.as_bytes()).map_err(io("write"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_examples::lease;

    fn lines(state: &Path) -> Vec<UsageRecord> {
        std::fs::read_to_string(state.join(FILE))
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    #[test]
    fn a_record_is_appended_and_not_repeated_by_a_retry() {
        let keep = tempfile::tempdir().unwrap();
        let state = keep.path().canonicalize().unwrap().join("state");
        let one = UsageRecord::of(&lease(7), 1_060);
        assert_eq!((one.seconds, one.fraction.as_str()), (60, "0.25"));
        append(&state, &one, false).unwrap();
        append(&state, &UsageRecord::of(&lease(8), 1_070), false).unwrap();
        append(&state, &UsageRecord::of(&lease(7), 1_090), true).unwrap();
        let written = lines(&state);
        assert_eq!(written.len(), 2);
        assert_eq!(written[0], one);
    }

    #[test]
    fn each_slice_of_a_job_has_its_record() {
        let keep = tempfile::tempdir().unwrap();
        let state = keep.path().canonicalize().unwrap();
        for number in [0, 1, 1] {
            let lease = Lease { number, ..lease(7) };
            append(&state, &UsageRecord::of(&lease, 1_060), true).unwrap();
        }
        let slices: Vec<u32> = lines(&state).iter().map(|line| line.slice).collect();
        assert_eq!(slices, [0, 1]);
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next() {
        let keep = tempfile::tempdir().unwrap();
        let state = keep.path().canonicalize().unwrap();
        std::fs::write(state.join(FILE), "{\"version\":1,\"jo").unwrap();
        append(&state, &UsageRecord::of(&lease(7), 1_060), false).unwrap();
        assert_eq!(lines(&state).len(), 1);
    }
}
