//! Follows Slurm's `PrivateData`.

use std::ffi::OsString;
use std::path::Path;
use std::time::SystemTime;

use gpufrac_core::private_data::PrivateData;
use gpufrac_node::slurm_call::private_data::{PrivateDataError, conf_file, private_data};

/// Rounds after which the files are read again although none changed: slurm.conf may include files of other folders.
const ROUNDS_BETWEEN_READINGS: u64 = 60;

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
