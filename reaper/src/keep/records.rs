//! The files of the daemon: its state in `<run>/reaper`; the records of [`gpufrac_records::evidence`] in
//! `<run>/reaper/jobs/JOB.json` while a job has its slice; in `<state>/reaper/JOB-CREATED.json` for days if there was
//! a decision; and there also in the shared folder, with the node in the name.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_records::evidence::{Record, VERSION};

use crate::judge::peers::{PeerError, Peers};
use crate::keep::state::{Memory, State, UnusableState};
use crate::key::Key;

/// All users may read why a job ended, where the folder is open to them ([`gpufrac_node::state::private`]).
const RECORD_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// The folders of this node.
pub struct Records {
    dir: RootDir,
    living: RootDir,
    kept: RootDir,
}

impl Records {
    /// Opens the folders, or creates them. Errors: users other than root can change a folder.
    pub fn open(run: &Path, state: &Path) -> Result<Records, FileError> {
        let (dir, _) = RootDir::create(&run.join("reaper"), FOLDER_MODE)?;
        let (living, _) = RootDir::create(&run.join("reaper/jobs"), FOLDER_MODE)?;
        let (kept, _) = RootDir::create(&state.join("reaper"), FOLDER_MODE)?;
        Ok(Records { dir, living, kept })
    }
}

impl Memory for Records {
    fn load(&self) -> Result<(State, Option<UnusableState>), FileError> {
        State::load(&self.dir)
    }

    fn save(&self, state: &State) -> Result<(), FileError> {
        state.save(&self.dir)
    }

    fn read(&self, key: Key) -> Result<Option<Record>, FileError> {
        let text = self.living.read(&name(key.job_id))?.unwrap_or_default();
        let record: Option<Record> = serde_json::from_str(&text).ok();
        Ok(record.filter(|record| record.version == VERSION && key_of(record) == key))
    }

    fn write(&self, record: &Record) -> Result<(), FileError> {
        self.living
            .write(&name(record.job), &text(record), RECORD_MODE)
    }

    fn keep(&self, record: &Record, peers: &Peers) -> Result<(), PeerError> {
        self.kept
            .write(&kept_name(record), &text(record), RECORD_MODE)?;
        if let Some(shared) = peers.records()? {
            shared.write(&shared_name(record), &text(record), RECORD_MODE)?;
        }
        Ok(())
    }

    fn end(&self, job: JobId) -> Result<(), FileError> {
        self.living.remove(&name(job)).map(|_| ())
    }

    fn tidy(&self, is_here: &dyn Fn(JobId) -> bool) -> Result<(), FileError> {
        tidy(&self.living, is_here)
    }

    fn purge(&self, before: Duration, peers: &Peers) -> Result<(), PeerError> {
        purge(&self.kept, before, |_| true)?;
        if let Some(shared) = peers.records()? {
            purge(&shared, before, is_of(&peers.node))?;
        }
        Ok(())
    }
}

/// Removes the records of jobs for which `is_here` is false.
pub(super) fn tidy(dir: &RootDir, is_here: &dyn Fn(JobId) -> bool) -> Result<(), FileError> {
    for name in dir.names()? {
        let job = name.strip_suffix(".json").and_then(|job| job.parse().ok());
        if job.is_none_or(|job| !is_here(job)) {
            dir.remove(&name)?;
        }
    }
    Ok(())
}

/// Removes files that were last changed before `before`, a time since 1970.
pub(super) fn purge(
    dir: &RootDir,
    before: Duration,
    mine: impl Fn(&str) -> bool,
) -> Result<(), FileError> {
    for name in dir.names()?.iter().filter(|name| mine(name)) {
        let changed = std::fs::symlink_metadata(dir.path().join(name)).and_then(|m| m.modified());
        let changed = changed
            .ok()
            .and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
        if changed.is_some_and(|changed| changed < before) {
            dir.remove(name)?;
        }
    }
    Ok(())
}

pub(super) fn name(job: JobId) -> String {
    format!("{job}.json")
}

pub(super) fn kept_name(record: &Record) -> String {
    format!("{}-{}.json", record.job, record.created_unix)
}

/// The name of a kept record in the shared folder.
pub(super) fn shared_name(record: &Record) -> String {
    format!(
        "{}-{}-{}.json",
        record.job, record.node, record.created_unix
    )
}

/// Points and events of a record: it is written when they grow.
pub(crate) fn size(record: &Record) -> (usize, usize) {
    (record.series.points.len(), record.events.len())
}

/// Whether a kept record in the shared folder is of this node, by its name.
pub(super) fn is_of(node: &str) -> impl Fn(&str) -> bool + use<> {
    let own = format!("-{node}-");
    move |name| name.contains(&own)
}

pub(super) fn text(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

fn key_of(record: &Record) -> Key {
    Key {
        job_id: record.job,
        restart_count: record.restart_count,
        created_unix: record.created_unix,
    }
}
