//! Compute processes of a node.
//!
//! Each registers itself with a file of its own in `ROOT/procs`, where everyone may write. When it ends, the
//! file is made read-only and its time of change tells when, so that what it did is not lost. Nothing
//! appears or vanishes in the folder then: a reader under way sees the process as it was or as it is.
//! A process that is killed leaves a file that is still writable, and whose time of change is that of its
//! last [`Process::beat`].

use std::fs::{self, DirEntry, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::store::StoreError;

/// A compute process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in the kernel's ticks: with the pid, this names one process for ever.
    pub start_ticks: u64,
    /// Command, as NVML reports it.
    pub name: String,
    /// The GPU that it runs on.
    pub gpu_uuid: String,
    /// Serials of GPU instance and compute instance, on a GPU in MIG mode.
    pub instance: Option<(u64, u64)>,
    /// Device memory that it holds.
    pub memory_mib: u64,
    /// How busy it is.
    pub pattern: Pattern,
    /// When the pattern began, in microseconds since 1970.
    pub began_us: u64,
}

/// How often a program is to call [`Process::beat`].
pub const BEAT: Duration = Duration::from_millis(50);
/// How long it is known what a process did that has ended.
const KEPT: Duration = Duration::from_secs(20);
/// How long one reading of all files serves those who ask for one instance after the other.
const RECENT: Duration = Duration::from_millis(2);

const LIVING: u32 = 0o644;
const ENDED: u32 = 0o444;

/// What a process is to MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Nothing.
    Alone,
    /// A server.
    Server,
    /// A client of the server with this pid.
    Client(u32),
}

/// A process that is on the list, or was.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The process.
    pub process: Process,
    /// What it is to MPS.
    pub role: Role,
    /// When it ended, in microseconds since 1970.
    pub ended_us: Option<u64>,
}

/// What a file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    process: Process,
    role: Role,
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// Microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    micros(SystemTime::now())
}

/// Start time of a process in ticks; `None` when there is none, or only its corpse.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may contain anything, parentheses too.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

impl Process {
    /// One process may come and go more than once: the moment tells its lives apart.
    fn path(&self, root: &Path) -> PathBuf {
        let (pid, ticks, began) = (self.pid, self.start_ticks, self.began_us);
        root.join("procs").join(format!("{pid}.{ticks}.{began}"))
    }

    /// Registers the process. Callers hold the node's lock and have checked that the instance
    /// is there and has the memory.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn register(&self, root: &Path) -> Result<(), StoreError> {
        self.register_as(root, Role::Alone)
    }

    /// As [`Process::register`], for a process of MPS.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn register_as(&self, root: &Path, role: Role) -> Result<(), StoreError> {
        let path = self.path(root);
        // Whoever registers a server may be another user than the last who tried.
        let hidden = root
            .join("procs")
            .join(format!(".{}.{}", self.pid, std::process::id()));
        let stored = Stored {
            process: self.clone(),
            role,
        };
        let text = serde_json::to_vec(&stored).map_err(|error| StoreError::Content {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        fs::write(&hidden, text).map_err(StoreError::io(&hidden))?;
        fs::set_permissions(&hidden, Permissions::from_mode(LIVING))
            .map_err(StoreError::io(&hidden))?;
        fs::rename(&hidden, &path).map_err(StoreError::io(&path))
    }

    /// Says that the process lives. Should it be killed, what it did is known up to here.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn beat(&self, root: &Path) -> Result<(), StoreError> {
        let path = self.path(root);
        File::open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .map_err(StoreError::io(&path))
    }

    /// Takes the process off the list. What it did stays known for a while.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn remove(&self, root: &Path) -> Result<(), StoreError> {
        let path = self.path(root);
        let ended = File::open(&path).and_then(|file| {
            file.set_modified(SystemTime::now())?;
            file.set_permissions(Permissions::from_mode(ENDED))
        });
        match ended {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(&path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Busy microseconds from its start to this moment.
    #[must_use]
    pub fn busy_us(&self, at_us: u64) -> f64 {
        let age = at_us.saturating_sub(self.began_us) as f64 / 1e6;
        self.pattern.busy_seconds(age) * 1e6
    }
}

impl Record {
    /// One life of one process.
    #[must_use]
    pub fn life(&self) -> (u32, u64, u64) {
        let process = &self.process;
        (process.pid, process.start_ticks, process.began_us)
    }

    /// Busy microseconds from its start to this moment.
    #[must_use]
    pub fn busy_us(&self, at_us: u64) -> f64 {
        let end = self.ended_us.unwrap_or(u64::MAX);
        self.process.busy_us(at_us.min(end))
    }

    /// Busy part (0 to 1) of the time between two moments.
    #[must_use]
    pub fn utilization(&self, from_us: u64, to_us: u64) -> f64 {
        let length = to_us.saturating_sub(from_us) as f64;
        if length == 0.0 {
            return 0.0;
        }
        (self.busy_us(to_us) - self.busy_us(from_us)) / length
    }

    /// The pid to which NVML ascribes what it does: a client of MPS works through its server.
    #[must_use]
    pub fn worker(&self) -> u32 {
        match self.role {
            Role::Client(server) => server,
            Role::Alone | Role::Server => self.process.pid,
        }
    }
}

/// Pid and start time that the name of a file tells.
fn named(entry: &DirEntry) -> Option<(u32, u64)> {
    let name = entry.file_name();
    let mut words = name.to_str()?.split('.');
    let pid = words.next()?.parse().ok()?;
    Some((pid, words.next()?.parse().ok()?))
}

/// When the process of a file ended; `None` while it lives.
fn end(file: &Metadata, pid: u32, ticks: u64) -> io::Result<Option<SystemTime>> {
    let changed = file.modified()?;
    if file.permissions().mode() & 0o777 == ENDED {
        return Ok(Some(changed));
    }
    if start_ticks(pid) == Some(ticks) {
        return Ok(None);
    }
    // Killed between two beats. The later one is right: who looked before saw it live longer than the
    // earlier one says.
    Ok(Some((changed + BEAT).min(SystemTime::now())))
}

/// The processes whose files pass.
fn read(root: &Path, wanted: impl Fn(Option<u64>) -> bool) -> Result<Vec<Record>, StoreError> {
    let folder = root.join("procs");
    let mut records = Vec::new();
    for entry in fs::read_dir(&folder).map_err(StoreError::io(&folder))? {
        let entry = entry.map_err(StoreError::io(&folder))?;
        let Some((pid, ticks)) = named(&entry) else {
            continue;
        };
        // A file that vanishes under our eyes was too old.
        let Ok(end) = entry.metadata().and_then(|file| end(&file, pid, ticks)) else {
            continue;
        };
        if end.is_some_and(|end| end.elapsed().is_ok_and(|age| age > KEPT)) {
            // Only its owner and root can remove it; whoever cannot, need not.
            let _ = fs::remove_file(entry.path());
            continue;
        }
        let ended_us = end.map(micros);
        if !wanted(ended_us) {
            continue;
        }
        let Ok(bytes) = fs::read(entry.path()) else {
            continue;
        };
        if let Ok(Stored { process, role }) = serde_json::from_slice(&bytes)
            && (process.pid, process.start_ticks) == (pid, ticks)
        {
            records.push(Record {
                process,
                role,
                ended_us,
            });
        }
    }
    records.sort_by_key(Record::life);
    Ok(records)
}

/// The processes that are alive, by pid.
///
/// # Errors
/// What the file system answers.
pub fn live(root: &Path) -> Result<Vec<Process>, StoreError> {
    let records = present(root)?;
    Ok(records.into_iter().map(|record| record.process).collect())
}

/// As [`live`], with what they are to MPS.
///
/// # Errors
/// What the file system answers.
pub fn present(root: &Path) -> Result<Vec<Record>, StoreError> {
    read(root, |ended| ended.is_none())
}

/// The processes that are alive, and those that have ended after this moment, as far as they are
/// still known.
///
/// # Errors
/// What the file system answers.
pub fn since(root: &Path, from_us: u64) -> Result<Vec<Record>, StoreError> {
    read(root, |ended| ended.is_none_or(|ended| ended > from_us))
}

/// Of which folder, when, and what was in it.
type Reading = (PathBuf, Instant, Arc<Vec<Record>>);

/// As [`since`] the beginning, as it was a moment ago: an exporter asks for every instance in a row, and
/// each reading takes time with the number of processes.
///
/// # Errors
/// What the file system answers.
pub fn recent(root: &Path) -> Result<Arc<Vec<Record>>, StoreError> {
    static LAST: Mutex<Option<Reading>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, at, records)) = last.as_ref()
        && known == root
        && at.elapsed() < RECENT
    {
        return Ok(Arc::clone(records));
    }
    let records = Arc::new(since(root, 0)?);
    *last = Some((root.to_owned(), Instant::now(), Arc::clone(&records)));
    Ok(records)
}
