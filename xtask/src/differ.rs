//! `cargo xtask differ`: compares gpufrac's reading of GRES texts with Slurm's own, by a million random requests on
//! each series.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::suite;
use lab_tasks::series::{Series, Several};

/// Requests between two progress messages.
const TOLD: u64 = 200_000;

#[derive(clap::Args)]
pub(crate) struct DifferArguments {
    /// How many requests are read on each series
    #[arg(long, default_value_t = 1_000_000)]
    texts: u64,
    #[command(flatten)]
    slurm: Several,
    /// The seed of the requests; drawn unless given, and printed
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(arguments: &DifferArguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(suite::fresh_seed);
    println!("== seed {seed}");
    let wanted = arguments.slurm.or_all();
    let mut different = 0;
    for name in wanted.names()? {
        different += one(&wanted.prepare(name)?, arguments.texts, seed)?;
    }
    match different {
        0 => Ok(()),
        count => bail!("{count} requests are read in two ways"),
    }
}

/// Compares on one series and prints the figures; returns the number of differences.
fn one(series: &Series, texts: u64, seed: u64) -> Result<u64> {
    let began = Instant::now();
    let mut told = 0;
    let figures = gres_differ::compare(series.slurm(), texts, seed, |figures| {
        if figures.requests / TOLD > told {
            told = figures.requests / TOLD;
            println!("   {} requests", figures.requests);
        }
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let name = series.name;
    println!("== Slurm {name}, {seconds:.1} s: {figures}");
    Ok(figures.different)
}
