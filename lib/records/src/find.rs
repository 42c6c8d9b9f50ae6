//! Finds the evidence of a job in the folders of records.

use std::io::Read;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use serde::Deserialize;

use crate::evidence::{Record, VERSION};

/// The largest file that is read; records are much smaller.
const MOST_RECORD_BYTES: u64 = 4 << 20;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A folder or file could not be read.
    #[error("reading `{}` failed: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The record was written by another build.
    /// Cure: Use the gpufrac of the node.
    #[error("`{}` is of version {found}, this gpufrac reads version {VERSION}", path.display())]
    Version {
        path: PathBuf,
        /// The version of the record.
        found: u64,
    },
    /// The record is not complete, for example after a full disk.
    /// Cure: Nothing can restore the record. Free space on the node.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// The records of a job.
#[derive(Debug, Default)]
pub struct Found {
    /// The records, in the order in which their leases were written.
    pub records: Vec<Record>,
    /// Records that could not be read; the others are still shown.
    pub problems: Vec<FindError>,
}

/// Looks for a job's records in these folders, with the permissions of the caller. A missing folder has none.
pub fn find(job: JobId, places: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for place in places {
        let files = files(job, place).unwrap_or_else(|problem| {
            found.problems.push(problem);
            Vec::new()
        });
        for path in files {
            match read(job, &path) {
                Ok(Some(record)) => found.records.push(record),
                Ok(None) => {}
                Err(problem) => found.problems.push(problem),
            }
        }
    }
    found.records = once_each(found.records);
    found
}

/// The files of a job: `JOB.json`, and those that begin with `JOB-`.
fn files(job: JobId, place: &Path) -> Result<Vec<PathBuf>, FindError> {
    let failed = |source| FindError::Read {
        path: place.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let job = job.to_string();
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_suffix(".json")?.strip_prefix(&job));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The key that every version of a record has.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Reads a record; None if its job has just ended and the file was moved.
fn read(job: JobId, path: &Path) -> Result<Option<Record>, FindError> {
    let failed = |source| FindError::Read {
        path: path.to_owned(),
        source,
    };
    let damaged = |reason: String| FindError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    let length = file.take(MOST_RECORD_BYTES + 1).read_to_end(&mut bytes);
    if length.map_err(failed)? as u64 > MOST_RECORD_BYTES {
        return Err(damaged(format!(
            "it has more than {MOST_RECORD_BYTES} bytes"
        )));
    }
    // The version is read first, because another version may give the other keys another meaning.
    let Version { version } =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if version != u64::from(VERSION) {
        return Err(FindError::Version {
            path: path.to_owned(),
            found: version,
        });
    }
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if record.job == job {
        Ok(Some(record))
    } else {
        Err(damaged(format!("it is of job {}", record.job)))
    }
}

/// Of several copies of a record the one that was written last.
fn once_each(mut records: Vec<Record>) -> Vec<Record> {
    let same = |one: &Record| (one.created_unix, one.node.clone());
    let samples = |one: &Record| -> u64 {
        let points = one.series.points.iter();
        points.map(|point| u64::from(point.samples)).sum()
    };
    let age = |one: &Record| (one.ended_ms.is_some(), one.events.len(), samples(one));
    records.sort_by_key(|one| (same(one), std::cmp::Reverse(age(one))));
    records.dedup_by_key(|one| same(one));
    records
}
