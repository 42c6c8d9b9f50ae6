//! The cost of gpufrac for slurmctld: many nodes and many pending jobs, with and without gpufrac.
//!
//! Four clusters with the same nodes: gpufrac with halves; the same halves and shares without its plugins; whole GPUs;
//! gpufrac with `uniform`, one device for each GPU. One job holds every CPU, so that all others are pending and
//! slurmctld considers them in each cycle.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gpufrac_lab::Lab;

use super::cluster::{build_submitter, form};
use super::plain::{self, Plain, PlainLab};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

/// Jobs that are submitted together.
const BATCH: usize = 50;
pub(super) const GPUS: u32 = 8;

/// For each kind of job the requests on the four clusters: gpufrac with halves, its shares only, whole GPUs, and
/// gpufrac with `uniform`, which has one size and the whole GPU.
const LOAD: [[&str; 4]; 4] = [
    ["gpufrac:0.25", "shard:25", "gpu:1", "gpufrac:0.25"],
    ["gpufrac:0.5", "shard:50", "gpu:1", "gpufrac:0.25"],
    ["gpufrac:0.125", "shard:13", "gpu:1", "gpufrac:1"],
    ["", "", "", ""],
];

/// Eight devices a node, where halves are sixteen.
const UNIFORM: &str = r#"
[pool.uniform]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// Backfill considers all jobs in each cycle, and no cycle is cut short.
const SETTINGS: &str = "\
SchedulerParameters=batch_sched_delay=3,sched_interval=60,bf_interval=5,bf_max_time=600,bf_continue,bf_max_job_test=20000\n";

/// Cycles of backfill for the median.
const CYCLES: usize = 5;

/// The time limit for some cycles over all jobs.
const PATIENCE: Duration = Duration::from_secs(1200);

/// A cluster on which one job holds every CPU.
pub(super) struct Side {
    pub lab: Lab,
    submitter: PathBuf,
    /// The column of [`LOAD`].
    pub column: usize,
    batches: usize,
    /// The last pending job.
    last: String,
    turns: Cell<usize>,
}

impl Side {
    pub fn new(lab: Lab, column: usize) -> Result<Self> {
        let nodes = lab.nodes().len().to_string();
        let everything = ["-N", &nodes, "--exclusive", "-t600", "--wrap=sleep 86400"];
        let job = lab.sbatch(&lab.users()[1], &everything)?;
        lab.wait_for_state(job, &["RUNNING"])?;
        let submitter = build_submitter(&lab)?;
        lab.command("sdiag").args(["-r"]).stdout()?;
        Ok(Self {
            lab,
            submitter,
            column,
            batches: 0,
            last: String::new(),
            turns: Cell::new(0),
        })
    }

    fn submit(&mut self) -> Result<()> {
        let tres = match LOAD[self.batches % LOAD.len()][self.column] {
            "" => String::new(),
            gres => format!("{}{gres}", form(&self.lab)),
        };
        self.batches += 1;
        let command = self.lab.command(&self.submitter.display().to_string());
        let command = command.user(&self.lab.users()[0]);
        command.args([&BATCH.to_string(), &tres, "60"]).stdout()?;
        Ok(())
    }

    /// Lets slurmctld schedule all submitted jobs. Before this only submissions take its locks.
    fn release(&mut self) -> Result<()> {
        let squeue = self.lab.command("squeue");
        let held = squeue.args(["-h", "-t", "PD", "-o", "%A"]).stdout()?;
        let jobs: Vec<_> = held.split_whitespace().collect();
        self.last = jobs.last().context("no job waits")?.to_string();
        let release = self
            .lab
            .command("scontrol")
            .args(["release", &jobs.join(",")]);
        release.limit(PATIENCE).stdout()?;
        Ok(())
    }

    fn diagnosis(&self) -> Result<String> {
        Ok(self.lab.command("sdiag").stdout()?)
    }

    /// The mean time of slurmctld for a submission, with its wait for locks (`slurmctld_req` of Slurm's proc_req.c).
    pub fn submission(&self) -> Result<Duration> {
        let text = self.diagnosis()?;
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("REQUEST_SUBMIT_BATCH_JOB "))
            .context("sdiag says nothing of submissions")?;
        number_after(line, "ave_time:").map(Duration::from_micros)
    }

    /// The time of backfill for one pending job: the time of a cycle divided by its jobs.
    fn backfill(&self) -> Result<Duration> {
        // Backfill waits until something changes.
        let comment = format!("Comment={}", self.turns.get());
        self.turns.set(self.turns.get() + 1);
        self.lab.command("sdiag").args(["-r"]).stdout()?;
        self.lab
            .update(&[&format!("JobId={}", self.last), &comment])?;
        let text = self.lab.wait("a cycle of backfill", PATIENCE, || {
            let text = self.lab.command("sdiag").stdout()?;
            let enough = backfill(&text, "Total cycles:").is_ok_and(|cycles| cycles >= 1);
            Ok(enough.then_some(text))
        })?;
        let cycle = Duration::from_micros(backfill(&text, "Last cycle:")?);
        let jobs = u32::try_from(backfill(&text, "Last depth cycle:")?)?;
        Ok(cycle / jobs.max(1))
    }

    /// The memory that a daemon uses, in MiB.
    pub fn memory(&self, daemon: &str) -> Result<f64> {
        let pid = self.lab.daemon_pid(daemon);
        let pid = pid.with_context(|| format!("no {daemon}"))?;
        let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(number_after(&text, "VmRSS:")? as f64 / 1024.0)
    }

    pub fn stop(self) -> Result<()> {
        Ok(self.lab.stop()?)
    }
}

/// The options of sbatch for a job of the load.
pub(super) fn request(column: usize, number: usize) -> Vec<String> {
    match LOAD[number % LOAD.len()][column] {
        "" => Vec::new(),
        gres => vec![format!("--gres={gres}")],
    }
}

/// A number from the section about backfill.
fn backfill(text: &str, name: &str) -> Result<u64> {
    let (_, part) = text
        .split_once("Backfilling stats")
        .context("sdiag says nothing of backfill")?;
    number_after(part, name)
}

pub(super) fn number_after(text: &str, name: &str) -> Result<u64> {
    let rest = text.split_once(name).map(|(_, rest)| rest.trim_start());
    let digits = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no number after `{name}` in\n{text}"))
}

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let (nodes, jobs) = (arguments.scale_nodes, arguments.scale_jobs);
    println!("starting four clusters of {nodes} nodes ...");
    let builder = || {
        Lab::builder()
            .quiet()
            .nodes(nodes)
            .gpus("H100-80", GPUS)
            .slurm_conf_extra(SETTINGS)
    };
    let mut ours = Side::new(builder().build_folder(build).start()?, 0)?;
    let mut shares = Side::new(builder().plugins(false).build_folder(build).start()?, 1)?;
    let whole = Plain {
        build,
        nodes,
        gpus: GPUS,
        gres: &format!("gpu:{GPUS}"),
        gres_conf: "",
        slurm_conf: &format!("GresTypes=gpu\n{SETTINGS}"),
        series: None,
    };
    let PlainLab { lab, folder } = whole.start(&plain::folder("scale")?)?;
    let mut whole = Side::new(lab, 2)?;
    let mut uniform = Side::new(builder().pools(UNIFORM).build_folder(build).start()?, 3)?;

    println!("submitting {jobs} jobs to each ...");
    let rounds = (jobs / BATCH).max(2);
    let pair = Pair::measure(rounds, || ours.submit(), || shares.submit())?;
    for _ in 0..=rounds {
        whole.submit()?;
        uniform.submit()?;
    }
    let load = format!("{jobs} jobs on {nodes} nodes");
    table.add(
        &format!("{load}: 50 submissions"),
        "the same shares, no plugins",
        &pair,
        Goal::AtMostTimes(1.0 / 0.97),
    );
    let one = |ours, theirs| Pair {
        ours: vec![ours],
        theirs: vec![theirs],
    };
    let pair = one(ours.submission()?, shares.submission()?);
    table.add(
        "slurmctld's time for a submission (sdiag)",
        "the same shares, no plugins",
        &pair,
        Goal::None,
    );
    println!("waiting for backfill ...");
    for side in [&mut ours, &mut shares, &mut whole, &mut uniform] {
        side.release()?;
    }
    for (other, name) in [
        (&shares, "the same shares, no plugins"),
        (&whole, "8 GPUs a node, lent whole"),
    ] {
        let pair = Pair::measure_timed(CYCLES, || ours.backfill(), || other.backfill())?;
        table.add("backfill, for each job that waits", name, &pair, Goal::None);
    }
    for (other, name) in [
        (&ours, "gpufrac with 16 halves a node"),
        (&whole, "8 GPUs a node, lent whole"),
    ] {
        let pair = Pair::measure_timed(CYCLES, || uniform.backfill(), || other.backfill())?;
        table.add(
            "the same with uniform, 8 devices a node",
            name,
            &pair,
            Goal::None,
        );
    }
    let memory = |side: &Side| side.memory("slurmctld");
    let (memory, plain, whole_memory) = (memory(&ours)?, memory(&shares)?, memory(&whole)?);
    table.note(format!(
        "{load}: slurmctld has {memory:.0} MiB in use, {:.2} of the {plain:.0} MiB without plugins, \
         {:.2} of the {whole_memory:.0} MiB with GPUs that are lent whole",
        memory / plain,
        memory / whole_memory
    ));
    for side in [ours, shares, whole, uniform] {
        side.stop()?;
    }
    Ok(fs::remove_dir_all(folder)?)
}
