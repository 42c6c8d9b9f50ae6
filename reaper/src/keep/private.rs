//! Learns Slurm's `PrivateData`: from this host's slurm.conf as libslurm reads it, as slurmd does. slurmctld is not
//! asked, because each node would ask it all the time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpufrac_core::private_data::PrivateData;
use slurm_sys::client;

use crate::act::slurm::{self, SlurmError};

/// Where slurm.conf is, unless `SLURM_CONF` says it: in Debian's packages, and where slurmd keeps the file that it got
/// from slurmctld.
const FILES: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];
/// Rounds after which the files are read again although none changed: slurm.conf may include files of other folders.
const ROUNDS_BETWEEN_READINGS: u64 = 60;

/// Why `PrivateData` is not known.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDataError {
    /// There is no slurm.conf.
    #[error(
        "learning `PrivateData` failed: this host has no slurm.conf (`SLURM_CONF`, {}); leases and records stay as open or closed as they are",
        FILES.join(", ")
    )]
    NoFile,
    /// libslurm did not read the file.
    #[error(
        "learning `PrivateData` failed: {0}; leases and records stay as open or closed as they are"
    )]
    Slurm(#[from] SlurmError),
}

/// This host's slurm.conf.
fn conf_file() -> Option<PathBuf> {
    let named = std::env::var_os("SLURM_CONF").filter(|name| !name.is_empty());
    if let Some(named) = named {
        return Some(PathBuf::from(named)).filter(|path| path.exists());
    }
    let of_prefix = client::prefix().map(|prefix| prefix.join("etc/slurm.conf"));
    let files = of_prefix.into_iter().chain(FILES.map(PathBuf::from));
    files.into_iter().find(|path| path.exists())
}

/// The values of `PrivateData`.
///
/// # Errors
/// There is no slurm.conf, or libslurm cannot read it.
pub fn private_data() -> Result<PrivateData, PrivateDataError> {
    conf_file().ok_or(PrivateDataError::NoFile)?;
    let values = slurm::private_data()?;
    Ok(PrivateData {
        jobs: values.jobs,
        usage: values.usage,
        nodes: values.nodes,
    })
}

/// Says whether a file of Slurm's configuration changed: name, length and time of each.
type Stamp = Vec<(OsString, u64, Option<SystemTime>)>;

/// Follows the changes of `PrivateData`.
#[derive(Default)]
pub struct Privacy {
    stamp: Option<Stamp>,
    known: Option<PrivateData>,
    next_reading: u64,
}

impl Privacy {
    /// The values, read again where a file changed. The last ones after an error; None if they were never known.
    pub(crate) fn learn(&mut self, round: u64) -> (Option<PrivateData>, Option<PrivateDataError>) {
        let stamp = conf_file().map(|file| stamp(&file));
        let is_new = stamp.is_none() || self.stamp != stamp;
        if !is_new && round < self.next_reading {
            return (self.known, None);
        }
        match private_data() {
            Ok(values) => {
                self.stamp = stamp;
                self.next_reading = round + ROUNDS_BETWEEN_READINGS;
                self.known = Some(values);
                (self.known, None)
            }
            Err(error) => (self.known, Some(error)),
        }
    }
}

/// The files of the configuration beside `file`.
fn stamp(file: &Path) -> Stamp {
    let folder = file.parent().unwrap_or(file);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".conf"));
    let mut stamp: Stamp = files
        .filter_map(|entry| {
            // Configless nodes have links here.
            let meta = std::fs::metadata(entry.path()).ok()?;
            Some((entry.file_name(), meta.len(), meta.modified().ok()))
        })
        .collect();
    stamp.sort();
    stamp
}
