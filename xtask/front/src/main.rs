//! `cargo xtask`: starts the program of a task.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let Err(error) = xtask_front::start(&arguments);
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
