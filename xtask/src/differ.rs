//! `cargo xtask differ`: compares gpufrac's reading of GRES texts with Slurm's own, by a million random requests on
//! each series.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::series::{self, Series};
use crate::suite;

/// Requests between two progress messages.
const TOLD: u64 = 200_000;

#[derive(clap::Args)]
pub(crate) struct DifferArguments {
    /// How many requests are read on each series
    #[arg(long, default_value_t = 1_000_000)]
    texts: u64,
    /// One series of Slurm: 22.05, 24.11, 26.05; all of them unless given
    #[arg(long)]
    slurm: Option<String>,
    /// The seed of the requests; drawn unless given, and printed
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(arguments: &DifferArguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(suite::fresh_seed);
    println!("== seed {seed}");
    let wanted = |name: &&str| {
        arguments
            .slurm
            .as_deref()
            .is_none_or(|wanted| wanted == *name)
    };
    let names: Vec<_> = series::names().filter(wanted).collect();
    if names.is_empty() {
        let known: Vec<_> = series::names().collect();
        bail!("write one of {}", known.join(", "));
    }
    let mut different = 0;
    for name in names {
        different += one(name, arguments.texts, seed)?;
    }
    match different {
        0 => Ok(()),
        count => bail!("{count} requests are read in two ways"),
    }
}

/// Compares on one series and prints the figures; returns the number of differences.
fn one(name: &str, texts: u64, seed: u64) -> Result<u64> {
    let slurm = Series::prepare(name)?.slurm()?;
    let began = Instant::now();
    let mut told = 0;
    let figures = gres_differ::compare(&slurm, texts, seed, |figures| {
        if figures.requests / TOLD > told {
            told = figures.requests / TOLD;
            println!("   {} requests", figures.requests);
        }
    })?;
    let seconds = began.elapsed().as_secs_f64();
    println!("== Slurm {name}, {seconds:.1} s: {figures}");
    Ok(figures.different)
}
