//! Prints the grading tables of placement: the experiment of "Beware of Fragmentation" on workloads of openb.
//!
//! `cargo run --release -p gpufrac-plan --example fgd -- --seeds 10 --expected fgd_expected.csv NODES.csv PODS.csv...`
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod experiment;
mod score;

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

use clap::Parser;
use gpufrac_core::layout::LayoutError;
use gpufrac_plan::candidate::{Candidate, Cut, Model};
use gpufrac_plan::read::openb::{self, Pod};
use serde::Deserialize;

use experiment::{Experiment, Host, Policy, Task};

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
#[derive(Deserialize)]
struct Published {
    workload: String,
    policy: String,
    at_100: f64,
    at_130: f64,
}

fn host(node: openb::OpenbNode) -> Host {
    Host {
        cpu: node.cpu_milli,
        memory: node.memory_mib,
        gpus: node.gpu,
        model: node.model,
    }
}

/// The tasks of a workload.
fn tasks(source: File) -> Result<Vec<Task>, csv::Error> {
    let task = |pod: Pod| Task {
        cpu: pod.cpu_milli,
        memory: pod.memory_mib,
        gpus: pod.num_gpu,
        milli: if pod.num_gpu == 0 { 0 } else { pod.gpu_milli },
        models: pod
            .gpu_spec
            .split('|')
            .filter(|model| !model.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    csv::Reader::from_reader(source)
        .deserialize::<Pod>()
        .map(|pod| pod.map(task))
        .collect()
}

/// The percent of this program, and the published one with the difference.
fn graded(own: f64, published: Option<f64>) -> String {
    match published {
        Some(published) => format!("{own:.2}, {published:.2} ({:+.2})", own - published),
        None => format!("{own:.2}"),
    }
}

/// The cells of each layout at 130 percent. Of the mixtures of whole GPUs and halves the best has a cell.
fn layouts(experiment: &Experiment, model: &Model, seeds: u64) -> Result<Vec<String>, LayoutError> {
    let mut cells = Vec::new();
    let mut halves: Option<(Candidate, f64)> = None;
    for candidate in Candidate::all(model) {
        let percent = experiment.mean_of_layout(candidate, model, seeds)?.at_130;
        if candidate.cut != Cut::Halves {
            cells.push(format!("{percent:.2}"));
        } else if halves.is_none_or(|(_, best)| percent > best) {
            halves = Some((candidate, percent));
        }
    }
    let best = halves.map(|(candidate, percent)| format!("{percent:.2} ({candidate})"));
    cells.extend(best);
    Ok(cells)
}

/// A table with a column of workloads before those of `columns`.
fn table(columns: &[String], rows: &[(String, Vec<String>)]) {
    println!("| workload | {} |", columns.join(" | "));
    println!("|---|{}", "---|".repeat(columns.len()));
    for (workload, cells) in rows {
        println!("| {workload} | {} |", cells.join(" | "));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let published: Vec<Published> = match &arguments.expected {
        Some(path) => csv::Reader::from_path(path)?
            .deserialize()
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let nodes = openb::nodes(File::open(&arguments.nodes)?)?.into_iter();
    let hosts: Vec<Host> = nodes.map(host).collect();
    let model = Model::named(MODEL).ok_or("no such model")?;
    let (mut of_policies, mut of_layouts) = (Vec::new(), Vec::new());
    for path in &arguments.pods {
        let workload = path.file_stem().unwrap_or_default().to_string_lossy();
        let experiment = Experiment {
            hosts: hosts.clone(),
            tasks: tasks(File::open(path)?)?,
        };
        let mut cells = Vec::new();
        for policy in Policy::ALL {
            let own = experiment.mean(policy, arguments.seeds);
            let known = published
                .iter()
                .find(|row| row.workload == workload && row.policy == policy.name());
            cells.push(graded(own.at_100, known.map(|row| row.at_100)));
            cells.push(graded(own.at_130, known.map(|row| row.at_130)));
        }
        let name = workload.trim_start_matches("openb_pod_list_").to_owned();
        of_policies.push((name.clone(), cells));
        of_layouts.push((name, layouts(&experiment, &model, arguments.seeds)?));
    }
    let policies = Policy::ALL.map(|policy| [format!("{} at 100", policy.name()), "at 130".into()]);
    table(&policies.concat(), &of_policies);
    println!();
    let mut names: Vec<String> = Candidate::all(&model)
        .into_iter()
        .filter(|candidate| candidate.cut != Cut::Halves)
        .map(|candidate| candidate.to_string())
        .collect();
    names.push("best mixture with halves".to_owned());
    table(&names, &of_layouts);
    Ok(())
}
