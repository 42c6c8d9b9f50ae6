//! What comes before a task: packages of Debian, and the build of the task's own program.
//!
//! `cargo xtask` starts with a program that is compiled in seconds. A demo needs neither what makes packages nor what
//! runs tests, so its program and all that it shows are one build, after the packages that the build needs.

#![forbid(unsafe_code)]

pub mod cargo;
pub mod setup;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

/// The tasks of the package `lab-tasks`.
const OF_LABS: [&str; 2] = ["demo", "lab"];

/// Becomes the program of the task that these arguments of `cargo xtask` name.
/// Errors: packages cannot be installed, or the program does not compile or start.
pub fn start(arguments: &[OsString]) -> Result<Infallible> {
    let is_of_labs = |task: &OsString| OF_LABS.iter().any(|known| task == known);
    if arguments.first().is_some_and(is_of_labs) {
        return start_lab(arguments);
    }
    let mut xtask = cargo::cargo(&["run", "--quiet", "--profile", "test", "--package", "xtask"]);
    become_program(xtask.arg("--").args(arguments))
}

/// As [`start`], for a task of labs. A lab runs what is built here; it can be stopped while the code does not compile.
fn start_lab(arguments: &[OsString]) -> Result<Infallible> {
    let own = std::env::current_exe().context("finding the program of this task failed")?;
    let program = own.with_file_name("lab-tasks");
    if starts_cluster(arguments) {
        setup::run(&[setup::CLUSTER])?;
        println!("building gpufrac ...");
        cargo::build_for_labs()?;
    } else if !program.exists() {
        // Lists, stops and explains labs, for which nothing is installed.
        cargo::run(&mut cargo::cargo(&[
            "build",
            "--quiet",
            "--package",
            "lab-tasks",
        ]))?;
    }
    become_program(Command::new(program).args(arguments))
}

/// Whether the task starts a cluster.
fn starts_cluster(arguments: &[OsString]) -> bool {
    let is_help = |word: &OsString| word == "--help" || word == "-h";
    let [task, rest @ ..] = arguments else {
        return false;
    };
    (task == "demo" || rest.first().is_some_and(|word| word == "up")) && !rest.iter().any(is_help)
}

/// Returns only if the program does not start.
fn become_program(command: &mut Command) -> Result<Infallible> {
    let words = cargo::line(command);
    let error = command.exec();
    Err(error).with_context(|| format!("starting `{words}` failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_and_gpufrac_is_built_only_for_a_cluster() {
        let starts = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            starts_cluster(&words)
        };
        for line in [
            "demo",
            "demo --slurm 26.05",
            "lab up",
            "lab up two --reaper",
        ] {
            assert!(starts(line), "{line}");
        }
        for line in ["lab list", "lab down up", "lab", "lab up --help", "demo -h"] {
            assert!(!starts(line), "{line}");
        }
    }
}
