//! `cargo xtask`: set-up, tests, demo, benchmark, lab and installation of gpufrac.

#![forbid(unsafe_code)]

mod attack;
mod bench;
mod book;
mod cargo;
mod demo;
mod deny;
mod differ;
mod dist;
mod fuzz;
mod hook;
mod lab;
mod map;
mod mistakes;
mod package;
mod page;
mod pages;
mod picture;
mod release;
mod series;
mod setup;
mod suite;
mod version;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    #[command(subcommand)]
    Lab(lab::LabTask),
    /// Shows a fraction's life on a real cluster, from sbatch to the MIG slice and back
    Demo(demo::DemoArguments),
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

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup { hook } => {
            setup::run(setup::ALL).and_then(|()| if hook { hook::install() } else { Ok(()) })
        }
        Task::Check => suite::check(),
        Task::Test(wanted) => suite::test(&wanted),
        Task::Lab(task) => lab::run(&task),
        Task::Demo(arguments) => demo::run(arguments),
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
