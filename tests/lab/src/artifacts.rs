//! gpufrac's programs and plugins as cargo built them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::write;
use crate::{Folder, LabError};

/// Programs that are built against the headers of one series of Slurm, with their names for cargo and in the lab.
const PROGRAMS_OF_SERIES: [(&str, &str); 5] = [
    ("gpufrac", "gpufrac"),
    ("gpufrac-prolog", "gpufrac-prolog"),
    ("gpufrac-epilog", "gpufrac-epilog"),
    ("gpufrac-reaperd", "gpufrac-reaperd"),
    ("examples/slurm_client", "slurm-client"),
];

/// The simulator's control program, which does not depend on Slurm.
const GPUSIM: &str = "gpusim";

/// The plugins with their names for cargo and for Slurm.
const PLUGINS: [(&str, &str); 3] = [
    ("libjob_submit_gpufrac.so", "job_submit_gpufrac.so"),
    ("libcli_filter_gpufrac.so", "cli_filter_gpufrac.so"),
    ("libspank_gpufrac.so", "spank_gpufrac.so"),
];

/// The simulated NVML, as gpusim looks for it.
const SIMULATOR: &str = "libnvidia_ml.so";

/// The library that hides hierarchies of version 1 from slurmd.
const CGROUP_VIEW: &str = "libcgroup_view.so";

/// The build folder: `GPUFRAC_BUILD_DIR`, or the folder above the running program (a test in `target/<profile>/deps`,
/// xtask in `target/<profile>`) that contains gpufrac's programs.
pub(crate) fn build_folder() -> Result<PathBuf, LabError> {
    if let Some(folder) = std::env::var_os("GPUFRAC_BUILD_DIR") {
        return Ok(folder.into());
    }
    let program = std::env::current_exe().map_err(LabError::file(
        "finding the running program",
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
            hint: "cargo build --workspace --profile test --lib --bins --examples".into(),
        })
}

/// The folder of the files built against the headers of one series of Slurm: `GPUFRAC_SERIES_DIR`, otherwise `build`.
pub(crate) fn series_folder(build: &Path) -> PathBuf {
    std::env::var_os("GPUFRAC_SERIES_DIR").map_or_else(|| build.to_owned(), PathBuf::from)
}

/// Installs everything in the lab: from `build` the files that do not depend on Slurm, from `series` those that do.
pub(crate) fn install(build: &Path, series: &Path, folder: &Folder) -> Result<(), LabError> {
    for (built, installed) in PROGRAMS_OF_SERIES {
        place(&series.join(built), &folder.bin().join(installed))?;
    }
    place(&build.join(GPUSIM), &folder.bin().join(GPUSIM))?;
    place(&build.join(SIMULATOR), &folder.lib().join(SIMULATOR))?;
    install_plugins(series, folder)
}

/// Installs only the plugins in the lab.
pub(crate) fn install_plugins(build: &Path, folder: &Folder) -> Result<(), LabError> {
    for (built, installed) in PLUGINS {
        place(&build.join(built), &folder.lib().join(installed))?;
    }
    Ok(())
}

/// Installs the stand-in for NVIDIA's MPS control program in its own folder, because it writes there.
pub(crate) fn install_mps_standin(build: &Path, folder: &Folder) -> Result<(), LabError> {
    let program = folder.mps_standin();
    if let Some(place) = program.parent() {
        fs::create_dir_all(place).map_err(LabError::file("creating", place))?;
    }
    place(&build.join("mps-standin"), &program)
}

/// Installs a slurmd that only sees the unified hierarchy of control groups.
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

/// The program that stops a lab whose own program was killed. It runs from cargo's folder, because programs in the
/// lab's folder are killed with the lab.
pub(crate) fn keeper(build: &Path) -> Result<PathBuf, LabError> {
    built(build.join("lab-keeper"))
}

fn built(path: PathBuf) -> Result<PathBuf, LabError> {
    if path.exists() {
        Ok(path)
    } else {
        Err(LabError::Machine {
            what: format!("{} is not built", path.display()),
            hint: "cargo build --workspace --profile test --lib --bins --examples".into(),
        })
    }
}

/// Installs a built file in the lab, replacing an older one; by a hard link if possible, because the programs of a
/// debug build are 200 MB. A later build does not change a running lab, because linkers write a new file
/// (`unlink_if_ordinary` of GNU ld).
fn place(from: &Path, to: &Path) -> Result<(), LabError> {
    let from = built(from.to_path_buf())?;
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LabError::file("replacing", to)(error));
        }
        _ => {}
    }
    if fs::hard_link(&from, to).is_ok() {
        return Ok(());
    }
    // The folder is on another file system.
    crate::install::install(&from, to, 0o755)
}
