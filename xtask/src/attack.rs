//! `cargo xtask attack`: runs the attacks of a hostile user, on real Slurm.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::suite::{self, Wanted};
use lab_tasks::series::Several;
use xtask_front::cargo::root;

/// The module of the attacks in the end-to-end tests.
const TESTS: &str = "lab::e2e attack::";
/// The file to which each attack adds a line (`tests/lab/tests/e2e/attack.rs`).
const VARIABLE: &str = "GPUFRAC_ATTACK_TABLE";
/// The path of this file, below the root.
const TABLE: &str = "target/attack.tsv";

/// The series, and whether long runs are included.
#[derive(clap::Args)]
pub(crate) struct AttackArguments {
    #[command(flatten)]
    slurm: Several,
    /// The long runs as well
    #[arg(long)]
    full: bool,
}

/// Runs all attacks, and prints what each reached, drained and lost.
/// Errors: an attack reached, drained or lost something.
pub(crate) fn run(arguments: &AttackArguments) -> Result<()> {
    let path = root().join(TABLE);
    if path.exists() {
        std::fs::remove_file(&path).with_context(|| format!("removing {TABLE} failed"))?;
    }
    let variables = vec![(VARIABLE, path.clone().into())];
    let wanted = Wanted::named(TESTS, arguments.slurm.or_all(), arguments.full, variables);
    let tested = suite::test(&wanted);
    print_table(&path)?;
    tested
}

fn print_table(path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("no attack came to its end: reading {TABLE} failed"))?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    println!(
        "{:<46} {:>6} {:>8} {:>8} {:>6}",
        "attack", "series", "reached", "drained", "lost"
    );
    for line in lines {
        let [name, series, reached, drained, lost] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            bail!("a line of {TABLE} has not five fields: {line:?}");
        };
        println!("{name:<46} {series:>6} {reached:>8} {drained:>8} {lost:>6}");
    }
    Ok(())
}
