//! `cargo xtask`: set-up, tests, demo, benchmark, lab and installation of gpufrac.

#![forbid(unsafe_code)]

mod attack;
mod bench;
mod book;
mod cargo;
mod deny;
mod differ;
mod dist;
mod fuzz;
mod hook;
mod mistakes;
mod package;
mod page;
mod pages;
mod release;
mod suite;
mod version;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask_front::setup;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of the gpufrac repository"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs the Debian packages that building and testing need, if any is missing
    Setup {
        /// Install a git hook as well, which checks the subjects of commits
        #[arg(long)]
        hook: bool,
    },
    /// Format, clippy, the oldest Rust and unit tests: two minutes
    Check,
    /// Everything that a change must pass: format, clippy, all tests, on real Slurm too, documentation
    Test(suite::Wanted),
    /// A cluster to play with
    #[command(disable_help_flag = true)]
    Lab(Rest),
    /// Shows a fraction's life on a real cluster, from sbatch to the MIG slice and back
    #[command(disable_help_flag = true)]
    Demo(Rest),
    /// What a hostile user tries, on real Slurm: a table of what was reached, drained and lost
    Attack(attack::AttackArguments),
    /// What an admin gets wrong once, on real Slurm: a table of what `gpufrac check` said and what users saw
    Mistakes(mistakes::MistakesArguments),
    /// Measures gpufrac against what it adds to and what it replaces
    Bench(bench::BenchArguments),
    /// Gives every reader of others' texts to libFuzzer, ten minutes each
    Fuzz(fuzz::FuzzArguments),
    /// Compares gpufrac's reading of GRES texts with that of Slurm's own parser, by random requests
    Differ(differ::DifferArguments),
    /// Builds for one Slurm and installs everything in a tree
    Dist(dist::DistArguments),
    /// Makes packages for Debian and Red Hat, of all series of Slurm
    Package(package::PackageArguments),
    /// Follows docs/design/publish.md: tests, packages, tag and publication of a release
    Release(release::ReleaseArguments),
    /// Checks licences, bans and sources of all dependencies
    Deny,
    /// Builds the manual of docs/ as HTML pages with a search, and checks its links
    Book,
    /// Writes the tables of docs whose words stand in the source
    Pages,
}

/// The arguments of a task in another program.
#[derive(clap::Args)]
struct Rest {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

fn install(with_hook: bool) -> Result<()> {
    setup::run(setup::ALL)?;
    println!(
        "all packages are installed: {}",
        setup::ALL.concat().join(" ")
    );
    if with_hook { hook::install() } else { Ok(()) }
}

/// Becomes the program of this task.
fn of_labs(task: &str, rest: Rest) -> Result<()> {
    let arguments = [vec![task.into()], rest.words].concat();
    let Err(error) = xtask_front::start(&arguments);
    Err(error)
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup { hook } => install(hook),
        Task::Check => suite::check(),
        Task::Test(wanted) => suite::test(&wanted),
        Task::Lab(words) => of_labs("lab", words),
        Task::Demo(words) => of_labs("demo", words),
        Task::Attack(arguments) => attack::run(&arguments),
        Task::Mistakes(arguments) => mistakes::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run_targets(&arguments),
        Task::Differ(arguments) => differ::run(&arguments),
        Task::Dist(arguments) => dist::run(&arguments),
        Task::Package(arguments) => package::run(&arguments),
        Task::Release(arguments) => release::run(&arguments),
        Task::Deny => deny::run_check(),
        Task::Book => book::build(),
        Task::Pages => pages::write(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
