//! The cost of the reaper for a node: CPU and memory with all slices of eight GPUs leased, and the delay for jobs
//! that end.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpufrac_lab::Lab;

use super::node::{Node, run};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

/// Seven slices on each of eight GPUs.
const SLICES: usize = 56;
/// The interval of the measurement: half an hour has as many rounds as a day with intervals of 10 s.
const INTERVAL: Duration = Duration::from_millis(200);
/// The default interval.
const USUAL_INTERVAL: Duration = Duration::from_secs(10);
/// The goal in percent of a core.
const CPU_GOAL: f64 = 0.1;
const MEMORY_GOAL_MIB: f64 = 10.0;

const POOLS: &str = "\
[pool.slices]
mechanism = \"mig\"
layout = \"slices\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"@NODES@\"
";

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    footprint(arguments, build, table)?;
    teardown(arguments, build, table)
}

fn settings(interval: Duration) -> String {
    format!(
        "[reaper]\ninterval = \"{}ms\"\nmetrics = \"127.0.0.1:0\"\n",
        interval.as_millis()
    )
}

fn footprint(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!(
        "measuring the reaper on {SLICES} slices, {} rounds ...",
        arguments.reaper_rounds
    );
    let lab = Lab::builder()
        .quiet()
        .gpus("H100-80", 8)
        .pools(POOLS)
        .reaper(&settings(INTERVAL))
        .build_folder(build)
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let root = lab.folder().gpus(node).display().to_string();
    for job in 0..SLICES {
        // Half of the jobs are idle, so that in the end all slices are observed without gaps.
        let pattern = if job % 2 == 0 { "burst:3:0.5" } else { "idle" };
        let script = format!("gpusim --root {root} run --memory 1G --pattern {pattern}");
        lab.sbatch(user, &["--gres=gpufrac:0.14", "--wrap", &script])?;
    }
    lab.wait("every slice is leased", Duration::from_secs(120), || {
        Ok((lab.leases(node)?.len() == SLICES).then_some(()))
    })?;
    let pid = pid_of_reaper(&lab, node)?;
    // By then every slice was sampled, and every buffer has its final size.
    rounds(&lab, node, 60)?;
    let before = (cpu(pid)?, rounds(&lab, node, 0)?, resident(pid)?);
    rounds(&lab, node, arguments.reaper_rounds)?;
    let after = (cpu(pid)?, rounds(&lab, node, 0)?, resident(pid)?);
    let a_round = (after.0 - before.0).as_secs_f64() / (after.1 - before.1) as f64;
    let percent = 100.0 * a_round / USUAL_INTERVAL.as_secs_f64();
    let word = |met: bool| if met { "met" } else { "MISSED" };
    table.note(format!(
        "reaper, {SLICES} slices on 8 GPUs: {:.2} ms of CPU a round, {percent:.3} % of a core at a round every 10 s (goal {CPU_GOAL} %: {}); the simulated driver's part is in it, a real driver's start is not",
        a_round * 1e3,
        word(percent <= CPU_GOAL)
    ));
    table.note(format!(
        "reaper, resident memory: {:.1} MiB after 60 rounds, {:.1} MiB after {} more (goal {MEMORY_GOAL_MIB} MiB: {}; grown by {:.1} %)",
        before.2,
        after.2,
        after.1 - before.1,
        word(after.2 <= MEMORY_GOAL_MIB),
        100.0 * (after.2 - before.2) / before.2
    ));
    lab.stop()?;
    Ok(())
}

/// Prolog and epilog on a node whose reaper observes without gaps, and on a node without a reaper.
fn teardown(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!("measuring teardown beside the reaper ...");
    let start = |watched: bool| -> Result<Lab> {
        let mut builder = Lab::builder()
            .quiet()
            .gpus("H100-80", 1)
            .build_folder(build);
        if watched {
            // Half of this window is over at once, so every slice is observed without gaps.
            let eager = "never_used = \"1s\"\ngrace = \"0s\"\nwarn = [\"100ms\"]\nbreaker = { least = 1, node_share = 0 }\n";
            builder = builder.reaper(&format!("{}{eager}", settings(INTERVAL)));
        }
        Ok(builder.start()?)
    };
    let (watched, alone) = (start(true)?, start(false)?);
    let hooks = |lab: &Lab| -> Result<()> {
        let node = Node {
            lab,
            name: &lab.nodes()[0],
        };
        run(&mut node.hook("gpufrac-prolog", true))?;
        // Long enough for the reaper to watch the job.
        sleep(Duration::from_millis(300));
        run(&mut node.hook("gpufrac-epilog", true))
    };
    let rounds = (arguments.rounds / 5).max(5);
    let pair = Pair::measure(rounds, || hooks(&watched), || hooks(&alone))?;
    table.add(
        "carve, 0.3 s, teardown, beside the reaper",
        "without it",
        &pair,
        Goal::Within(Duration::from_millis(10)),
    );
    watched.stop()?;
    alone.stop()?;
    Ok(())
}

fn pid_of_reaper(lab: &Lab, node: &str) -> Result<u32> {
    let own = format!("--node\0{node}\0");
    let bin = lab.folder().bin().join("gpufrac-reaperd");
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if line.starts_with(&*bin.to_string_lossy()) && line.contains(&own) {
            return Ok(pid);
        }
    }
    bail!("no gpufrac-reaperd runs for {node}");
}

/// Waits for `more` further rounds; returns the number of rounds by the daemon's count.
fn rounds(lab: &Lab, node: &str, more: u64) -> Result<u64> {
    let log = lab.reaper_log(node)?;
    let address = log
        .lines()
        .find_map(|line| {
            line.split_once("metrics at ")
                .map(|(_, address)| address.to_owned())
        })
        .context("the reaper does not say where its metrics are")?;
    let address = address
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .with_context(|| format!("no address: {address}"))?;
    let count = || -> Result<u64> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("gpufrac_reaper_rounds_total{"));
        let value = line.and_then(|line| line.rsplit(' ').next());
        let value = value.with_context(|| format!("no count of rounds in: {text}"))?;
        Ok(value.parse::<f64>()? as u64)
    };
    let first = count()?;
    let limit = Instant::now() + INTERVAL * (more as u32 + 50) * 4;
    while count()? < first + more {
        if Instant::now() > limit {
            bail!("the reaper makes no rounds");
        }
        sleep(INTERVAL * 2);
    }
    count()
}

/// CPU time of all threads of a process; the kernel counts it in nanoseconds.
fn cpu(pid: u32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat"))?;
        let first = text.split(' ').next().unwrap_or_default();
        sum += Duration::from_nanos(first.parse()?);
    }
    Ok(sum)
}

/// Resident memory of a process in MiB.
fn resident(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no VmRSS")?.parse::<f64>()? / 1024.0)
}
