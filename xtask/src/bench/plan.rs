//! The forecast of `gpufrac plan` beside a real Slurm: the same jobs at the same times on the same nodes.
//!
//! The jobs are those of a trace, with shorter times. They sleep; the forecast gets the times at which slurmctld took
//! them, and what a start and an end cost on this machine in the mean. Jobs that a layout can never start are left out,
//! and on Slurm before 23.11 jobs of several GPUs, too: it counts one whole GPU or all GPUs of a node.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use gpufrac_lab::{JobId, Lab};
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::Cluster;
use gpufrac_plan::job::{History, Job};
use gpufrac_plan::place::{Fleet, Size};
use gpufrac_plan::queue::{Outcome, Play, Run, Settings, Work};
use gpufrac_plan::size::{self, Rule};
use gpufrac_plan::speed::Curve;
use gpufrac_plan::sums::{quantile, utilisation};
use gpufrac_plan::{proposal, read};

use super::BenchArguments;
use super::table::Table;
use lab_tasks::series::Series;

const NODES: u32 = 8;
const GPUS: u32 = 8;
const CPUS: u32 = 64;
const MODEL: &str = "H100-80";

/// What the jobs would use of all GPUs as whole GPUs: waits come from the queue, not from this machine.
const LOAD: f64 = 1.6;
/// The shortest and the longest job: seconds.
const LENGTHS: (f64, f64) = (20.0, 240.0);
/// `bf_interval` of the lab.
const INTERVAL: u64 = 1;
/// How long all jobs may take to end after the last one came.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A job of the list.
struct Planned<'a> {
    job: &'a Job,
    arrival: Duration,
    seconds: u64,
}

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let path = arguments
        .plan_history
        .as_ref()
        .context("name a history with --plan-history")?;
    let mut history = History::default();
    read::history(path, None, &mut history, &mut |_| {})?;
    history.sort();
    let series = arguments.other_series()?;
    let name = match &series {
        Some(series) => series.name,
        None => Series::own_name()?,
    };
    let counts_several = name >= "23.11";
    history.jobs.retain(|job| {
        if counts_several {
            job.nodes <= NODES && job.gpus <= GPUS
        } else {
            job.all_gpus() == 1
        }
    });
    let window = Duration::from_secs(arguments.plan_window);
    let jobs = shortened(&history, arguments.plan_jobs, window);
    for layout in &arguments.plan_layouts {
        let candidate = Candidate::parse(layout)?;
        let model = Model::named(MODEL).context("no model")?;
        let jobs = possible(candidate, &model, &jobs)?;
        println!(
            "{layout}: {} jobs of {} in {} s on Slurm {name} ...",
            jobs.len(),
            path.display(),
            window.as_secs()
        );
        let lab = Lab::builder()
            .quiet()
            .nodes(NODES as usize)
            .cores_per_node(CPUS / 2)
            .gpus(MODEL, GPUS)
            .pools(&pools(candidate, &model))
            .build_folder(build);
        let lab = match &series {
            Some(series) => series.give(lab),
            None => lab,
        };
        let seen = on_slurm(&lab.start()?, &jobs)?;
        table.note(compared(layout, path, &seen, candidate)?);
    }
    Ok(())
}

impl Planned<'_> {
    /// Its time limit.
    fn minutes(&self) -> u64 {
        self.seconds / 60 + 2
    }

    fn work(&self, sizes: &[Size]) -> Work {
        let (units, _) = size::choose(self.job, &self.job.need, sizes, Rule::default());
        Work {
            submit: self.arrival.as_secs(),
            ran: self.seconds,
            limit: Some(self.minutes() * 60),
            partition: 0,
            priority: 0,
            units,
            count: self.job.gpus,
            cpus: (units * self.job.gpus * CPUS / (GPUS * 100)).max(1),
            memory: 0,
            nodes: self.job.nodes,
            activity: 0.0,
            share: 1.0,
            quantile: 0.5,
            class: 0,
        }
    }
}

/// Jobs that follow each other in the history, with their order and the proportions of their times. A history of fewer
/// jobs gives random ones of its jobs, some of them more than once.
fn shortened(history: &History, count: usize, window: Duration) -> Vec<Planned<'_>> {
    let mut random = Rng::with_seed(1);
    let all = &history.jobs;
    let jobs: Vec<&Job> = if all.len() < count {
        (0..count).filter_map(|_| random.choice(all)).collect()
    } else {
        let first = random.usize(..=all.len() - count);
        all.iter().skip(first).take(count).collect()
    };
    let wanted = LOAD * f64::from(NODES * GPUS) * window.as_secs_f64();
    let length = |job: &Job, scale: f64| (job.ran as f64 * scale).clamp(LENGTHS.0, LENGTHS.1);
    // The sum of the lengths grows with the scale: found by halving.
    let (mut low, mut high) = (1e-9, 1.0);
    for _ in 0..60 {
        let middle = f64::sqrt(low * high);
        let used = |job: &&Job| length(job, middle) * f64::from(job.all_gpus());
        if jobs.iter().map(used).sum::<f64>() < wanted {
            low = middle
        } else {
            high = middle
        }
    }
    let times = jobs.len().max(1) as f64;
    let planned = |(number, job): (usize, &&'_ Job)| (number, length(job, low));
    let lengths: Vec<(usize, f64)> = jobs.iter().enumerate().map(planned).collect();
    lengths
        .into_iter()
        .map(|(number, seconds)| Planned {
            job: jobs[number],
            arrival: window.mul_f64(number as f64 / times),
            seconds: seconds as u64,
        })
        .collect()
}

/// A job as Slurm saw it: times in seconds.
struct Seen {
    work: Work,
    submit: u64,
    start: u64,
    end: u64,
}

/// The jobs that the layout can start, each with what it asks for.
fn possible<'a>(
    candidate: Candidate,
    model: &Model,
    jobs: &'a [Planned<'a>],
) -> Result<Vec<(&'a Planned<'a>, Work)>> {
    let (cluster, fleet) = empty(candidate, model)?;
    let sizes = fleet
        .lendings()
        .get(1)
        .map(|cut| cut.sizes())
        .unwrap_or_default();
    let work: Vec<Work> = jobs.iter().map(|planned| planned.work(&sizes)).collect();
    let played = play(&work, &cluster, fleet);
    let started = jobs.iter().zip(work).zip(&played.runs);
    Ok(started
        .filter_map(|(job, run)| run.as_ref().map(|_| job))
        .collect())
}

/// The lab as the plan sees it.
fn empty(candidate: Candidate, model: &Model) -> Result<(Cluster, Fleet)> {
    let cluster = Cluster::uniform(NODES, GPUS);
    let fleet = candidate.fleet(model, &cluster.gpus_by_node())?;
    Ok((cluster, fleet.with_cpus(&[Some(CPUS); NODES as usize])))
}

fn play(work: &[Work], cluster: &Cluster, fleet: Fleet) -> Outcome {
    let settings = Settings {
        interval: INTERVAL,
        ..Settings::default()
    };
    Play::run(
        work,
        &cluster.partitions,
        &[],
        fleet,
        &Curve::default(),
        settings,
    )
}

/// The word of a request for the slices of a job on a node.
fn request(work: &Work) -> String {
    match (work.units, work.count) {
        (100, count) => format!("--gres=gpufrac:{count}"),
        (13, _) => "--gres=gpufrac:0.125".to_owned(),
        (units, _) => format!("--gres=gpufrac:0.{units:02}"),
    }
}

fn on_slurm(lab: &Lab, jobs: &[(&Planned<'_>, Work)]) -> Result<Vec<Seen>> {
    let begin = Instant::now();
    let mut submitted = Vec::new();
    for (planned, work) in jobs {
        sleep(planned.arrival.saturating_sub(begin.elapsed()));
        let options = [
            format!("-t{}", planned.minutes()),
            format!("-N{}", work.nodes),
            format!("-n{}", work.nodes),
            format!("-c{}", work.cpus),
            request(work),
            format!("--wrap=exec sleep {}", planned.seconds),
        ];
        let id = lab.sbatch(&lab.users()[0], &options.each_ref().map(String::as_str))?;
        submitted.push((id, work.clone()));
    }
    println!("all submitted after {} s ...", begin.elapsed().as_secs());
    lab.wait("the end of all jobs", PATIENCE, || {
        let left = lab.command("squeue").args(["-h", "-o", "%A"]).stdout()?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    submitted
        .into_iter()
        .map(|(id, work)| seen(lab, id, work))
        .collect()
}

fn seen(lab: &Lab, id: JobId, work: Work) -> Result<Seen> {
    let job = lab.job(id)?;
    ensure!(job.state() == "COMPLETED", "{job:?}");
    let time = |name: &str| -> Result<u64> {
        let text = job.field(name);
        let at = humantime::parse_rfc3339_weak(text).with_context(|| format!("{name}={text}"))?;
        Ok(at.duration_since(std::time::UNIX_EPOCH)?.as_secs())
    };
    Ok(Seen {
        work,
        submit: time("SubmitTime")?,
        start: time("StartTime")?,
        end: time("EndTime")?,
    })
}

/// The tables of the pools, for the nodes of a lab.
fn pools(candidate: Candidate, model: &Model) -> String {
    let text = proposal::file(candidate, model, &Cluster::uniform(1, GPUS));
    let pools = text.split("\n[reaper]").next().unwrap_or_default();
    let lines = pools.lines().filter(|line| !line.starts_with("version"));
    let named = lines.map(|line| {
        if line.starts_with("nodes = ") {
            "nodes = \"@NODES@\"\n".to_owned()
        } else {
            format!("{line}\n")
        }
    });
    named.collect()
}

/// Slurm's figures and those of the forecast, in a line.
fn compared(layout: &str, path: &Path, seen: &[Seen], candidate: Candidate) -> Result<String> {
    let real = Outcome {
        runs: seen
            .iter()
            .map(|job| {
                Some(Run {
                    start: job.start,
                    end: job.end,
                    factor: 1.0,
                })
            })
            .collect(),
        used: used(seen),
        refused: 0,
        barred: 0,
    };
    let cost = |job: &Seen| (job.end - job.start) as f64 - job.work.ran as f64;
    let mean = seen.iter().map(cost).sum::<f64>() / seen.len().max(1) as f64;
    // Whole seconds whose mean is the cost.
    let extra = |number: usize| {
        let until = |number: usize| (mean.max(0.0) * number as f64) as u64;
        until(number + 1) - until(number)
    };
    let work: Vec<Work> = seen
        .iter()
        .enumerate()
        .map(|(number, job)| Work {
            submit: job.submit,
            ran: job.work.ran + extra(number),
            ..job.work.clone()
        })
        .collect();
    let model = Model::named(MODEL).context("no model")?;
    let (cluster, fleet) = empty(candidate, &model)?;
    let forecast = play(&work, &cluster, fleet);
    let (from, until) = (
        seen.iter().map(|job| job.submit).min().unwrap_or(0),
        seen.iter().map(|job| job.submit).max().unwrap_or(0),
    );
    let figures = |outcome: &Outcome| {
        let waits: Vec<f64> = work
            .iter()
            .zip(&outcome.runs)
            .filter_map(|(job, run)| Some((run.as_ref()?.start - job.submit) as f64))
            .collect();
        (
            utilisation(outcome, NODES * GPUS, from, until),
            quantile(&waits, 0.5),
            quantile(&waits, 0.95),
        )
    };
    let (ours, theirs) = (figures(&forecast), figures(&real));
    Ok(format!(
        "{} of {}, {layout}: use of the GPUs forecast {:.1} %, Slurm {:.1} %; median wait forecast {:.0} s, Slurm {:.0} s; 95 % {:.0} s, Slurm {:.0} s; start and end {mean:.1} s",
        seen.len(),
        path.file_name().unwrap_or_default().to_string_lossy(),
        ours.0,
        theirs.0,
        ours.1,
        theirs.1,
        ours.2,
        theirs.2
    ))
}

/// Units in use over time.
fn used(seen: &[Seen]) -> Vec<(u64, u64)> {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for job in seen {
        let units = i64::from(job.work.units * job.work.count * job.work.nodes);
        changes.push((job.start, units));
        changes.push((job.end, -units));
    }
    changes.sort_unstable();
    let mut now = 0;
    changes
        .into_iter()
        .map(|(time, change)| {
            now += change;
            (time, now.unsigned_abs())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_a_lab_have_its_nodes() {
        let model = Model::named(MODEL).unwrap();
        let text = pools(Candidate::parse("halves+4").unwrap(), &model);
        assert_eq!(text.matches("nodes = \"@NODES@\"").count(), 2, "{text}");
        assert!(!text.contains("version"), "{text}");
    }
}
