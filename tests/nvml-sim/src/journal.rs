//! Who called what, in `state/journal`: a line for each call while calls are noted.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::processes::now_us;
use crate::store::StoreError;

/// The file's name.
pub(crate) const JOURNAL: &str = "journal";

/// A call that came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it ended, in microseconds since 1970.
    pub at_us: u64,
    /// Whose it was.
    pub pid: u32,
    /// `SLURM_JOB_ID` of that process.
    pub job: Option<u32>,
    /// The GPU that it was about.
    pub gpu: Option<usize>,
    /// The function.
    pub call: String,
    /// What it answered; 0 for success.
    pub code: u32,
    /// How long it took.
    pub took: Duration,
}

fn word<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Adds a line. One write, appended: lines of different processes do not mix.
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
        // Whoever cannot write, as in a folder that is read-only to it, is not noted.
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

/// All calls since they are noted, as they ended.
///
/// # Errors
/// What the file system answers; `Content` for a line that is none.
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

/// Forgets all calls up to now.
///
/// # Errors
/// What the file system answers.
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
