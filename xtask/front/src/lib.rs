//! What comes before a task: packages of Debian, and the build of the task's own program.
//!
//! `cargo xtask` starts with a program that is compiled in seconds. A demo needs neither what makes packages nor what
//! runs tests, so its program and all that it shows are one build, while the packages are installed first.

#![forbid(unsafe_code)]

pub mod cargo;
pub mod setup;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

/// The tasks of the package `lab-tasks`.
const OF_LABS: [&str; 2] = ["demo", "lab"];

/// Becomes the program of the task that these arguments of `cargo xtask` name.
///
/// # Errors
/// Packages cannot be installed, or the program does not compile or start.
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
    if !program.exists() || arguments.iter().any(|word| word == "demo" || word == "up") {
        build_labs()?;
    }
    become_program(Command::new(program).args(arguments))
}

fn build_labs() -> Result<()> {
    thread::scope(|scope| {
        // Crates arrive while packages are installed. A failure shows in the build, which needs them.
        scope.spawn(|| cargo::cargo(&["fetch", "--quiet"]).output());
        setup::run(&[setup::CLUSTER])
    })?;
    println!("building gpufrac ...");
    cargo::build_for_labs()
}

/// Returns only if the program does not start.
fn become_program(command: &mut Command) -> Result<Infallible> {
    let words = cargo::line(command);
    let error = command.exec();
    Err(error).with_context(|| format!("starting `{words}` failed"))
}
