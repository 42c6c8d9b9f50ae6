//! Compute processes of a node.
//!
//! Each registers itself with a file of its own in `ROOT/procs`, where everyone may write.
//! Files of processes that are no more count for nothing.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
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
    fn path(&self, root: &Path) -> PathBuf {
        root.join("procs")
            .join(format!("{}.{}", self.pid, self.start_ticks))
    }

    /// Registers the process. Callers hold the node's lock and have checked that the instance
    /// is there and has the memory.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn register(&self, root: &Path) -> Result<(), StoreError> {
        let path = self.path(root);
        let hidden = root
            .join("procs")
            .join(format!(".{}.{}", self.pid, self.start_ticks));
        let text = serde_json::to_vec(self).map_err(|error| StoreError::Content {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        fs::write(&hidden, text).map_err(StoreError::io(&hidden))?;
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o644))
            .map_err(StoreError::io(&hidden))?;
        fs::rename(&hidden, &path).map_err(StoreError::io(&path))
    }

    /// Takes the process off the list.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn remove(&self, root: &Path) -> Result<(), StoreError> {
        let path = self.path(root);
        match fs::remove_file(&path) {
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

    /// Busy part (0 to 1) of the time between two moments.
    #[must_use]
    pub fn utilization(&self, from_us: u64, to_us: u64) -> f64 {
        let length = to_us.saturating_sub(from_us) as f64;
        if length == 0.0 {
            return 0.0;
        }
        (self.busy_us(to_us) - self.busy_us(from_us)) / length
    }
}

/// The processes that are alive, by pid.
///
/// # Errors
/// What the file system answers.
pub fn live(root: &Path) -> Result<Vec<Process>, StoreError> {
    let folder = root.join("procs");
    let mut processes = Vec::new();
    for entry in fs::read_dir(&folder).map_err(StoreError::io(&folder))? {
        let entry = entry.map_err(StoreError::io(&folder))?;
        let name = entry.file_name();
        let Some((pid, ticks)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let (Ok(pid), Ok(ticks)) = (pid.parse::<u32>(), ticks.parse::<u64>()) else {
            continue;
        };
        if start_ticks(pid) != Some(ticks) {
            // Only its owner and root can remove it; whoever cannot, need not.
            let _ = fs::remove_file(entry.path());
            continue;
        }
        // A file that vanishes under our eyes is a process that has just ended.
        let Ok(bytes) = fs::read(entry.path()) else {
            continue;
        };
        if let Ok(process) = serde_json::from_slice::<Process>(&bytes)
            && process.pid == pid
            && process.start_ticks == ticks
        {
            processes.push(process);
        }
    }
    processes.sort_by_key(|process| process.pid);
    Ok(processes)
}
