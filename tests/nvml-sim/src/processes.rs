//! Compute processes of a node.
//!
//! Each registers itself by a file in `ROOT/procs`, which all users can write. When it ends, the file is made
//! read-only, and its modification time is the time of the end, so that the activity is not lost. No file appears or
//! disappears in the folder at that moment, so a reader sees the process as it was or as it is. A killed process
//! leaves a writable file, whose modification time is that of its last [`Process::beat`].

use std::fs::{self, DirEntry, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::pattern::Pattern;

/// A compute process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in the kernel's ticks; together with the pid it identifies a process.
    pub start_ticks: u64,
    /// The command name in NVML.
    pub name: String,
    /// The GPU that it runs on.
    pub gpu_uuid: String,
    /// Serials of GPU instance and compute instance, on a GPU in MIG mode.
    pub instance: Option<(u64, u64)>,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// The pattern of activity.
    pub pattern: Pattern,
    /// When the pattern began, in microseconds since 1970.
    pub began_us: u64,
}

/// How often a program must call [`Process::beat`].
pub const BEAT: Duration = Duration::from_millis(50);
/// How long the activity of an ended process is kept.
const KEPT: Duration = Duration::from_secs(20);
/// How long one reading of all files is reused for callers that query one instance after the other.
const RECENT: Duration = Duration::from_millis(2);

const LIVING: u32 = 0o644;
const ENDED: u32 = 0o444;

/// The role of a process in MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Without MPS.
    Alone,
    Server,
    /// A client of the server with this pid.
    Client(u32),
}

/// A running or ended process.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub process: Process,
    /// Its role in MPS.
    pub role: Role,
    /// When it ended, in microseconds since 1970.
    pub ended_us: Option<u64>,
}

/// The content of a file.
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
pub fn now_us() -> u64 {
    micros(SystemTime::now())
}

/// Start time of a process in ticks; None if there is none, or only a zombie.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may contain any character, even parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

impl Process {
    /// A process may register more than once; the time distinguishes its lives.
    fn path(&self, root: &Path) -> PathBuf {
        let (pid, ticks, began) = (self.pid, self.start_ticks, self.began_us);
        root.join("procs").join(format!("{pid}.{ticks}.{began}"))
    }

    /// Registers the process. Callers hold the node's lock and have checked that the instance exists and has the
    /// memory. Errors: the file system fails.
    pub fn register(&self, root: &Path) -> Result<(), StoreError> {
        self.register_as(root, Role::Alone)
    }

    /// As [`Process::register`], for a process of MPS. Errors: the file system fails.
    pub fn register_as(&self, root: &Path, role: Role) -> Result<(), StoreError> {
        let path = self.path(root);
        // The user who registers a server may differ from the last one who tried.
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

    /// Reports that the process is alive. If it is killed later, its activity is known up to this moment.
    /// Errors: the file system fails.
    pub fn beat(&self, root: &Path) -> Result<(), StoreError> {
        let path = self.path(root);
        File::open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .map_err(StoreError::io(&path))
    }

    /// Marks the process as ended. Its activity is kept for a while. Errors: the file system fails.
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

    /// Busy microseconds from its start to `at_us`.
    pub fn busy_us(&self, at_us: u64) -> f64 {
        let age = at_us.saturating_sub(self.began_us) as f64 / 1e6;
        self.pattern.busy_seconds(age) * 1e6
    }
}

impl Record {
    /// The key of one life of a process.
    pub fn life(&self) -> (u32, u64, u64) {
        let process = &self.process;
        (process.pid, process.start_ticks, process.began_us)
    }

    /// Busy microseconds from its start to `at_us`.
    pub fn busy_us(&self, at_us: u64) -> f64 {
        let end = self.ended_us.unwrap_or(u64::MAX);
        self.process.busy_us(at_us.min(end))
    }

    /// The busy part (0 to 1) of the time between two moments.
    pub fn utilization(&self, from_us: u64, to_us: u64) -> f64 {
        let length = to_us.saturating_sub(from_us) as f64;
        if length == 0.0 {
            return 0.0;
        }
        (self.busy_us(to_us) - self.busy_us(from_us)) / length
    }

    /// The pid to which NVML attributes its activity: for an MPS client that of its server.
    pub fn worker(&self) -> u32 {
        match self.role {
            Role::Client(server) => server,
            Role::Alone | Role::Server => self.process.pid,
        }
    }
}

/// In ROOT: a file for each process that holds a device without a context, as monitoring does: `PID.START.UUID`.
const AGENTS: &str = "agents";

/// The name under which the counters of a GPU are held, which holds the GPU too.
pub fn profiling(gpu_uuid: &str) -> String {
    format!("profiling-{gpu_uuid}")
}

/// Lets a process hold a device for as long as it lives, and be on no list of processes: a GPU, whose MIG mode stays;
/// an instance, by its MIG UUID, which cannot be destroyed; or what [`profiling`] names.
/// Errors: the answer of the file system.
pub fn hold(root: &Path, pid: u32, device: &str) -> Result<(), StoreError> {
    let folder = root.join(AGENTS);
    fs::create_dir_all(&folder).map_err(StoreError::io(&folder))?;
    let ticks = start_ticks(pid).unwrap_or_default();
    let path = folder.join(format!("{pid}.{ticks}.{device}"));
    fs::write(&path, "").map_err(StoreError::io(&path))
}

/// As the device of [`hold`]: the GPU's MIG mode can be switched, and its first instance is refused, as a display, peer
/// access or a channel of the driver's own does.
pub fn parent(gpu_uuid: &str) -> String {
    format!("{gpu_uuid}.parent")
}

/// Whether a process that lives holds a device in this way.
pub fn is_held(root: &Path, device: &str) -> bool {
    let entries = fs::read_dir(root.join(AGENTS)).into_iter().flatten();
    entries.flatten().any(|entry| {
        let is_of_device = entry.file_name().to_string_lossy().ends_with(device);
        is_of_device && named(&entry).is_some_and(|(pid, ticks)| start_ticks(pid) == Some(ticks))
    })
}

/// Pid and start time in the name of a file.
fn named(entry: &DirEntry) -> Option<(u32, u64)> {
    let name = entry.file_name();
    let mut words = name.to_str()?.split('.');
    let pid = words.next()?.parse().ok()?;
    Some((pid, words.next()?.parse().ok()?))
}

/// The time when the process of a file ended; None while it lives.
fn end(file: &Metadata, pid: u32, ticks: u64) -> io::Result<Option<SystemTime>> {
    let changed = file.modified()?;
    if file.permissions().mode() & 0o777 == ENDED {
        return Ok(Some(changed));
    }
    if start_ticks(pid) == Some(ticks) {
        return Ok(None);
    }
    // It was killed between two beats. The later one is used, because an earlier reader saw it alive after the
    // earlier one.
    Ok(Some((changed + BEAT).min(SystemTime::now())))
}

/// The processes whose files `wanted` accepts.
fn read(root: &Path, wanted: impl Fn(Option<u64>) -> bool) -> Result<Vec<Record>, StoreError> {
    let folder = root.join("procs");
    let mut records = Vec::new();
    for entry in fs::read_dir(&folder).map_err(StoreError::io(&folder))? {
        let entry = entry.map_err(StoreError::io(&folder))?;
        let Some((pid, ticks)) = named(&entry) else {
            continue;
        };
        // A file that disappears now was too old.
        let Ok(end) = entry.metadata().and_then(|file| end(&file, pid, ticks)) else {
            continue;
        };
        if end.is_some_and(|end| end.elapsed().is_ok_and(|age| age > KEPT)) {
            // Only its owner and root can remove it; a failure does not matter.
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

/// The live processes, by pid. Errors: the file system fails.
pub fn live(root: &Path) -> Result<Vec<Process>, StoreError> {
    let records = present(root)?;
    Ok(records.into_iter().map(|record| record.process).collect())
}

/// As [`live`], with their roles in MPS. Errors: the file system fails.
pub fn present(root: &Path) -> Result<Vec<Record>, StoreError> {
    read(root, |ended| ended.is_none())
}

/// The live processes, and those that ended after `from_us`, as far as they are kept. Errors: the file system fails.
pub fn since(root: &Path, from_us: u64) -> Result<Vec<Record>, StoreError> {
    read(root, |ended| ended.is_none_or(|ended| ended > from_us))
}

/// Folder, time and content of a reading.
type Reading = (PathBuf, Instant, Arc<Vec<Record>>);

/// As [`since`] the beginning, possibly from a moment ago: an exporter queries every instance in a row, and each
/// reading takes time in proportion to the number of processes. Errors: the file system fails.
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
