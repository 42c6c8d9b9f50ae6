//! The cost of a plan: seconds of one core and memory, as jobs and GPUs grow, and to read the output of sacct.
//!
//! `cargo run --release -p gpufrac-plan --example scale`, with `--user-gpus 8` for limits of users, and with `--read
//! 1000000`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use clap::Parser;
use fastrand::Rng;
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::Cluster;
use gpufrac_plan::job::{Charge, History, Job, Need};
use gpufrac_plan::limits::{Assigned, Group, Kind, Limits, Qos};
use gpufrac_plan::queue::Settings;
use gpufrac_plan::search::{Options, Replay, Windows};
use gpufrac_plan::size::Rule;
use gpufrac_plan::speed::Curve;

#[derive(Parser)]
struct Arguments {
    /// Jobs and GPUs of one row, as 100000x6000; rows that grow, unless said
    #[arg(long)]
    only: Option<String>,
    /// GPUs that the jobs would use on average as whole GPUs, as a part of all
    #[arg(long, default_value_t = 1.1)]
    load: f64,
    /// The most GPUs that each of 500 users may have at a time; no limit, unless said
    #[arg(long)]
    user_gpus: Option<u32>,
    /// Write and read so many jobs of sacct instead
    #[arg(long)]
    read: Option<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if let Some(jobs) = arguments.read {
        return read(jobs);
    }
    let rows = match &arguments.only {
        Some(row) => vec![pair(row)?],
        None => vec![
            (10_000, 600),
            (10_000, 6000),
            (30_000, 6000),
            (100_000, 600),
            (100_000, 6000),
        ],
    };
    println!(
        "| jobs | GPUs | layout | seconds | peak memory, MiB | mean wait, s |\n|---|---|---|---|---|---|"
    );
    for (jobs, gpus) in rows {
        for layout in ["whole", "halves+2", "uniform:1/2", "mps"] {
            row(jobs, gpus, layout, &arguments)?;
        }
    }
    Ok(())
}

fn pair(text: &str) -> Result<(u32, u32), Box<dyn Error>> {
    let (jobs, gpus) = text.split_once('x').ok_or("write JOBSxGPUS")?;
    Ok((jobs.parse()?, gpus.parse()?))
}

fn row(jobs: u32, gpus: u32, layout: &str, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut options = Options {
        model: Model::named("H100-80").ok_or("no model")?,
        rule: Rule::default(),
        curve: Curve::default(),
        queue: Settings::default(),
        limits: Assigned::default(),
        slow: 1.25,
        samples: 0,
        seed: 1,
        windows: Windows::default(),
        counts_cpus: true,
        candidates: Vec::new(),
        best: 1,
    };
    let history = history(jobs, gpus, arguments.load);
    let cluster = Cluster::uniform(gpus / 8, 8);
    if let Some(most) = arguments.user_gpus {
        let by_user = Group {
            tres: [(Kind::Gpus, u64::from(most) * 100)].into(),
            jobs: None,
        };
        let qos = Qos {
            by_user,
            ..Qos::default()
        };
        let limits = Limits {
            qos: [("normal".to_owned(), qos)].into(),
            ..Limits::default()
        };
        options.limits = Assigned::new(&limits, "a table", &history, &cluster);
    }
    let begin = Instant::now();
    let replay = Replay::new(&history, &options);
    let played = replay.play(Candidate::parse(layout)?, &replay.sample(None), &cluster)?;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "| {jobs} | {gpus} | {layout} | {seconds:.1} | {} | {:.0} |",
        peak_mib(),
        played.sums.wait_mean
    );
    Ok(())
}

/// Jobs over 30 days, or less if there are few: most of one GPU, lengths over four orders of magnitude.
fn history(jobs: u32, gpus: u32, load: f64) -> History {
    let mut random = Rng::with_seed(1);
    let mut history = History::default();
    history.partitions.number("gpu");
    let qos = history.qos.number("normal");
    let mut seconds = 0.0;
    for number in 0..jobs {
        let ran = 10.0_f64.powf(1.5 + 3.5 * random.f64()) as u64;
        let count = [1, 1, 1, 1, 1, 1, 1, 2, 4, 8][random.usize(..10)];
        seconds += ran as f64 * f64::from(count);
        history.jobs.push(Job {
            id: number.to_string().into(),
            user: history.users.number(&format!("user{}", number % 500)),
            charge: Charge {
                qos,
                ..Charge::default()
            },
            partition: 0,
            submit: 0,
            waited: 0,
            ran,
            limit: Some(ran * random.u64(1..8)),
            nodes: 1,
            gpus: count,
            cpus: 0,
            memory: 0,
            priority: 0,
            need: Need {
                memory_mib: Some(80_000.0 * random.f32() * random.f32()),
                activity: Some(random.f32()),
                share: None,
            },
            idle: Vec::new(),
        });
    }
    let span = seconds / (f64::from(gpus) * load);
    for job in &mut history.jobs {
        job.submit = (span * random.f64()) as u64;
    }
    history.sort();
    history
}

/// The most memory that this process had.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn read(jobs: u64) -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("gpufrac-plan-{}.txt", std::process::id()));
    write(&path, jobs)?;
    let mut history = History::default();
    let begin = Instant::now();
    gpufrac_plan::read::history(&path, None, &mut history, &mut |lines| {
        if lines % 500_000 == 0 {
            println!("{lines} lines");
        }
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(&path)?.len() / 1024 / 1024;
    std::fs::remove_file(&path)?;
    println!(
        "{} jobs read from {bytes} MiB in {seconds:.1} s, peak memory {} MiB",
        history.jobs.len(),
        peak_mib()
    );
    Ok(())
}

/// A job and its batch step in two lines, as sacct prints them.
fn write(path: &std::path::Path, jobs: u64) -> Result<(), Box<dyn Error>> {
    let mut random = Rng::with_seed(1);
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(
        file,
        "JobID|User|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|NodeList|Priority|AdminComment"
    )?;
    let mut line = String::new();
    for job in 0..jobs {
        line.clear();
        let (day, hour, minute) = (1 + job * 28 / jobs, random.u32(..24), random.u32(..60));
        let at = format!("2026-10-{day:02}T{hour:02}:{minute:02}");
        let ran = random.u32(1..86_400);
        let _ = write!(
            line,
            "{job}|user{}|gpu|COMPLETED|{at}:00|{at}:00|{at}:30|Unknown|{ran}|1440|billing=32,cpu=32,gres/gpu:a100=1,gres/gpu=1,mem=128G,node=1|1|gn[{:02}]|{}|\n\
             {job}.batch|||COMPLETED|{at}:30|{at}:30|{at}:30|Unknown|{ran}||cpu=32,gres/gpu:a100=1,gres/gpu=1,mem=128G,node=1|1|gn01||\n",
            random.u32(..500),
            random.u32(..64),
            random.u32(..10_000),
        );
        file.write_all(line.as_bytes())?;
    }
    file.flush()?;
    Ok(())
}
