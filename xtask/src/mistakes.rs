//! `cargo xtask mistakes`: runs common mistakes of admins, on real Slurm.

use anyhow::{Result, bail};

use crate::suite::Tabled;
use lab_tasks::series::Several;

const MISTAKES: Tabled = Tabled {
    tests: "lab::e2e mistakes::",
    // Each mistake adds a line (`tests/lab/tests/e2e/mistakes.rs`).
    variable: "GPUFRAC_MISTAKES_TABLE",
    table: "target/mistakes.tsv",
    without: "no mistake was made to its end",
};

/// The series of Slurm.
#[derive(clap::Args)]
pub(crate) struct MistakesArguments {
    #[command(flatten)]
    slurm: Several,
}

/// Makes all mistakes, and prints the outcome of each.
/// Errors: gpufrac did not name a mistake, or something was lost or had no cure.
pub(crate) fn run(arguments: &MistakesArguments) -> Result<()> {
    MISTAKES.run(&arguments.slurm, true, print_table)
}

fn print_table(lines: &[&str]) -> Result<()> {
    println!(
        "mistake | series | check said (exit status) | the user saw | drained | lost | way out"
    );
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, _, _, _, _, _, _] = fields[..] else {
            let table = MISTAKES.table;
            bail!("a line of {table} has not seven fields: {line:?}");
        };
        println!("{}", fields.join(" | "));
    }
    Ok(())
}
