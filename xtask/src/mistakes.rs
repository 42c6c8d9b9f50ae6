//! `cargo xtask mistakes`: runs common mistakes of admins, on real Slurm.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::suite::{self, Wanted};
use lab_tasks::series::Several;
use xtask_front::cargo::root;

/// The module of the mistakes in the end-to-end tests.
const TESTS: &str = "lab::e2e mistakes::";
/// The file to which each mistake adds a line (`tests/lab/tests/e2e/mistakes.rs`).
const VARIABLE: &str = "GPUFRAC_MISTAKES_TABLE";
/// The path of this file, below the root.
const TABLE: &str = "target/mistakes.tsv";

/// The series of Slurm.
#[derive(clap::Args)]
pub(crate) struct MistakesArguments {
    #[command(flatten)]
    slurm: Several,
}

/// Makes all mistakes, and prints the outcome of each.
/// Errors: gpufrac did not name a mistake, or something was lost or had no cure.
pub(crate) fn run(arguments: &MistakesArguments) -> Result<()> {
    let path = root().join(TABLE);
    if path.exists() {
        std::fs::remove_file(&path).with_context(|| format!("removing {TABLE} failed"))?;
    }
    let variables = vec![(VARIABLE, path.clone().into())];
    let wanted = Wanted::named(TESTS, arguments.slurm.or_all(), true, variables);
    let tested = suite::test(&wanted);
    print_table(&path)?;
    tested
}

fn print_table(path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("no mistake was made to its end: reading {TABLE} failed"))?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    println!(
        "mistake | series | check said (exit status) | the user saw | drained | lost | way out"
    );
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, _, _, _, _, _, _] = fields[..] else {
            bail!("a line of {TABLE} has not seven fields: {line:?}");
        };
        println!("{}", fields.join(" | "));
    }
    Ok(())
}
