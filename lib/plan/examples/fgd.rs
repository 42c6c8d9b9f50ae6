//! Prints the grading table of placement: the experiment of "Beware of Fragmentation" on workloads of openb.
//!
//! `cargo run --release -p gpufrac-plan --example fgd -- --seeds 10 --expected fgd_expected.csv NODES.csv PODS.csv...`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Parser;
use gpufrac_plan::candidate::{Candidate, Cut, Model};
use gpufrac_plan::fgd::{Allocated, Experiment, Policy};
use gpufrac_plan::read::openb;

/// The model of the layouts: one with MIG in seven slices.
const MODEL: &str = "H100-80";

#[derive(Parser)]
struct Arguments {
    /// The nodes of openb
    nodes: PathBuf,
    /// Workloads: pods of openb
    #[arg(required = true)]
    pods: Vec<PathBuf>,
    /// Seeds of each mean
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Published figures, with the columns workload, policy, at_100, at_130
    #[arg(long)]
    expected: Option<PathBuf>,
}

/// Published percents of a workload and policy.
struct Published {
    workload: String,
    policy: String,
    at_100: f64,
    at_130: f64,
}

fn published(path: &Path) -> Result<Vec<Published>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(path)?;
    let headers = reader.headers()?.clone();
    let column = |name: &str| {
        headers
            .iter()
            .position(|own| own == name)
            .ok_or(format!("no column {name}"))
    };
    let columns = [
        column("workload")?,
        column("policy")?,
        column("at_100")?,
        column("at_130")?,
    ];
    let mut all = Vec::new();
    for row in reader.records() {
        let row = row?;
        let text = |at: usize| row.get(columns[at]).unwrap_or_default().to_owned();
        all.push(Published {
            workload: text(0),
            policy: text(1),
            at_100: text(2).parse()?,
            at_130: text(3).parse()?,
        });
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let expected = arguments
        .expected
        .as_deref()
        .map(published)
        .transpose()?
        .unwrap_or_default();
    let hosts = openb::hosts(File::open(&arguments.nodes)?)?;
    let gpus: u32 = hosts.iter().map(|host| host.gpus).sum();
    println!(
        "| workload | placement | % at 100 | published | % at 130 | published | GPUs of {gpus} left |"
    );
    println!("|---|---|---|---|---|---|---|");
    let left = |outcome: Allocated| f64::from(gpus) * (1.0 - outcome.at_130 / 100.0);
    for path in &arguments.pods {
        let workload = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let experiment = Experiment {
            hosts: hosts.clone(),
            tasks: openb::tasks(File::open(path)?)?,
        };
        for policy in Policy::ALL {
            let own = experiment.mean(policy, arguments.seeds);
            let known = expected
                .iter()
                .find(|row| row.workload == workload && row.policy == policy.name());
            let figures = known.map_or(["-".to_owned(), "-".to_owned()], |row| {
                [(own.at_100, row.at_100), (own.at_130, row.at_130)]
                    .map(|(own, known)| format!("{known:.2} ({:+.2})", own - known))
            });
            println!(
                "| {workload} | {} | {:.2} | {} | {:.2} | {} | {:.0} |",
                policy.name(),
                own.at_100,
                figures[0],
                own.at_130,
                figures[1],
                left(own)
            );
        }
        let model = Model::named(MODEL).ok_or("no such model")?;
        // Of the mixtures of whole GPUs and halves the best one is shown.
        let mut halves: Option<(Candidate, Allocated)> = None;
        let mut shown = Vec::new();
        for candidate in Candidate::all(&model) {
            let own = experiment.mean_of_layout(candidate, &model, arguments.seeds)?;
            match candidate.cut {
                Cut::Halves if halves.is_none_or(|(_, best)| own.at_130 > best.at_130) => {
                    halves = Some((candidate, own));
                }
                Cut::Halves => {}
                _ => shown.push((candidate, own)),
            }
        }
        for (candidate, own) in shown.into_iter().chain(halves) {
            println!(
                "| {workload} | {candidate} | {:.2} | | {:.2} | | {:.0} |",
                own.at_100,
                own.at_130,
                left(own)
            );
        }
    }
    Ok(())
}
