//! `cargo xtask bench`: compares gpufrac with plain Slurm and with the solutions that it replaces.
//!
//! Each comparison runs its two sides in turn, so that other load of the machine affects both, and compares medians.

mod burst;
mod cluster;
mod layouts;
mod meter;
mod mps;
mod node;
mod plain;
mod plan;
mod reaper;
mod scale;
mod status;
mod table;
mod users;
mod whole;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use lab_tasks::series::{One, Series};
use table::Table;
use xtask_front::cargo::{build as build_debug, build_release, root, run as run_command};
use xtask_front::setup;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Prolog and epilog on a node
    Node,
    /// Submission and start on a cluster
    Cluster,
    /// Start of jobs that share a GPU by MPS
    Mps,
    /// The prolog of a whole GPU with MIG off
    Whole,
    /// The cost of the reaper on a node
    Reaper,
    /// `gpufrac status` on a full node, and for a thousand nodes
    Status,
    /// The cost of many nodes and jobs in the controller; only when it is named, as it takes long
    Scale,
    /// Submissions of many users with accounting, on as many nodes; only when it is named, as it takes long
    Users,
    /// Many jobs at once on a driver that takes its time; only when it is named, as it takes long. This one and `plan`
    /// run on any Slurm, with gpufrac's debug build for all but the machine's own
    Burst,
    /// The same jobs on eight GPUs with a fixed division and with the layout uniform; only when it is named, as it
    /// takes long
    Layouts,
    /// Jobs of a history on a real Slurm and the forecast of `gpufrac plan`; only when it is named, as it takes long
    Plan,
}

impl Part {
    fn is_long(self) -> bool {
        use Part::{Burst, Layouts, Plan, Scale, Users};
        matches!(self, Scale | Users | Burst | Layouts | Plan)
    }
}

#[derive(Args)]
pub(crate) struct BenchArguments {
    /// The comparison; all short ones unless one is named
    only: Option<Part>,
    /// How often each side of a comparison on a node runs
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// How often each side of a comparison on a cluster runs
    #[arg(long, default_value_t = 60)]
    jobs: usize,
    /// For how many rounds the reaper is watched; 8640, half an hour, are those of a day
    #[arg(long, default_value_t = 300)]
    reaper_rounds: u64,
    /// Nodes of each cluster where the controller is measured
    #[arg(long, default_value_t = 64)]
    scale_nodes: usize,
    /// Jobs that wait there
    #[arg(long, default_value_t = 5000)]
    scale_jobs: usize,
    /// Jobs that the users submit to each cluster
    #[arg(long, default_value_t = 20_000)]
    users_jobs: usize,
    #[command(flatten)]
    slurm: One,
    /// Jobs of a second each that come at once
    #[arg(long, default_value_t = 500)]
    burst_jobs: usize,
    /// GPUs of each cluster there; with few of them jobs wait for their GPUs, not for the cores of this machine
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=8))]
    burst_gpus: u32,
    /// How often each cluster has its bursts
    #[arg(long, default_value_t = 1)]
    burst_rounds: usize,
    /// How long the simulated driver takes there
    #[arg(long, value_enum, default_value_t = burst::DriverTimes::Seen)]
    burst_driver: burst::DriverTimes,
    /// Give the plain cluster there a Prolog and an Epilog that do nothing: what any take Slurm itself
    #[arg(long)]
    burst_plain_hooks: bool,
    /// Let users submit there in turns, not each all of theirs at once
    #[arg(long)]
    burst_in_turns: bool,
    /// Jobs of an eighth, a quarter and half of a GPU there, in layout halves; without the cluster of static instances
    #[arg(long)]
    burst_mixed: bool,
    /// Phases of the jobs there, by turns most of them for whole GPUs and for quarters
    #[arg(long, default_value_t = 4)]
    layouts_phases: u32,
    /// How long a phase is, in seconds
    #[arg(long, default_value_t = 90)]
    layouts_phase: u64,
    /// Which list of jobs
    #[arg(long, default_value_t = 1)]
    layouts_seed: u64,
    /// The history: output of sacct -P, or a trace (openb, philly)
    #[arg(long, value_name = "FILE")]
    plan_history: Option<PathBuf>,
    /// Jobs of it
    #[arg(long, default_value_t = 500)]
    plan_jobs: usize,
    /// In how many seconds they are submitted
    #[arg(long, default_value_t = 600)]
    plan_window: u64,
    /// How GPUs are lent
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "whole,halves+4,uniform:1/2"
    )]
    plan_layouts: Vec<String>,
    /// nvidia-smi, to compare with a prolog that uses it; unless given it is fetched from Debian's non-free
    /// component (and not installed)
    #[arg(long)]
    nvidia_smi: Option<PathBuf>,
}

impl BenchArguments {
    /// The named series, with what is built for it; None for the machine's own, which is part of each build.
    fn other_series(&self) -> Result<Option<Series>> {
        let series = self.slurm.named()?.filter(|series| !series.is_own());
        if let Some(series) = &series {
            series.build()?;
        }
        Ok(series)
    }
}

/// Compiles a program or library of `bench/`; `options` are further options of gcc.
fn compile(source: &str, place: &Path, options: &[&str]) -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench");
    run_command(
        Command::new("gcc")
            .arg("-O2")
            .arg(sources.join(source))
            .arg("-o")
            .arg(place)
            .args(options),
    )
}

type Measure = fn(&BenchArguments, &Path, &mut Table) -> Result<()>;

pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    setup::run(setup::ALL)?;
    let build = match arguments.only {
        // Its jobs run for minutes, by the clock of Slurm: the build does not show.
        Some(Part::Layouts | Part::Plan) => {
            build_debug()?;
            root().join("target/debug")
        }
        _ => {
            println!("building gpufrac for release ...");
            build_release()?;
            root().join("target/release")
        }
    };
    let mut table = Table::new();
    for (part, measure) in [
        (Part::Node, node::measure as Measure),
        (Part::Cluster, cluster::measure),
        (Part::Mps, mps::measure),
        (Part::Whole, whole::measure),
        (Part::Reaper, reaper::measure),
        (Part::Status, status::measure),
        (Part::Scale, scale::measure),
        (Part::Users, users::measure),
        (Part::Burst, burst::measure),
        (Part::Layouts, layouts::measure),
        (Part::Plan, plan::measure),
    ] {
        if arguments.only.map_or(!part.is_long(), |only| only == part) {
            measure(arguments, &build, &mut table)?;
        }
    }
    println!("{table}");
    Ok(())
}

/// The times of the two sides of a comparison.
pub(crate) struct Pair {
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
}

impl Pair {
    /// Runs both sides `rounds` times in turn; every second round begins with the other side. The first round warms
    /// caches and does not count.
    fn measure(
        rounds: usize,
        mut ours: impl FnMut() -> Result<()>,
        mut theirs: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        Self::measure_timed(rounds, || time(&mut ours), || time(&mut theirs))
    }

    /// As [`Self::measure`], for sides that return their own time.
    fn measure_timed(
        rounds: usize,
        mut ours: impl FnMut() -> Result<Duration>,
        mut theirs: impl FnMut() -> Result<Duration>,
    ) -> Result<Self> {
        let mut pair = Self {
            ours: Vec::new(),
            theirs: Vec::new(),
        };
        for round in 0..=rounds {
            let (one, two);
            if round % 2 == 0 {
                one = ours()?;
                two = theirs()?;
            } else {
                two = theirs()?;
                one = ours()?;
            }
            if round > 0 {
                pair.ours.push(one);
                pair.theirs.push(two);
            }
        }
        Ok(pair)
    }

    fn medians(&self) -> (Duration, Duration) {
        (median(&self.ours), median(&self.theirs))
    }
}

fn time(work: &mut impl FnMut() -> Result<()>) -> Result<Duration> {
    let before = Instant::now();
    work()?;
    Ok(before.elapsed())
}

/// The time that so many of a hundred times do not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or_default()
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_first_round_does_not_count() -> Result<()> {
        let times = [5, 1, 9].map(Duration::from_millis);
        assert_eq!(median(&times), Duration::from_millis(5));
        let mut calls = 0;
        let pair = Pair::measure(
            4,
            || {
                calls += 1;
                Ok(())
            },
            || Ok(()),
        )?;
        assert_eq!((calls, pair.ours.len(), pair.theirs.len()), (5, 4, 4));
        Ok(())
    }
}
