//! Finds processes that belong to a lab but were not started by it: slurmstepds, daemons that put themselves in the
//! background or that Slurm started, and prologs and epilogs whose slurmd is gone. Jobs are found by their control groups.

use std::fs;
use std::path::Path;

use crate::Folder;
use crate::process::Process;

/// Daemons of Slurm that hold a file of the lab open, and programs that were installed in the lab.
///
/// The environment is no mark: a person who works with the lab exports its `SLURM_CONF` too.
pub(crate) fn of_lab(folder: &Folder) -> Vec<Process> {
    let mut found = Vec::new();
    for pid in numeric_entries(Path::new("/proc")) {
        let proc = Path::new("/proc").join(pid.to_string());
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let name = name.trim();
        let installed =
            fs::read_link(proc.join("exe")).is_ok_and(|program| program.starts_with(folder.root()));
        let of_slurm = matches!(name, "slurmctld" | "slurmd" | "slurmstepd");
        if (installed || (of_slurm && holds_file_under(&proc, folder.root())))
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
