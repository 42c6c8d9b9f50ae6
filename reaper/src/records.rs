//! The records of [`crate::evidence`] on disk: `<run>/reaper/jobs/JOB.json` while a job holds its slice,
//! `<state>/reaper/JOB-CREATED.json` for days once anything was decided, and the same in the folder
//! that nodes share, with the node in its name.

use std::path::Path;
use std::time::{Duration, SystemTime};

use gpufrac_node::files::{FileError, RootDir};

use crate::evidence::{Record, VERSION};
use crate::peers::{PeerError, Peers};
use crate::watch::Key;

/// Anybody may read why a job ended.
const MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// The folders of this node.
pub struct Records {
    living: RootDir,
    kept: RootDir,
}

impl Records {
    /// Opens them, or makes them.
    ///
    /// # Errors
    /// A folder is not root's alone.
    pub fn open(run: &Path, state: &Path) -> Result<Records, FileError> {
        let (living, _) = RootDir::create(&run.join("reaper/jobs"), FOLDER_MODE)?;
        let (kept, _) = RootDir::create(&state.join("reaper"), FOLDER_MODE)?;
        Ok(Records { living, kept })
    }

    /// What an earlier run of the daemon wrote of this run of this job.
    ///
    /// # Errors
    /// The file can not be read.
    pub fn read(&self, key: Key) -> Result<Option<Record>, FileError> {
        let text = self.living.read(&name(key.job_id))?.unwrap_or_default();
        let record: Option<Record> = serde_json::from_str(&text).ok();
        Ok(record.filter(|record| record.version == VERSION && key_of(record) == key))
    }

    /// Writes the record of a living job.
    ///
    /// # Errors
    /// The file can not be written.
    pub fn write(&self, record: &Record) -> Result<(), FileError> {
        self.living.write(&name(record.job), &text(record), MODE)
    }

    /// Keeps a record with a decision, also after the job and after a reboot.
    ///
    /// # Errors
    /// A file can not be written.
    pub fn keep(&self, record: &Record, peers: &Peers) -> Result<(), PeerError> {
        let (job, created) = (record.job, record.created_unix);
        self.kept
            .write(&format!("{job}-{created}.json"), &text(record), MODE)?;
        if let Some(shared) = peers.records()? {
            let name = format!("{job}-{}-{created}.json", record.node);
            shared.write(&name, &text(record), MODE)?;
        }
        Ok(())
    }

    /// The job holds nothing any more.
    ///
    /// # Errors
    /// The file can not be removed.
    pub fn end(&self, job: u32) -> Result<(), FileError> {
        self.living.remove(&name(job)).map(|_| ())
    }

    /// Removes the living records of jobs that are not here.
    ///
    /// # Errors
    /// The folder can not be read or written.
    pub fn tidy(&self, is_here: impl Fn(u32) -> bool) -> Result<(), FileError> {
        for name in self.living.names()? {
            let job = name.strip_suffix(".json").and_then(|job| job.parse().ok());
            if job.is_none_or(|job| !is_here(job)) {
                self.living.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes kept records that are older than `age`. In the shared folder each node removes its own.
    ///
    /// # Errors
    /// A folder can not be read or written.
    pub fn purge(&self, age: Duration, node: &str, peers: &Peers) -> Result<(), PeerError> {
        purge(&self.kept, age, |_| true)?;
        if let Some(shared) = peers.records()? {
            let own = format!("-{node}-");
            purge(&shared, age, |name| name.contains(&own))?;
        }
        Ok(())
    }
}

fn purge(dir: &RootDir, age: Duration, mine: impl Fn(&str) -> bool) -> Result<(), FileError> {
    for name in dir.names()?.iter().filter(|name| mine(name)) {
        let changed = std::fs::symlink_metadata(dir.path().join(name)).and_then(|m| m.modified());
        let old = changed
            .ok()
            .and_then(|changed| SystemTime::now().duration_since(changed).ok());
        if old.is_some_and(|old| old > age) {
            dir.remove(name)?;
        }
    }
    Ok(())
}

fn name(job: u32) -> String {
    format!("{job}.json")
}

fn text(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

fn key_of(record: &Record) -> Key {
    Key {
        job_id: record.job,
        restart_count: record.restart_count,
        created_unix: record.created_unix,
    }
}
