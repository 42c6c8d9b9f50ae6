//! The end of a lab, from the record in its folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::config;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::cgroups::Groups;
use crate::patience::poll_until;
use crate::process::Process;
use crate::{Folder, LabError, SlurmCommand, cgroups, daemons, leftovers, mps};

/// The record in the lab's folder, by which another program can stop the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name of the lab.
    pub name: Option<String>,
    pub nodes: Vec<String>,
    /// The control groups of each node.
    pub groups: Vec<Groups>,
    /// In the order of their start.
    pub processes: Vec<Process>,
    pub mounts: Vec<PathBuf>,
}

impl Record {
    pub fn new(name: Option<String>, nodes: Vec<String>, alone: bool) -> Self {
        let groups = |node: &String| if alone { Groups::Alone } else { Groups::Of(node.clone()) };
        Self {
            name,
            groups: nodes.iter().map(groups).collect(),
            nodes,
            processes: Vec::new(),
            mounts: Vec::new(),
        }
    }

    /// The record of the lab in a folder.
    pub fn read(folder: &Folder) -> Result<Self, LabError> {
        let path = folder.record();
        let text =
            fs::read_to_string(&path).map_err(LabError::file("no lab here: reading", &path))?;
        serde_json::from_str(&text).map_err(|error| LabError::file("reading", &path)(error.into()))
    }
}

/// Whether folders stay, for their logs.
pub(crate) fn keeps_folders() -> bool {
    std::env::var_os("GPUFRAC_LAB_KEEP").is_some()
}

/// Stops the lab in this folder and removes the folder.
/// Errors: the folder has no lab, or a control group cannot be removed.
pub fn stop_folder(root: &Path) -> Result<(), LabError> {
    stop_recorded(root, false)
}

/// Stops the lab whose folder this is.
pub(crate) fn stop_recorded(root: &Path, keep_folder: bool) -> Result<(), LabError> {
    let folder = Folder::new(root);
    let record = Record::read(&folder)?;
    end(&folder, &record)?;
    if keep_folder { Ok(()) } else { remove(root) }
}

/// Removes the folder of a lab. Killed processes of the lab may still have been writing there.
pub(crate) fn remove(root: &Path) -> Result<(), LabError> {
    let mut failure = None;
    let (limit, step) = (Duration::from_secs(2), Duration::from_millis(50));
    poll_until("the removal of the folder", limit, step, || {
        failure = fs::remove_dir_all(root).err();
        failure.is_none() || !root.exists()
    });
    match failure {
        Some(error) if root.exists() => Err(LabError::file("removing", root)(error)),
        _ => Ok(()),
    }
}

/// Cancels jobs so that their epilogs run, then stops daemons in reverse order, then all remaining processes.
pub(crate) fn end(folder: &Folder, record: &Record) -> Result<(), LabError> {
    // Without slurmctld the commands would wait for it.
    if leftovers::of_lab(folder)
        .iter()
        .any(|process| process.name == "slurmctld")
    {
        cancel_jobs(folder);
    }
    for process in record.processes.iter().rev() {
        daemons::stop(process, Signal::SIGTERM);
    }
    for process in leftovers::of_lab(folder) {
        process.signal(Signal::SIGKILL);
    }
    mps::kill(folder);
    let inside = mounted_below(folder.root());
    for path in inside.iter().rev().chain(&record.mounts) {
        match umount2(path, MntFlags::MNT_DETACH) {
            // Nothing is mounted there, or the folder does not exist.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(LabError::file("unmounting", path)(error.into())),
        }
    }
    for node in &record.nodes {
        // A file of `gpufrac node-setup` in a folder that all labs share.
        let _ = fs::remove_file(Path::new(config::NODES).join(node));
        let path = folder.gpufrac_conf().to_string_lossy().into_owned();
        let copy = config::last_good_name(node, &path);
        let _ = fs::remove_file(Path::new(config::LAST_GOOD).join(copy));
    }
    record.groups.iter().try_for_each(cgroups::remove)
}

/// Mounts of the lab's programs, which remain if an epilog never ran.
fn mounted_below(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let inside = places
        .map(PathBuf::from)
        .filter(|path| path.starts_with(root));
    inside.collect()
}

/// Gives jobs some seconds to end regularly. A failure is ignored.
fn cancel_jobs(folder: &Folder) {
    let squeue = || {
        let command = SlurmCommand::new(folder, "squeue").args(["-h", "-o", "%A"]);
        let jobs = command
            .limit(Duration::from_secs(5))
            .stdout()
            .unwrap_or_default();
        jobs.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let jobs = squeue();
    if jobs.is_empty() {
        return;
    }
    let _ = SlurmCommand::new(folder, "scancel")
        .args(jobs)
        .limit(Duration::from_secs(5))
        .run();
    let (limit, step) = (Duration::from_secs(5), Duration::from_millis(50));
    poll_until("the end of all jobs", limit, step, || squeue().is_empty());
}
