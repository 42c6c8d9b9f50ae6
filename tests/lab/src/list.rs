//! The labs that have a name, for `cargo xtask lab`.

use std::fs;
use std::path::Path;

use crate::ending::Record;
use crate::process::Process;
use crate::{Folder, LabError};

/// A lab with a name.
#[derive(Debug)]
pub struct Listed {
    pub name: String,
    pub folder: Folder,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// Names of daemons that ended unexpectedly.
    pub ended: Vec<String>,
}

/// The labs with a name whose folders are in `place`, by name, with those that are being started.
/// Errors: `place` cannot be read.
pub fn list(place: &Path) -> Result<Vec<Listed>, LabError> {
    let entries = fs::read_dir(place).map_err(LabError::file("reading", place))?;
    let listed = |entry: fs::DirEntry| {
        let folder = Folder::new(entry.path());
        let record = Record::read(&folder).ok()?;
        let ended = |process: &&Process| !process.is_alive();
        let ended = record.processes.iter().filter(ended);
        Some(Listed {
            name: record.name?,
            ended: ended.map(|process| process.name.clone()).collect(),
            nodes: record.nodes,
            folder,
        })
    };
    let mut labs: Vec<_> = entries.flatten().filter_map(listed).collect();
    labs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(labs)
}
