//! The same jobs on the same node of eight GPUs: four of them lent whole and four in quarters, and all of them
//! `uniform`.
//!
//! Jobs of a whole GPU and of a quarter come in phases, as training by day and notebooks by night do. They sleep; a
//! second here stands for a minute. Both clusters run at the same time and get each job at the same moment.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use gpufrac_lab::{JobId, Lab};

use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

const GPUS: u32 = 8;

/// Four GPUs for each kind of job.
const STATIC: &str = r#"
[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [0, 1, 2, 3]

[pool.pieces]
mechanism = "mig"
layout = "halves"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [4, 5, 6, 7]
"#;

const UNIFORM: &str = r#"
[pool.uniform]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// How long a job runs, in seconds: from, to.
const LENGTHS: (u64, u64) = (15, 45);
/// The part of the node that the jobs of a phase would fill: those of its own kind, and of the other.
const DEMAND: (f64, f64) = (0.85, 0.1);
/// How long all jobs may take to end after the last one came.
const PATIENCE: Duration = Duration::from_secs(1200);

/// A job of the list.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Planned {
    arrival: Duration,
    quarters: u32,
    seconds: u64,
}

/// The list: in each phase most of one kind, beginning with whole GPUs.
fn plan(phases: u32, phase: Duration, seed: u64) -> Vec<Planned> {
    let mut dice = Rng::with_seed(seed);
    let mut jobs = Vec::new();
    let mean = (LENGTHS.0 + LENGTHS.1) as f64 / 2.0;
    for number in 0..phases {
        for (quarters, is_own) in [(4, number % 2 == 0), (1, number % 2 == 1)] {
            let demand = if is_own { DEMAND.0 } else { DEMAND.1 };
            let places = f64::from(GPUS * 4 / quarters) * demand;
            let count = (places * phase.as_secs_f64() / mean).round() as u32;
            for _ in 0..count {
                jobs.push(Planned {
                    arrival: phase * number + phase.mul_f64(dice.f64()),
                    quarters,
                    seconds: dice.u64(LENGTHS.0..=LENGTHS.1),
                });
            }
        }
    }
    jobs.sort_by_key(|job| job.arrival);
    jobs
}

/// What Slurm noted of a job, in seconds since the first submission.
#[derive(Clone, Copy, Debug)]
struct Ran {
    quarters: u32,
    submitted: f64,
    began: f64,
    ended: f64,
}

/// The outcome of the list on a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// Jobs that were done when the last one came.
    done: usize,
    /// Seconds from submission to start, the mean of all jobs.
    wait: f64,
    /// Seconds of a whole GPU that jobs had until the last one came.
    used: f64,
    /// Seconds until all were done.
    all: f64,
}

fn figures(jobs: &[Ran], horizon: f64) -> Figures {
    let within = |job: &Ran| (job.ended.min(horizon) - job.began.min(horizon)).max(0.0);
    Figures {
        done: jobs.iter().filter(|job| job.ended <= horizon).count(),
        wait: jobs
            .iter()
            .map(|job| job.began - job.submitted)
            .sum::<f64>()
            / jobs.len() as f64,
        used: jobs
            .iter()
            .map(|job| within(job) * f64::from(job.quarters) / 4.0)
            .sum(),
        all: jobs.iter().map(|job| job.ended).fold(0.0, f64::max),
    }
}

struct Side {
    lab: Lab,
    jobs: Vec<(JobId, Planned)>,
}

impl Side {
    fn start(build: &Path, pools: &str) -> Result<Side> {
        let builder = Lab::builder()
            .quiet()
            .gpus("H100-80", GPUS)
            .build_folder(build);
        let lab = builder.pools(pools).start()?;
        Ok(Side {
            lab,
            jobs: Vec::new(),
        })
    }

    fn submit(&mut self, planned: Planned) -> Result<()> {
        let gres = match planned.quarters {
            4 => "--gres=gpufrac:1",
            _ => "--gres=gpufrac:0.25",
        };
        let wrap = format!("--wrap=exec sleep {}", planned.seconds);
        // The time limit is what backfill knows of a job, so it is near the truth.
        let args = ["-t1", "-n1", gres, &wrap];
        let job = self.lab.sbatch(&self.lab.users()[0], &args)?;
        self.jobs.push((job, planned));
        Ok(())
    }

    /// Waits for the end of all jobs, and reads what Slurm noted of them.
    fn finish(&self) -> Result<Vec<Ran>> {
        self.lab.wait("the end of all jobs", PATIENCE, || {
            let left = self
                .lab
                .command("squeue")
                .args(["-h", "-o", "%A"])
                .stdout()?;
            Ok(left.trim().is_empty().then_some(()))
        })?;
        let read = |(job, planned): &(JobId, Planned)| -> Result<(u32, [f64; 3])> {
            let seen = self.lab.job(*job)?;
            anyhow::ensure!(seen.state() == "COMPLETED", "{seen:?}");
            let mut times = [0.0; 3];
            for (time, name) in times.iter_mut().zip(["SubmitTime", "StartTime", "EndTime"]) {
                let text = seen.field(name);
                let at = humantime::parse_rfc3339_weak(text)
                    .with_context(|| format!("{name}={text}"))?;
                *time = at.duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
            }
            Ok((planned.quarters, times))
        };
        let all = self.jobs.iter().map(read).collect::<Result<Vec<_>>>()?;
        let first = all
            .iter()
            .map(|(_, times)| times[0])
            .fold(f64::MAX, f64::min);
        let ran = |(quarters, times): (u32, [f64; 3])| {
            let [submitted, began, ended] = times.map(|time| time - first);
            Ran {
                quarters,
                submitted,
                began,
                ended,
            }
        };
        Ok(all.into_iter().map(ran).collect())
    }
}

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let phase = Duration::from_secs(arguments.layouts_phase);
    let jobs = plan(arguments.layouts_phases, phase, arguments.layouts_seed);
    let horizon = phase * arguments.layouts_phases;
    println!(
        "{} jobs in {} s, seed {} ...",
        jobs.len(),
        horizon.as_secs(),
        arguments.layouts_seed
    );
    let mut uniform = Side::start(build, UNIFORM)?;
    let mut divided = Side::start(build, STATIC)?;
    let begin = Instant::now();
    for (number, job) in jobs.iter().enumerate() {
        sleep(job.arrival.saturating_sub(begin.elapsed()));
        let mut sides = [&mut uniform, &mut divided];
        // The first one of a pair would always be ahead by the time of a submission.
        if number % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            side.submit(*job)?;
        }
    }
    println!("all submitted after {} s ...", begin.elapsed().as_secs());
    let ours = figures(&uniform.finish()?, horizon.as_secs_f64());
    let theirs = figures(&divided.finish()?, horizon.as_secs_f64());
    uniform.lab.expect_nothing_left()?;
    divided.lab.expect_nothing_left()?;
    report(jobs.len(), horizon.as_secs_f64(), (ours, theirs), table);
    Ok(())
}

fn report(jobs: usize, horizon: f64, (ours, theirs): (Figures, Figures), table: &mut Table) {
    let against = "4 GPUs whole, 4 in quarters";
    for (what, ours, theirs) in [
        ("uniform: mean wait of a job", ours.wait, theirs.wait),
        ("uniform: until all jobs were done", ours.all, theirs.all),
    ] {
        let pair = Pair {
            ours: vec![Duration::from_secs_f64(ours.max(0.0))],
            theirs: vec![Duration::from_secs_f64(theirs.max(0.0))],
        };
        table.add(what, against, &pair, Goal::None);
    }
    let most = horizon * f64::from(GPUS);
    table.note(format!(
        "of {jobs} jobs in {horizon:.0} s, a second for a minute: done with uniform {}, with {against} {}, ratio {:.2}",
        ours.done,
        theirs.done,
        ours.done as f64 / theirs.done as f64
    ));
    table.note(format!(
        "GPU-hours used meanwhile, of {:.0}: with uniform {:.1} ({:.0} %), with {against} {:.1} ({:.0} %), ratio {:.2}",
        most / 60.0,
        ours.used / 60.0,
        ours.used / most * 100.0,
        theirs.used / 60.0,
        theirs.used / most * 100.0,
        ours.used / theirs.used
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_repeated_by_its_seed_and_asks_for_less_than_the_node_has() {
        let phase = Duration::from_secs(90);
        let jobs = plan(4, phase, 1);
        assert_eq!(jobs, plan(4, phase, 1));
        assert_ne!(jobs, plan(4, phase, 2));
        assert!(jobs.is_sorted_by_key(|job| job.arrival));
        assert!(jobs.iter().all(|job| job.arrival < phase * 4));
        let asked = |quarters| -> f64 {
            let of_kind = jobs.iter().filter(|job| job.quarters == quarters);
            of_kind
                .map(|job| job.seconds as f64 * f64::from(quarters) / 4.0)
                .sum()
        };
        let most = 4.0 * 90.0 * f64::from(GPUS);
        let parts = [asked(4) / most, asked(1) / most];
        assert!(
            parts.iter().all(|part| (0.35..0.6).contains(part)),
            "{parts:?}"
        );
    }

    #[test]
    fn figures_are_of_the_time_before_the_last_job_came() {
        let ran = |quarters, submitted, began, ended| Ran {
            quarters,
            submitted,
            began,
            ended,
        };
        let jobs = [
            ran(4, 0.0, 0.0, 60.0),
            ran(1, 10.0, 20.0, 100.0),
            ran(4, 50.0, 90.0, 130.0),
            ran(1, 60.0, 110.0, 150.0),
        ];
        let want = Figures {
            done: 2,
            wait: 25.0,
            used: 60.0 + 20.0 + 10.0,
            all: 150.0,
        };
        assert_eq!(figures(&jobs, 100.0), want);
    }
}
