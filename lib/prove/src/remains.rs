//! What a run changes, on disk before each change, so that the next run puts back what a killed one left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::UserId;
use gpufrac_host::files::{DeviceNumber, FileError, RootDir};
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};

/// The file in `<run>`.
const FILE: &str = "prove";
/// The folder of the capabilities' device nodes below `driver_root`.
const NODES: &str = "dev/nvidia-caps";

/// What a run has changed, or is about to change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The UUID of the GPU.
    pub gpu: String,
    /// Whether MIG mode was on before the run.
    pub mig: bool,
    /// The places at which the run makes instances now: profile id and placement.
    pub places: Vec<(u32, Placement)>,
    /// The device nodes of capabilities before the run.
    pub nodes: Nodes,
}

/// Device nodes by name.
pub type Nodes = BTreeMap<String, NodeState>;

/// A device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Major and minor number.
    pub number: (u32, u32),
    /// The user who owns it.
    pub owner: u32,
    pub mode: u32,
}

pub struct IntentFile {
    dir: RootDir,
}

impl IntentFile {
    /// In `<run>`, which is made if it is missing.
    /// Errors: the folder cannot be made, or others than root can change it.
    pub fn open(run: &Path) -> Result<IntentFile, FileError> {
        let (dir, _) = RootDir::create(run, 0o755)?;
        Ok(IntentFile { dir })
    }

    /// The intent of a killed run; None if there is none. Errors: the file cannot be read.
    pub fn read(&self) -> Result<Option<Intent>, FileError> {
        let text = self.dir.read(FILE)?;
        // A file of another version names nothing that this one could put back.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Writes an intent. Errors: the file cannot be written.
    pub fn write(&self, intent: &Intent) -> Result<(), FileError> {
        let text = serde_json::to_string(intent).unwrap_or_default();
        self.dir.write(FILE, &text, 0o600)
    }

    /// Removes it. Errors: the file cannot be removed.
    pub fn remove(&self) -> Result<(), FileError> {
        self.dir.remove(FILE).map(|_| ())
    }
}

fn folder(driver_root: &Path) -> PathBuf {
    driver_root.join(NODES)
}

/// The device nodes of capabilities now.
pub fn nodes(driver_root: &Path) -> Nodes {
    let entries = fs::read_dir(folder(driver_root)).into_iter().flatten();
    let states = entries.flatten().filter_map(|entry| {
        let found = entry.path().symlink_metadata().ok()?;
        found.file_type().is_char_device().then(|| {
            let state = NodeState {
                number: (major(found.rdev()) as u32, minor(found.rdev()) as u32),
                owner: found.uid(),
                mode: found.mode() & 0o7777,
            };
            (entry.file_name().to_string_lossy().into_owned(), state)
        })
    });
    states.collect()
}

/// The state of one device node; None if it does not exist.
pub fn node(driver_root: &Path, minor: u32) -> Option<NodeState> {
    nodes(driver_root).remove(&name_of(minor))
}

/// The name of a capability's device node.
pub fn name_of(minor: u32) -> String {
    format!("nvidia-cap{minor}")
}

/// Removes the device nodes that were not there before, and gives the others their owner and mode again.
/// Errors: a node cannot be changed.
pub fn restore_nodes(driver_root: &Path, before: &Nodes) -> Result<(), FileError> {
    let now = nodes(driver_root);
    if now == *before {
        return Ok(());
    }
    let dir = RootDir::open(&folder(driver_root))?;
    for name in now.keys().filter(|name| !before.contains_key(*name)) {
        dir.remove(name)?;
    }
    for (name, was) in before
        .iter()
        .filter(|(name, was)| now.get(*name) != Some(was))
    {
        let (major, minor) = was.number;
        let number = DeviceNumber { major, minor };
        dir.ensure_device(name, number, UserId(was.owner), was.mode)?;
    }
    Ok(())
}
