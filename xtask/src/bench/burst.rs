//! Bursts of jobs: gpufrac, which makes each slice when its job starts, with and without `reuse`, beside a plain
//! Slurm with fixed MIG instances that an admin made.
//!
//! The simulated driver needs the times of [`DriverTimes`]; the plain cluster never calls it. Each cluster has the same
//! number of GPUs, with seven places each.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use gpufrac_lab::Lab;

use super::meter::Meter;
use super::plain::{self, Plain, PlainLab};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair, compile, percentile};
use lab_tasks::series::Series;

/// Instances of the smallest profile on each GPU.
const PLACES: u32 = 7;
/// The time limit until the queue is empty.
const LIMIT: Duration = Duration::from_secs(1800);

const POOL: &str = "\
[pool.sevenths]
mechanism = \"mig\"
layout = \"@LAYOUT@\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"@NODES@\"
@REUSE@
";

/// The time that the simulated driver needs for a call.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DriverTimes {
    /// Milliseconds that issues about real GPUs tell of: 300 to start, 1500 to make an instance, 1000 to destroy one
    Seen,
    /// The same without the 300 to start: the most that one long-lived session for all programs could save
    Started,
    /// The simulator's model, in which calls take longer the more sessions there are (docs/design/tests.md)
    Model,
    /// 0 to 3 s for every call on a GPU, each GPU its own
    Uneven,
    /// 3 s for each start, each making and each destroying of an instance
    Slow,
}

impl DriverTimes {
    /// `--call` and `--ms` of `gpusim delay` for all GPUs; empty for the model.
    fn of_calls(self) -> Vec<(&'static str, u32)> {
        match self {
            DriverTimes::Seen => DRIVER.to_vec(),
            DriverTimes::Started => DRIVER[1..].to_vec(),
            DriverTimes::Slow => DRIVER.map(|(call, _)| (call, 3000)).to_vec(),
            DriverTimes::Model | DriverTimes::Uneven => Vec::new(),
        }
    }
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
/// Functions of the driver with their times in milliseconds, the start first.
const DRIVER: [(&str, u32); 5] = [
    ("nvmlInit_v2", 300),
    (CREATE, 1000),
    ("nvmlGpuInstanceCreateComputeInstance", 500),
    ("nvmlComputeInstanceDestroy", 300),
    ("nvmlGpuInstanceDestroy", 700),
];

/// The value of `reuse` in the benchmark: longer than a place is free.
const REUSE: &str = "reuse = \"30s\"";

/// The daemon answers questions about kept instances.
const REAPER: &str = "[reaper]\nmode = \"dry-run\"\nmetrics = \"off\"\n";

/// Requests of one size.
const EQUAL: &[&str] = &["--gres=gpufrac:0.125", "--gres=gpufrac:0.14"];
/// Requests of a mix of sizes: on average a quarter of a GPU.
const MIXED: &[&str] = &[
    "--gres=gpufrac:0.125",
    "--gres=gpufrac:0.5",
    "--gres=gpufrac:0.25",
    "--gres=gpufrac:0.125",
];

/// The job writes the time of its start.
const JOB: &str = "date +%s%N >began.$SLURM_JOB_ID; sleep 1";

/// The results of a burst on a cluster.
struct Burst {
    /// From the first submission to the start of the last job.
    all_run: Duration,
    /// From the first submission to the end of the last job.
    all_over: Duration,
    prologs: Vec<Duration>,
    /// How often the driver was asked for an instance; None on the cluster with static ones.
    made: Option<usize>,
    requeues: usize,
    drained: usize,
    /// CPU time of Slurm's daemons, their child processes and the jobs, without submissions; None if it cannot be
    /// counted.
    cpu: Option<Duration>,
}

/// One of the clusters.
struct Side<'a> {
    lab: &'a Lab,
    /// Whether gpufrac makes the instances.
    makes: bool,
    meter: Option<&'a Meter>,
    /// The requests, which the jobs use in turn.
    requests: &'a [&'a str],
    /// Whether users submit in turn; otherwise each user submits all jobs at once, as with arrays.
    in_turns: bool,
}

/// The clusters, in the order of [`NAMES`].
const NAMES: [&str; 3] = ["gpufrac", "gpufrac with reuse", "plain Slurm"];

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let gpus = arguments.burst_gpus;
    println!("starting clusters with {gpus} GPUs of {PLACES} places ...");
    let series = arguments.other_series()?;
    let series = series.as_ref();
    let (our_meters, ours) = [("ours", ""), ("reuse", REUSE)]
        .map(|(name, reuse)| Meter::around(name, || cluster(arguments, (build, series), reuse)))
        .into_iter()
        .collect::<Result<(Vec<_>, Vec<_>)>>()?;
    let places = gpus * PLACES;
    let requests = if arguments.burst_mixed { MIXED } else { EQUAL };
    let side = |lab, meter, requests| Side {
        lab,
        makes: true,
        meter,
        requests,
        in_turns: arguments.burst_in_turns,
    };
    let mut sides = vec![
        side(&ours[0], our_meters[0].as_ref(), requests),
        side(&ours[1], our_meters[1].as_ref(), requests),
    ];
    // Instances that an admin divided once hold no mix of sizes.
    let plain = (!arguments.burst_mixed)
        .then(|| plain_cluster(arguments, places, (build, series)))
        .transpose()?;
    if let Some((meter, plain)) = &plain {
        sides.push(Side {
            makes: false,
            ..side(&plain.lab, meter.as_ref(), &["--gres=gpu:1"])
        });
    }
    let users = 3.min(sides[0].lab.users().len());
    // One after the other on each cluster: a burst finds the state that the one before left.
    let kinds = [
        (places as usize, 1),
        (arguments.burst_jobs, 1),
        (arguments.burst_jobs, users),
    ];
    let mut results = kinds.map(|_| NAMES.map(|_| Vec::new()));
    for round in 0..arguments.burst_rounds.max(1) {
        for turn in 0..sides.len() {
            let which = (round + turn) % sides.len();
            for ((jobs, users), results) in kinds.iter().zip(&mut results) {
                println!("{jobs} jobs of {users} users, {} ...", NAMES[which]);
                results[which].push(sides[which].burst(*jobs, *users)?);
            }
        }
    }
    for ((jobs, users), results) in kinds.iter().zip(&results) {
        report(table, *jobs, *users, results);
    }
    for lab in ours {
        lab.stop()?;
    }
    plain.map_or(Ok(()), |(_, plain)| plain.stop())
}

/// The cluster of plain Slurm with as many static instances as there are places.
fn plain_cluster(
    arguments: &BenchArguments,
    places: u32,
    (build, series): (&Path, Option<&Series>),
) -> Result<(Option<Meter>, PlainLab)> {
    let hooks = if arguments.burst_plain_hooks {
        "GresTypes=gpu\nProlog=/bin/true\nEpilog=/bin/true\n"
    } else {
        "GresTypes=gpu\n"
    };
    let plain = Plain {
        build,
        nodes: 1,
        gpus: places,
        gres: &format!("gpu:{places}"),
        gres_conf: "",
        slurm_conf: hooks,
        series,
    };
    Meter::around("plain", || plain.start(&plain::folder("burst")?))
}

fn cluster(
    arguments: &BenchArguments,
    (build, series): (&Path, Option<&Series>),
    reuse: &str,
) -> Result<Lab> {
    let mut builder = Lab::builder();
    if let Some(series) = series {
        builder = series.give(builder);
    }
    let layout = if arguments.burst_mixed { "halves" } else { "slices" };
    let pools = POOL.replace("@LAYOUT@", layout);
    let lab = builder
        .quiet()
        .gpus("H100-80", arguments.burst_gpus)
        .pools(&pools.replace("@REUSE@", reuse))
        .build_folder(build)
        .reaper(REAPER)
        .start()?;
    time_prologs(&lab)?;
    let tell = |words: &[&str]| lab.gpusim(&lab.nodes()[0], words);
    for (call, milliseconds) in arguments.burst_driver.of_calls() {
        let milliseconds = milliseconds.to_string();
        tell(&["delay", "--call", call, "--ms", &milliseconds])?;
    }
    match arguments.burst_driver {
        DriverTimes::Seen | DriverTimes::Started | DriverTimes::Slow => {}
        DriverTimes::Model => drop(tell(&["latency", "on"])?),
        DriverTimes::Uneven => {
            for gpu in 1..arguments.burst_gpus {
                let milliseconds = (3000 * gpu / (arguments.burst_gpus - 1)).to_string();
                let gpu = gpu.to_string();
                tell(&[
                    "delay",
                    "--call",
                    "any",
                    "--ms",
                    &milliseconds,
                    "--gpu",
                    &gpu,
                ])?;
            }
        }
    }
    Ok(lab)
}

fn report(table: &mut Table, jobs: usize, users: usize, results: &[Vec<Burst>; 3]) {
    let [ours, reused, plain] = results;
    for (what, ours, against, theirs) in [
        (
            "without reuse",
            ours,
            "static MIG instances, plain Slurm",
            plain,
        ),
        (
            "with reuse",
            reused,
            "static MIG instances, plain Slurm",
            plain,
        ),
        ("with reuse", reused, "without reuse", ours),
    ] {
        if theirs.is_empty() {
            continue;
        }
        for (moment, time) in [
            ("all run", (|burst| burst.all_run) as fn(&Burst) -> Duration),
            ("all over", |burst| burst.all_over),
        ] {
            let pair = Pair {
                ours: ours.iter().map(time).collect(),
                theirs: theirs.iter().map(time).collect(),
            };
            table.add(
                &format!("{jobs} jobs of 1 s, {users} users, {what}: {moment}"),
                against,
                &pair,
                Goal::None,
            );
        }
    }
    for (name, bursts) in NAMES.iter().zip(results) {
        for burst in bursts {
            table.note(format!(
                "{jobs} jobs of 1 s, {users} users, {name}: {}",
                burst.summary(jobs)
            ));
        }
    }
}

impl Side<'_> {
    fn burst(&self, jobs: usize, users: usize) -> Result<Burst> {
        let lab = self.lab;
        let times = lab.folder().log().join("prolog.times");
        let _ = fs::remove_file(&times);
        let made_now = || self.makes.then(|| made(lab)).transpose();
        let made_before = made_now()?;
        let began = now()?;
        let start = Instant::now();
        let used = || self.meter.map(Meter::used).transpose();
        let used_before = used()?;
        let mut ids = Vec::new();
        for number in 0..jobs {
            let user = if self.in_turns { number % users } else { number * users / jobs };
            let user = &lab.users()[user];
            let request = self.requests[number % self.requests.len()];
            ids.push(lab.sbatch(user, &[request, "--output=/dev/null", "--wrap", JOB])?);
        }
        lab.wait_until_empty(LIMIT)?;
        let all_over = start.elapsed();
        let cpu = used()?.zip(used_before);
        let cpu = cpu.map(|(after, before)| after.saturating_sub(before));
        let mut last = began;
        let mut requeues = 0;
        for job in lab.jobs()? {
            if ids.contains(&job.id()) {
                ensure!(
                    job.state() == "COMPLETED",
                    "job {}: {}",
                    job.id(),
                    job.state()
                );
                requeues += job.field("Restarts").parse::<usize>()?;
            }
        }
        for id in ids {
            let path = lab.folder().work().join(format!("began.{id}"));
            last = last.max(nanoseconds(&fs::read_to_string(&path)?)?);
            fs::remove_file(path)?;
        }
        let text = fs::read_to_string(times).unwrap_or_default();
        Ok(Burst {
            all_run: last.saturating_sub(began),
            all_over,
            made: made_now()?
                .zip(made_before)
                .map(|(after, before)| after - before),
            prologs: text.lines().map(nanoseconds).collect::<Result<_>>()?,
            requeues,
            drained: lab.drained_nodes()?.len(),
            cpu,
        })
    }
}

impl Burst {
    fn summary(&self, jobs: usize) -> String {
        let seconds = self.all_over.as_secs_f64();
        let prologs = if self.prologs.is_empty() {
            "no prolog".to_owned()
        } else {
            format!(
                "prolog p50 {:.2} s, p99 {:.2} s",
                percentile(&self.prologs, 50).as_secs_f64(),
                percentile(&self.prologs, 99).as_secs_f64()
            )
        };
        let cpu = self.cpu.map_or_else(String::new, |cpu| {
            let each = cpu.as_secs_f64() * 1000.0 / jobs as f64;
            format!("{each:.0} ms of a core for a job, ")
        });
        let made = self
            .made
            .map_or_else(String::new, |made| format!("{made} instances made, "));
        format!(
            "all run after {:.1} s, {:.0} jobs a minute, {made}{prologs}, {cpu}{} requeues, {} nodes drained",
            self.all_run.as_secs_f64(),
            jobs as f64 * 60.0 / seconds,
            self.requeues,
            self.drained
        )
    }
}

/// How often the driver was asked for an instance. Counting would begin with `calls --start`, which ends delays; the
/// delays let the simulator count.
fn made(lab: &Lab) -> Result<usize> {
    let calls = lab.gpusim(&lab.nodes()[0], &["calls"])?;
    let mut lines = calls.lines().map(str::split_whitespace);
    let line = lines.find(|line| line.clone().any(|word| word == CREATE));
    let count = line.and_then(|mut line| line.find_map(|word| word.parse().ok()));
    Ok(count.unwrap_or(0))
}

/// Puts a program that measures the time before the lab's prolog.
fn time_prologs(lab: &Lab) -> Result<()> {
    let path = lab.folder().bin().join("prolog");
    let untimed = path.with_extension("untimed");
    fs::rename(&path, &untimed)?;
    let times = lab.folder().log().join("prolog.times");
    let define = |name, value: &Path| format!("-D{name}=\"{}\"", value.display());
    let defines = [define("PROLOG", &untimed), define("TIMES", &times)];
    compile(
        "timed_prolog.c",
        &path,
        &defines.each_ref().map(String::as_str),
    )
}

/// The time since 1970.
fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

fn nanoseconds(text: &str) -> Result<Duration> {
    let number = text.trim().parse();
    Ok(Duration::from_nanos(number.with_context(|| {
        format!("`{text}` is no number of nanoseconds")
    })?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let burst = Burst {
            all_run: Duration::from_secs(30),
            all_over: Duration::from_secs(60),
            prologs: (1..=200).rev().map(Duration::from_secs).collect(),
            made: Some(12),
            requeues: 2,
            drained: 0,
            cpu: Some(Duration::from_secs(10)),
        };
        assert_eq!(percentile(&burst.prologs, 50), Duration::from_secs(100));
        assert_eq!(percentile(&burst.prologs, 99), Duration::from_secs(198));
        assert_eq!(
            burst.summary(200),
            "all run after 30.0 s, 200 jobs a minute, 12 instances made, prolog p50 100.00 s, p99 198.00 s, 50 ms of a core for a job, 2 requeues, 0 nodes drained"
        );
    }
}
