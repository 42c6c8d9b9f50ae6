//! `cargo xtask attack`: runs the attacks of a hostile user, on real Slurm.

use anyhow::{Result, bail};

use crate::suite::Tabled;
use lab_tasks::series::Several;

const ATTACKS: Tabled = Tabled {
    tests: "lab::e2e attack::",
    // Each attack adds a line (`tests/lab/tests/e2e/attack.rs`).
    variable: "GPUFRAC_ATTACK_TABLE",
    table: "target/attack.tsv",
    without: "no attack came to its end",
};

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
    ATTACKS.run(&arguments.slurm, arguments.full, print_table)
}

fn print_table(lines: &[&str]) -> Result<()> {
    println!(
        "{:<46} {:>6} {:>8} {:>8} {:>6}",
        "attack", "series", "reached", "drained", "lost"
    );
    for line in lines {
        let [name, series, reached, drained, lost] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            let table = ATTACKS.table;
            bail!("a line of {table} has not five fields: {line:?}");
        };
        println!("{name:<46} {series:>6} {reached:>8} {drained:>8} {lost:>6}");
    }
    Ok(())
}
