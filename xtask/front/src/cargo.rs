//! Runs cargo and other programs in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// A cargo command in the root.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command; a failure is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    let status = command
        .status()
        .with_context(|| format!("starting `{line}` failed"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// gpufrac's plugins and programs, which are built for one Slurm.
pub const PACKAGES: [&str; 7] = [
    "job_submit_gpufrac",
    "cli_filter_gpufrac",
    "spank_gpufrac",
    "gpufrac-prolog",
    "gpufrac-epilog",
    "gpufrac-reaper",
    "gpufrac",
];

/// What a lab runs besides gpufrac's plugins and programs: the simulator, a client of Slurm, and its own parts.
const OF_LABS: [&str; 5] = [
    "slurm-sys",
    "gpusim",
    "nvml-sim",
    "cgroup-view",
    "gpufrac-lab",
];

/// Builds all libraries, plugins, programs and examples with the profile of tests.
pub fn build() -> Result<()> {
    build_with(&["--workspace", "--profile", "test"])
}

/// Builds what a lab runs, and the program that starts it, without optimisations.
pub fn build_for_labs() -> Result<()> {
    let mut build = build_command(&[of_labs(), vec!["-p", "lab-tasks"]].concat());
    if !has_incremental_data() {
        build.env("CARGO_INCREMENTAL", "0");
    }
    run(&mut build)
}

/// Whether an earlier build was incremental. The first build for a lab is not, because the data for the next one take a
/// quarter of the time of gpufrac's crates.
fn has_incremental_data() -> bool {
    let written = std::fs::read_dir(root().join("target/debug/incremental"));
    let mut names = written
        .into_iter()
        .flatten()
        .flatten()
        .map(|it| it.file_name());
    names.any(|name| name.to_string_lossy().starts_with("gpufrac_core-"))
}

/// As [`build_for_labs`], with the optimisations of a release.
pub fn build_release() -> Result<()> {
    build_with(&[of_labs(), vec!["--release"]].concat())
}

fn of_labs() -> Vec<&'static str> {
    let packages = PACKAGES.into_iter().chain(OF_LABS);
    packages.flat_map(|name| ["-p", name]).collect()
}

fn build_with(options: &[&str]) -> Result<()> {
    run(&mut build_command(options))
}

fn build_command(options: &[&str]) -> Command {
    let mut build = cargo(&["build", "--lib", "--bins", "--examples", "--quiet"]);
    build.args(options);
    build
}

/// The words of a command, for messages.
pub fn line(command: &Command) -> String {
    let mut words = vec![
        Path::new(command.get_program())
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}
