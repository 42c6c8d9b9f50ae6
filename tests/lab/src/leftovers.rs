//! Finds processes that belong to a lab but are not children of it: slurmstepds and what jobs
//! left running.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Folder;
use crate::process::Process;

/// The processes whose environment names this lab's slurm.conf, or which hold a file of the lab open
/// as a slurmstepd (it overwrites its own environment with its title).
pub(crate) fn of_lab(folder: &Folder) -> Vec<Process> {
    let mark = [
        b"SLURM_CONF=",
        folder.slurm_conf().as_os_str().as_bytes(),
        b"\0",
    ]
    .concat();
    let own = std::process::id();
    let mut found = Vec::new();
    for pid in numeric_entries(Path::new("/proc")) {
        if u32::try_from(pid) == Ok(own) {
            continue;
        }
        let proc = Path::new("/proc").join(pid.to_string());
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let name = name.trim();
        let marked = fs::read(proc.join("environ"))
            .is_ok_and(|environ| environ.windows(mark.len()).any(|window| window == mark));
        if (marked || (name == "slurmstepd" && holds_file_under(&proc, folder.root())))
            && let Some(process) = Process::observe(name, pid)
        {
            found.push(process);
        }
    }
    found
}

fn holds_file_under(proc: &Path, root: &Path) -> bool {
    fs::read_dir(proc.join("fd")).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(root)))
    })
}

/// The entries of a folder whose names are numbers.
pub(crate) fn numeric_entries(folder: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
