//! gpufrac's programs and plugins as cargo built them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::write;
use crate::{Folder, LabError};

/// Programs that are built against the headers of one series of Slurm, as cargo calls them and as the lab does.
const PROGRAMS_OF_SERIES: [(&str, &str); 5] = [
    ("gpufrac", "gpufrac"),
    ("gpufrac-prolog", "gpufrac-prolog"),
    ("gpufrac-epilog", "gpufrac-epilog"),
    ("gpufrac-reaperd", "gpufrac-reaperd"),
    ("examples/slurm_client", "slurm-client"),
];

/// The simulator's control program, which knows nothing of Slurm.
const GPUSIM: &str = "gpusim";

/// What cargo calls it, and what Slurm wants it to be called.
const PLUGINS: [(&str, &str); 3] = [
    ("libjob_submit_gpufrac.so", "job_submit_gpufrac.so"),
    ("libcli_filter_gpufrac.so", "cli_filter_gpufrac.so"),
    ("libspank_gpufrac.so", "spank_gpufrac.so"),
];

/// The simulated NVML, as gpusim looks for it.
const SIMULATOR: &str = "libnvidia_ml.so";

/// What keeps hierarchies of version 1 from slurmd.
const CGROUP_VIEW: &str = "libcgroup_view.so";

/// The build's folder: `GPUFRAC_BUILD_DIR`, or the folder above the running program (a test in
/// `target/<profile>/deps`, xtask in `target/<profile>`) that holds gpufrac's programs.
pub(crate) fn build_folder() -> Result<PathBuf, LabError> {
    if let Some(folder) = std::env::var_os("GPUFRAC_BUILD_DIR") {
        return Ok(folder.into());
    }
    let program = std::env::current_exe().map_err(LabError::file(
        "cannot find the running program",
        "/proc/self/exe",
    ))?;
    program
        .ancestors()
        .skip(1)
        .find(|folder| folder.join("gpufrac-prolog").exists())
        .map(Path::to_path_buf)
        .ok_or_else(|| LabError::Machine {
            what: format!(
                "gpufrac's programs are not built beside {}",
                program.display()
            ),
            hint: "cargo build --workspace --lib --bins --examples".into(),
        })
}

/// The folder of what is built against the headers of one series of Slurm: `GPUFRAC_SERIES_DIR`, else `build`.
pub(crate) fn series_folder(build: &Path) -> PathBuf {
    std::env::var_os("GPUFRAC_SERIES_DIR").map_or_else(|| build.to_owned(), PathBuf::from)
}

/// Puts all of it into the lab: `build` has what knows no Slurm, `series` what is built against a Slurm's headers.
pub(crate) fn install(build: &Path, series: &Path, folder: &Folder) -> Result<(), LabError> {
    for (built, installed) in PROGRAMS_OF_SERIES {
        place(&series.join(built), &folder.bin().join(installed))?;
    }
    place(&build.join(GPUSIM), &folder.bin().join(GPUSIM))?;
    place(&build.join(SIMULATOR), &folder.lib().join(SIMULATOR))?;
    install_plugins(series, folder)
}

/// Puts the plugins alone into the lab.
pub(crate) fn install_plugins(build: &Path, folder: &Folder) -> Result<(), LabError> {
    for (built, installed) in PLUGINS {
        place(&build.join(built), &folder.lib().join(installed))?;
    }
    Ok(())
}

/// Installs the stand-in for NVIDIA's MPS control program, in a folder of its own: it writes there.
pub(crate) fn install_mps_standin(build: &Path, folder: &Folder) -> Result<(), LabError> {
    let program = folder.mps_standin();
    if let Some(place) = program.parent() {
        fs::create_dir_all(place).map_err(LabError::file("cannot make", place))?;
    }
    place(&build.join("mps-standin"), &program)
}

/// Installs a slurmd that sees the unified hierarchy of control groups alone.
pub(crate) fn install_cgroup_view(build: &Path, folder: &Folder) -> Result<(), LabError> {
    let library = folder.lib().join(CGROUP_VIEW);
    place(&build.join(CGROUP_VIEW), &library)?;
    let path = folder.bin().join("slurmd");
    let script = format!(
        "#!/bin/sh\nslurmd=$(PATH=${{PATH#{}:}}; command -v slurmd)\nLD_PRELOAD={} exec \"$slurmd\" \"$@\"\n",
        folder.bin().display(),
        library.display()
    );
    write(&path, &script, 0o755)
}

/// The program that stops a lab whose program was killed. It runs where cargo built it: programs in the lab's folder are
/// killed with the lab.
pub(crate) fn keeper(build: &Path) -> Result<PathBuf, LabError> {
    built(build.join("lab-keeper"))
}

fn built(path: PathBuf) -> Result<PathBuf, LabError> {
    match path.exists() {
        true => Ok(path),
        false => Err(LabError::Machine {
            what: format!("{} is not built", path.display()),
            hint: "cargo build --workspace --lib --bins --examples".into(),
        }),
    }
}

/// Puts a built file into the lab, in the place of one that is there. A hard link where that can be: the programs
/// of a debug build are 200 MB. A build that goes on beside a running lab does not change the lab, as linkers write
/// a new file (`unlink_if_ordinary` of GNU ld).
fn place(from: &Path, to: &Path) -> Result<(), LabError> {
    let from = built(from.to_path_buf())?;
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LabError::file("cannot replace", to)(error));
        }
        _ => {}
    }
    if fs::hard_link(&from, to).is_ok() {
        return Ok(());
    }
    // Another file system.
    crate::install::install(&from, to, 0o755)
}
