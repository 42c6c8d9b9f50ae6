//! The log of calls in `state/journal`, with a line for each call while logging is on.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::error::StoreError;
use crate::processes::now_us;

/// The file's name.
pub(crate) const JOURNAL: &str = "journal";

/// An ended call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The end, in microseconds since 1970.
    pub at_us: u64,
    /// The pid of the caller.
    pub pid: u32,
    /// `SLURM_JOB_ID` of the caller.
    pub job: Option<u32>,
    /// The GPU of the call.
    pub gpu: Option<usize>,
    pub call: String,
    /// The returned code; 0 for success.
    pub code: u32,
    pub took: Duration,
}

fn word<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Adds a line by one appending write, so that lines of different processes do not mix.
pub(crate) fn note(root: &Path, call: &str, gpu: Option<usize>, code: u32, took: Duration) {
    let job = std::env::var("SLURM_JOB_ID").ok();
    let job = job.and_then(|text| text.parse::<u32>().ok());
    let line = format!(
        "{} {} {} {} {call} {code} {}\n",
        now_us(),
        std::process::id(),
        word(job),
        word(gpu),
        took.as_micros()
    );
    let path = root.join("state").join(JOURNAL);
    if let Ok(mut file) = OpenOptions::new().append(true).open(path) {
        // Calls of a process that cannot write the file are not logged.
        let _ = file.write_all(line.as_bytes());
    }
}

fn entry(line: &str) -> Option<Entry> {
    let words: Vec<&str> = line.split(' ').collect();
    let [at, pid, job, gpu, call, code, took] = words[..] else {
        return None;
    };
    let optional = |text: &str| -> Option<Option<u64>> {
        match text {
            "-" => Some(None),
            number => number.parse().ok().map(Some),
        }
    };
    Some(Entry {
        at_us: at.parse().ok()?,
        pid: pid.parse().ok()?,
        job: optional(job)?.map(|job| job as u32),
        gpu: optional(gpu)?.map(|gpu| gpu as usize),
        call: call.to_owned(),
        code: code.parse().ok()?,
        took: Duration::from_micros(took.parse().ok()?),
    })
}

/// All logged calls, in the order of their ends. Errors: the file system fails; `Content` for a wrong line.
pub fn read(root: &Path) -> Result<Vec<Entry>, StoreError> {
    let path = root.join("state").join(JOURNAL);
    let text = fs::read_to_string(&path).map_err(StoreError::io(&path))?;
    let entries = text.lines().map(|line| {
        entry(line).ok_or_else(|| StoreError::Content {
            path: path.clone(),
            reason: format!("`{line}` is no call"),
        })
    });
    entries.collect()
}

/// Removes all logged calls. Errors: the file system fails.
pub fn forget(root: &Path) -> Result<(), StoreError> {
    let path = root.join("state").join(JOURNAL);
    fs::write(&path, "").map_err(StoreError::io(&path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("state")).unwrap();
        forget(root).unwrap();
        note(root, "nvmlInit_v2", None, 0, Duration::from_millis(3));
        note(root, "nvmlDeviceGetUUID", Some(1), 15, Duration::ZERO);
        let found = read(root).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].took, Duration::from_millis(3));
        assert_eq!((found[0].gpu, found[0].pid), (None, std::process::id()));
        assert_eq!((found[1].gpu, found[1].code), (Some(1), 15));
        assert_eq!(found[1].call, "nvmlDeviceGetUUID");
        fs::write(root.join("state").join(JOURNAL), "1 2 3\n").unwrap();
        assert!(read(root).is_err());
        forget(root).unwrap();
        assert_eq!(read(root).unwrap(), []);
    }
}
