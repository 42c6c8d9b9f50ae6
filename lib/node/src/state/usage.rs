//! The node's file of usage records, `<state>/usage.jsonl`, and what the reaper measured for them.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_records::usage::{Ended, Full, GpuTime, Line, SliceKey, Tallies, Tally, UsageRecord};

/// The file in the state folder.
pub const FILE: &str = "usage.jsonl";
/// The reaper's folder in the folder of this boot.
pub const REAPER: &str = "reaper";
/// The file there with a [`Tally`] of each slice.
pub const TALLIES: &str = "used.json";
/// Bytes at the end of the file where a record of the same slice is looked for: the releases of the last hours.
const TAIL_BYTES: u64 = 64 << 10;

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The usage record could not be written.
    /// Cure: Free space, and correct the path in `[paths]`.
    #[error("writing the usage record of job {job_id} failed: {source}")]
    Json {
        job_id: JobId,
        source: serde_json::Error,
    },
    /// The file of usage records could not be read or written.
    /// Cure: Free space, and correct the path in `[paths]`.
    #[error("{action} `{}` failed: {source}; free space, and check the folder", path.display())]
    Io {
        /// "reading" or "writing".
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file with the sums of gpufrac-reaperd is damaged, for example after a full disk.
    /// Cure: Nothing; free space in /run if it comes again.
    #[error("reading `{}` failed: {source}; gpufrac-reaperd writes the file again in its next round", path.display())]
    Tallies {
        path: PathBuf,
        source: serde_json::Error,
    },
}

/// The measurements of gpufrac-reaperd for a slice; None if it did not watch the slice.
/// Errors: the file cannot be read, or is damaged.
pub fn measured(run: &Path, key: &SliceKey) -> Result<Option<Tally>, UsageError> {
    let folder = run.join(REAPER);
    let Some(dir) = RootDir::find(&folder)? else {
        return Ok(None);
    };
    let Some(text) = dir.read(TALLIES)? else {
        return Ok(None);
    };
    let tallies: Tallies = serde_json::from_str(&text).map_err(|source| UsageError::Tallies {
        path: folder.join(TALLIES),
        source,
    })?;
    Ok(tallies.slices.into_iter().find(|tally| tally.key == *key))
}

/// Appends the record of a slice. `retried`: an earlier release may have written it already and died before the lease
/// was gone; then it is looked for first. Errors: the file cannot be opened, read or written.
pub fn record(state: &Path, record: &UsageRecord, retried: bool) -> Result<(), UsageError> {
    let job_id = record.job;
    let line = Line::Slice(Box::new(record.clone()));
    let text = line
        .to_text()
        .map_err(|source| UsageError::Json { job_id, source })?;
    let key = record.key();
    let is_same = |earlier: &str| {
        // Few lines are of this job: only those are worth being parsed.
        earlier.contains(&job_id.to_string())
            && matches!(Line::parse(earlier), Ok(Line::Slice(earlier)) if earlier.key() == key)
    };
    append(state, text, retried.then_some(&is_same))
}

/// Appends the time of a GPU, once. Errors: the file cannot be opened, read or written.
pub fn record_gpu(state: &Path, gpu: &GpuTime) -> Result<(), UsageError> {
    let job_id = JobId(0);
    let text = Line::Gpu(gpu.clone())
        .to_text()
        .map_err(|source| UsageError::Json { job_id, source })?;
    let line = text.trim_end().to_owned();
    append(state, text, Some(&|earlier| earlier == line))
}

/// Appends why a slice ended, once. `unix`: when; `full`: that its job failed with a full slice.
/// Errors: the file cannot be opened, read or written.
pub fn record_end(
    state: &Path,
    key: &SliceKey,
    ended: Ended,
    unix: u64,
    full: Option<Full>,
) -> Result<(), UsageError> {
    let job_id = key.job;
    let text = Line::End(key.clone(), ended, unix, full)
        .to_text()
        .map_err(|source| UsageError::Json { job_id, source })?;
    let is_same = |earlier: &str| {
        earlier.contains(&job_id.to_string())
            && matches!(Line::parse(earlier), Ok(Line::End(earlier, ..)) if earlier == *key)
    };
    append(state, text, Some(&is_same))
}

/// Appends a line that [`Line::to_text`] made, unless a line of the last hours is the same by `is_same`.
/// Errors: the file cannot be opened, read or written.
pub fn append(
    state: &Path,
    mut text: String,
    is_same: Option<&dyn Fn(&str) -> bool>,
) -> Result<(), UsageError> {
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
    let length = file.seek(SeekFrom::End(0)).map_err(io("reading"))?;
    let from = length.saturating_sub(if is_same.is_some() { TAIL_BYTES } else { 1 });
    file.seek(SeekFrom::Start(from)).map_err(io("reading"))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).map_err(io("reading"))?;
    if let Some(is_same) = is_same
        && String::from_utf8_lossy(&tail).lines().any(is_same)
    {
        return Ok(());
    }
    // A line that was cut short by a crash must not swallow this one.
    if tail.last().is_some_and(|&byte| byte != b'\n') {
        text.insert(0, '\n');
    }
    // One write, so that two epilogs do not mix their lines. Not synced: it would cost every
    // epilog a disk write, and after a power failure Slurm's accounting still has the job.
    file.write_all(text.as_bytes()).map_err(io("writing"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use gpufrac_core::lease::Lease;
    use gpufrac_records::usage::{Elapsed, End, Kind};
    use test_examples::lease;

    fn of(lease: &Lease, unix: u64, boot_ms: u64, tally: Option<&Tally>) -> UsageRecord {
        let boot_id = "boot";
        let end = End {
            unix,
            boot_ms,
            boot_id,
        };
        UsageRecord::of(lease, end, tally)
    }

    /// 400 s after boot the examples' leases are written.
    fn record_of(lease: &Lease, seconds: u64) -> UsageRecord {
        of(lease, 1_000 + seconds, 400_000 + seconds * 1000, None)
    }

    fn lines(state: &Path) -> Vec<UsageRecord> {
        let text = std::fs::read_to_string(state.join(FILE)).unwrap();
        let lines = text.lines().filter_map(|line| Line::parse(line).ok());
        let slices = lines.filter_map(|line| match line {
            Line::Slice(record) => Some(*record),
            _ => None,
        });
        slices.collect()
    }

    /// Promise (admins): one usage record a slice, also after a crash.
    #[test]
    fn a_record_is_appended_and_not_repeated_by_a_retry() {
        let keep = tempfile::tempdir().unwrap();
        let state = keep.path().canonicalize().unwrap().join("state");
        let one = record_of(&lease(7), 60);
        assert_eq!((one.seconds, one.fraction.as_str()), (60, "0.25"));
        record(&state, &one, false).unwrap();
        record(&state, &record_of(&lease(8), 70), false).unwrap();
        record(&state, &record_of(&lease(7), 90), true).unwrap();
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
            record(&state, &record_of(&lease, 60), true).unwrap();
        }
        let slices: Vec<u32> = lines(&state).iter().map(|line| line.slice).collect();
        assert_eq!(slices, [0, 1]);
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next() {
        let keep = tempfile::tempdir().unwrap();
        let state = keep.path().canonicalize().unwrap();
        std::fs::write(state.join(FILE), "{\"version\":1,\"jo").unwrap();
        record(&state, &record_of(&lease(7), 60), false).unwrap();
        assert_eq!(lines(&state).len(), 1);
    }

    #[test]
    fn a_step_of_the_wall_clock_does_not_change_the_length() {
        // An hour forward after 60 s.
        let record = of(&lease(7), 1_000 + 3_660, 460_000, None);
        assert_eq!((record.seconds, record.end), (60, 4_660));
        // Back, to before the beginning.
        assert_eq!(of(&lease(7), 500, 460_000, None).seconds, 60);
    }

    #[test]
    fn measurements_of_the_reaper_are_found_by_slice() {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        let key = SliceKey::of(&lease(7));
        assert!(measured(&run, &key).unwrap().is_none());
        let (dir, _) = RootDir::create(&run.join(REAPER), 0o755).unwrap();
        assert!(measured(&run, &key).unwrap().is_none());
        let mut tally = Tally::new(key.clone());
        tally.add(Elapsed {
            time: Duration::from_secs(40),
            kind: Kind::Idle,
            activity: None,
            memory: None,
            source: "gpm",
            energy_mj: None,
        });
        let slices = vec![Tally::new(SliceKey::of(&lease(8))), tally];
        let tallies = Tallies {
            boot_id: "boot".to_owned(),
            slices,
        };
        let text = serde_json::to_string(&tallies).unwrap();
        dir.write(TALLIES, &text, 0o600).unwrap();
        let tally = measured(&run, &key).unwrap().unwrap();
        let record = of(&lease(7), 1_060, 460_000, Some(&tally));
        let used = record.used.unwrap();
        assert_eq!((used.idle, used.unknown), (40, 20));
        // Of another run of the job.
        let later = SliceKey {
            start: 1_001,
            ..key
        };
        assert!(measured(&run, &later).unwrap().is_none());
        dir.write(TALLIES, &text[..text.len() / 2], 0o600).unwrap();
        let error = measured(&run, &later).unwrap_err().to_string();
        assert!(error.contains("gpufrac-reaperd"), "{error}");
    }
}
