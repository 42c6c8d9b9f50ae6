//! Many jobs at once: gpufrac, which makes each slice when its job comes, beside a plain Slurm that lends MIG instances which an
//! admin has made for good.
//!
//! The simulated driver takes the times that real GPUs were seen to take ([`DRIVER`]); the plain cluster never asks it. Both
//! have eight GPUs with seven places each.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use gpufrac_lab::Lab;

use super::plain::{self, Plain, PlainLab};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

const GPUS: u32 = 8;
/// Instances of the smallest profile on each.
const PLACES: u32 = 7;
/// How long the queue may take to become empty.
const LIMIT: Duration = Duration::from_secs(1800);

const POOL: &str = "\
[pool.sevenths]
mechanism = \"mig\"
layout = \"slices\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"@NODES@\"
";

/// Functions of the driver and their milliseconds.
const DRIVER: [(&str, &str); 5] = [
    ("nvmlInit_v2", "300"),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "1000"),
    ("nvmlGpuInstanceCreateComputeInstance", "500"),
    ("nvmlComputeInstanceDestroy", "300"),
    ("nvmlGpuInstanceDestroy", "700"),
];

/// Runs the prolog and notes how long it took, in nanoseconds.
const TIMED_PROLOG: &str = r#"#!/bin/sh
began=$(/bin/date +%s%N)
@PROLOG@
status=$?
echo $(($(/bin/date +%s%N) - began)) >>@TIMES@
exit $status
"#;

/// Notes when the job began.
const JOB: &str = "date +%s%N >began.$SLURM_JOB_ID; sleep 1";

/// What a cluster made of a burst.
struct Burst {
    /// From the first submission until the last job ran.
    all_run: Duration,
    /// Until the last one was over.
    all_over: Duration,
    prologs: Vec<Duration>,
    requeues: usize,
    drained: usize,
}

/// One of the two clusters.
struct Side<'a> {
    lab: &'a Lab,
    /// Requests, which the jobs have in turns.
    requests: &'a [&'a str],
}

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!("starting two clusters with {GPUS} GPUs of {PLACES} places ...");
    let ours = Lab::builder()
        .quiet()
        .gpus("H100-80", GPUS)
        .pools(POOL)
        .run_on_tmpfs(true)
        .build_folder(build)
        .start()?;
    time_prologs(&ours)?;
    for (call, milliseconds) in DRIVER {
        let delay = ["delay", "--call", call, "--ms", milliseconds];
        ours.gpusim(&ours.nodes()[0], &delay)?;
    }
    let places = GPUS * PLACES;
    let plain = Plain {
        build,
        nodes: 1,
        gpus: places,
        gres: &format!("gpu:{places}"),
        gres_conf: "",
        slurm_conf: "GresTypes=gpu\n",
    };
    let PlainLab { lab, folder } = plain.start(&plain::folder("burst")?)?;
    let sides = [
        Side {
            lab: &ours,
            requests: &["--gres=gpufrac:0.125", "--gres=gpufrac:0.14"],
        },
        Side {
            lab: &lab,
            requests: &["--gres=gpu:1"],
        },
    ];
    let bursts = [
        (places as usize, 1),
        (arguments.burst_jobs, 3.min(ours.users().len())),
    ];
    for (jobs, users) in bursts {
        let mut results: [Vec<Burst>; 2] = [Vec::new(), Vec::new()];
        for round in 0..arguments.burst_rounds.max(1) {
            for turn in 0..2 {
                let which = (round + turn) % 2;
                println!("{jobs} jobs of {users} users, {} ...", name_of(which));
                results[which].push(sides[which].burst(jobs, users)?);
            }
        }
        report(table, jobs, users, &results);
    }
    ours.stop()?;
    lab.stop()?;
    Ok(fs::remove_dir_all(folder)?)
}

fn name_of(side: usize) -> &'static str {
    ["gpufrac", "plain Slurm"][side]
}

fn report(table: &mut Table, jobs: usize, users: usize, [ours, theirs]: &[Vec<Burst>; 2]) {
    let pair = |time: fn(&Burst) -> Duration| Pair {
        ours: ours.iter().map(time).collect(),
        theirs: theirs.iter().map(time).collect(),
    };
    let against = "static MIG instances, plain Slurm";
    table.add(
        &format!("{jobs} jobs of 1 s, {users} users: all run"),
        against,
        &pair(|burst| burst.all_run),
        Goal::None,
    );
    table.add(
        &format!("{jobs} jobs of 1 s, {users} users: all over"),
        against,
        &pair(|burst| burst.all_over),
        Goal::None,
    );
    for (which, bursts) in [ours, theirs].into_iter().enumerate() {
        for burst in bursts {
            table.note(format!(
                "{jobs} jobs of 1 s, {users} users, {}: {}",
                name_of(which),
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
        let began = now()?;
        let start = Instant::now();
        let mut ids = Vec::new();
        for number in 0..jobs {
            let user = &lab.users()[number % users];
            let request = self.requests[number % self.requests.len()];
            ids.push(lab.sbatch(user, &[request, "--output=/dev/null", "--wrap", JOB])?);
        }
        lab.wait_until_empty(LIMIT)?;
        let all_over = start.elapsed();
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
            prologs: text.lines().map(nanoseconds).collect::<Result<_>>()?,
            requeues,
            drained: lab.drained_nodes()?.len(),
        })
    }
}

impl Burst {
    fn summary(&self, jobs: usize) -> String {
        let seconds = self.all_over.as_secs_f64();
        let prologs = match self.prologs.is_empty() {
            true => "no prolog".to_owned(),
            false => format!(
                "prolog p50 {:.2} s, p99 {:.2} s",
                self.percentile(50).as_secs_f64(),
                self.percentile(99).as_secs_f64()
            ),
        };
        format!(
            "all run after {:.1} s, {:.0} jobs a minute, {prologs}, {} requeues, {} nodes drained",
            self.all_run.as_secs_f64(),
            jobs as f64 * 60.0 / seconds,
            self.requeues,
            self.drained
        )
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut times = self.prologs.clone();
        times.sort();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).copied().unwrap_or_default()
    }
}

/// Puts a script that takes the time before the lab's prolog.
fn time_prologs(lab: &Lab) -> Result<()> {
    let path = lab.folder().bin().join("prolog");
    let untimed = path.with_extension("untimed");
    fs::rename(&path, &untimed)?;
    let times = lab.folder().log().join("prolog.times");
    let text = TIMED_PROLOG
        .replace("@PROLOG@", &untimed.display().to_string())
        .replace("@TIMES@", &times.display().to_string());
    fs::write(&path, text)?;
    Ok(fs::set_permissions(
        &path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Since 1970.
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
            requeues: 2,
            drained: 0,
        };
        assert_eq!(burst.percentile(50), Duration::from_secs(100));
        assert_eq!(burst.percentile(99), Duration::from_secs(198));
        assert_eq!(
            burst.summary(200),
            "all run after 30.0 s, 200 jobs a minute, prolog p50 100.00 s, p99 198.00 s, 2 requeues, 0 nodes drained"
        );
    }
}
