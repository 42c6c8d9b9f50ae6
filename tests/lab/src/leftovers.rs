//! Finds processes of a lab that it did not start itself: slurmstepds, daemons that went to the background or that
//! Slurm started, and prologs and epilogs whose slurmd has ended. Jobs are found by their control groups.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Folder;
use crate::process::Process;

/// The variable with the lab's folder in the environment of client commands. It is not a variable of Slurm: a person
/// who works with a lab exports its `SLURM_CONF`, and that person's programs are not part of the lab.
pub(crate) const MARK: &str = "LAB_FOLDER";

/// Daemons of Slurm with an open file of the lab, programs that are installed in the lab, daemons that write to a log
/// of the lab, and client commands.
pub(crate) fn of_lab(folder: &Folder) -> Vec<Process> {
    let mark = [MARK.as_bytes(), b"=", folder.root().as_os_str().as_bytes()].concat();
    let log = folder.log();
    let mut found = Vec::new();
    for pid in numeric_entries(Path::new("/proc")) {
        let proc = Path::new("/proc").join(pid.to_string());
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let name = name.trim();
        let is_below = |link: &str, place: &Path| {
            fs::read_link(proc.join(link)).is_ok_and(|target| target.starts_with(place))
        };
        let of_slurm = matches!(name, "slurmctld" | "slurmd" | "slurmstepd");
        let ours = is_below("exe", folder.root())
            // A process that the lab started just before its program was killed is not in the record.
            || is_below("fd/1", &log)
            || (of_slurm && holds_file_under(&proc, folder.root()))
            || has_variable(&proc, &mark);
        if ours && let Some(process) = Process::observe(name, pid) {
            found.push(process);
        }
    }
    found
}

fn has_variable(proc: &Path, line: &[u8]) -> bool {
    let environment = fs::read(proc.join("environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|one| one == line)
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
