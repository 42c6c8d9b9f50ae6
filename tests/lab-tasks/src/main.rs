//! `cargo xtask demo` and `cargo xtask lab`.

#![forbid(unsafe_code)]

mod demo;
mod lab;
mod map;
mod picture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Clusters to look at and to play with"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// A cluster to play with
    #[command(subcommand)]
    Lab(lab::LabTask),
    /// Shows a fraction's life on a real cluster, from sbatch to the MIG slice and back
    Demo(demo::DemoArguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Lab(task) => lab::run(&task),
        Task::Demo(arguments) => demo::run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
