//! gpufrac's programs and plugins as cargo built them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::folder::write;
use crate::{Folder, LabError};

const PROGRAMS: [&str; 5] = [
    "gpufrac",
    "gpufrac-prolog",
    "gpufrac-epilog",
    "gpufrac-reaperd",
    "gpusim",
];

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
            hint: "cargo build --workspace".into(),
        })
}

/// Copies all of it into the lab: a build that goes on beside a running lab must not change it.
pub(crate) fn install(build: &Path, folder: &Folder) -> Result<(), LabError> {
    for program in PROGRAMS {
        copy(&build.join(program), &folder.bin().join(program))?;
    }
    copy(&build.join(SIMULATOR), &folder.lib().join(SIMULATOR))?;
    install_plugins(build, folder)
}

/// Copies the plugins alone.
pub(crate) fn install_plugins(build: &Path, folder: &Folder) -> Result<(), LabError> {
    for (built, installed) in PLUGINS {
        copy(&build.join(built), &folder.lib().join(installed))?;
    }
    Ok(())
}

/// Installs the stand-in for NVIDIA's MPS control program, in a folder of its own: it writes there.
pub(crate) fn install_mps_standin(build: &Path, folder: &Folder) -> Result<(), LabError> {
    let program = folder.mps_standin();
    if let Some(place) = program.parent() {
        fs::create_dir_all(place).map_err(LabError::file("cannot make", place))?;
    }
    copy(&build.join("mps-standin"), &program)
}

/// Installs a slurmd that sees the unified hierarchy of control groups alone.
pub(crate) fn install_cgroup_view(build: &Path, folder: &Folder) -> Result<(), LabError> {
    let library = folder.lib().join(CGROUP_VIEW);
    copy(&build.join(CGROUP_VIEW), &library)?;
    let path = folder.bin().join("slurmd");
    let script = format!(
        "#!/bin/sh\nslurmd=$(PATH=${{PATH#{}:}}; command -v slurmd)\nLD_PRELOAD={} exec \"$slurmd\" \"$@\"\n",
        folder.bin().display(),
        library.display()
    );
    write(&path, &script, 0o755)
}

fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    if !from.exists() {
        return Err(LabError::Machine {
            what: format!("{} is not built", from.display()),
            hint: "cargo build --workspace".into(),
        });
    }
    fs::copy(from, to).map_err(LabError::file("cannot copy", from))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))
        .map_err(LabError::file("cannot set the mode of", to))
}
