//! From a history to the work of a play: sizes, durations, resampled histories.

use std::collections::BTreeMap;

use fastrand::Rng;
use gpufrac_core::layout::LayoutError;

use super::{COURSE, Options};
use crate::candidate::Candidate;
use crate::cluster::{Cluster, Partition};
use crate::job::{History, Job, Need};
use crate::place::Size;
use crate::queue::{Play, Work};
use crate::size;
use crate::speed::MEDIAN;
use crate::sums::{Sums, quantile, series};

/// After how long the reaper ends an idle job: seconds; None for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Idle after use.
    pub idle: Option<u64>,
    /// Idle since the start.
    pub never_used: Option<u64>,
}

/// The windows of gpufrac.toml(5) unless it says others.
const USUAL: Windows = Windows {
    idle: Some(4 * 3600),
    never_used: Some(2 * 3600),
};

/// The first sample of a job is taken by then: seconds since its start.
const FIRST_SAMPLE: u32 = 900;

impl Windows {
    /// How long a job runs until the reaper ends it: seconds.
    pub fn length(&self, job: &Job) -> u64 {
        let mut length = job.ran;
        // A summary without times that saw no activity at all.
        if job.idle.is_empty() && job.need.activity == Some(0.0) {
            length = length.min(self.never_used.unwrap_or(u64::MAX));
        }
        for &(from, idle) in &job.idle {
            let window = if from < FIRST_SAMPLE { self.never_used } else { self.idle };
            if let Some(window) = window.filter(|window| u64::from(idle) > *window) {
                length = length.min(u64::from(from) + window);
            }
        }
        length
    }
}

/// How many jobs get a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeCount {
    /// Units; 100 are a GPU.
    pub units: u32,
    pub jobs: usize,
    /// Their waits: seconds, at 50 and 95 percent.
    pub waits: (u64, u64),
}

/// A play and its figures.
#[derive(Clone, Debug)]
pub struct Played {
    pub sums: Sums,
    /// Sizes of jobs, ascending.
    pub sizes: Vec<SizeCount>,
    /// GPUs in use in each part of the time.
    pub course: Vec<f64>,
}

/// A drawn job: its number, what it needs, and where it is on the curve of speeds.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    job: usize,
    need: Need,
    quantile: f64,
}

/// Plays a history again and again.
pub struct Replay<'a> {
    history: &'a History,
    options: &'a Options,
    /// The jobs whose need was measured. What part of a GPU a job was given says nothing of jobs that asked for a whole
    /// one.
    known: Vec<usize>,
}

impl<'a> Replay<'a> {
    pub fn new(history: &'a History, options: &'a Options) -> Replay<'a> {
        let is_known = |job: &usize| {
            history.jobs[*job].can_share() && history.jobs[*job].need.memory_mib.is_some()
        };
        Replay {
            history,
            options,
            known: (0..history.jobs.len()).filter(is_known).collect(),
        }
    }

    /// The history itself, or one that is resampled: as many jobs, drawn with replacement, each with a workload of its
    /// own on the curve of speeds. Of the jobs without telemetry a part, which differs from sample to sample, needs as
    /// much as jobs with telemetry.
    pub fn sample(&self, number: Option<u64>) -> Vec<Drawn> {
        let jobs = &self.history.jobs;
        let Some(number) = number else {
            let drawn = |job: usize| Drawn {
                job,
                need: jobs[job].need,
                quantile: MEDIAN,
            };
            return (0..jobs.len()).map(drawn).collect();
        };
        let mut random = Rng::with_seed(
            self.options
                .seed
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(number),
        );
        let like_known = random.f64();
        let mut draw = |_| {
            let job = random.usize(..jobs.len());
            let mut need = jobs[job].need;
            if !need.is_known() && !self.known.is_empty() && random.f64() < like_known {
                need = jobs[self.known[random.usize(..self.known.len())]].need;
            }
            Drawn {
                job,
                need,
                quantile: random.f64(),
            }
        };
        let mut drawn: Vec<Drawn> = (0..jobs.len()).map(&mut draw).collect();
        drawn.sort_by_key(|drawn| jobs[drawn.job].submit);
        drawn
    }

    /// The history, with every job without telemetry like one with telemetry; None where there is no such job.
    pub fn as_if_measured(&self) -> Option<Vec<Drawn>> {
        if self.known.is_empty() {
            return None;
        }
        let mut random = Rng::with_seed(self.options.seed);
        let mut sample = self.sample(None);
        for drawn in sample.iter_mut().filter(|drawn| !drawn.need.is_known()) {
            drawn.need = self.history.jobs[self.known[random.usize(..self.known.len())]].need;
        }
        Some(sample)
    }

    /// The work of a sample with the sizes of a way of lending, in the partitions of a cluster.
    pub fn work(&self, sample: &[Drawn], sizes: &[Size], partitions: &[Partition]) -> Vec<Work> {
        let per_gpu = |job: &Job| {
            let partition = partitions.get(job.partition as usize);
            partition.map(|it| it.per_gpu).unwrap_or_default()
        };
        let one = |drawn: &Drawn| {
            let job = &self.history.jobs[drawn.job];
            let (units, _) = size::choose(job, &drawn.need, sizes, self.options.rule);
            Work {
                submit: job.submit,
                ran: self.options.windows.length(job),
                limit: job.limit,
                partition: job.partition as usize,
                priority: job.priority,
                units,
                count: job.gpus,
                cpus: part(job.cpus, per_gpu(job).cpus, job, units),
                memory: part(job.memory, per_gpu(job).memory, job, units),
                nodes: job.nodes,
                activity: drawn.need.activity.map_or(1.0, f64::from),
                share: drawn.need.share.map_or(1.0, f64::from),
                quantile: drawn.quantile,
                class: self.options.limits.class(drawn.job),
            }
        };
        sample.iter().map(one).collect()
    }

    /// The partitions of the history on a cluster.
    pub fn partitions(&self, cluster: &Cluster) -> Vec<Partition> {
        let numbers = 0..u32::try_from(self.history.partitions.len()).unwrap_or(u32::MAX);
        numbers
            .map(|number| cluster.partition(self.history.partitions.name(number)))
            .collect()
    }

    /// Plays a sample. Errors: when the model cannot be cut so.
    pub fn play(
        &self,
        candidate: Candidate,
        sample: &[Drawn],
        cluster: &Cluster,
    ) -> Result<Played, LayoutError> {
        let fleet = candidate.fleet(&self.options.model, &cluster.gpus_by_node())?;
        let fleet = fleet.with_memory(cluster.nodes.iter().map(|node| node.memory));
        let fleet = if self.options.counts_cpus {
            fleet.with_cpus(&cluster.cpus_by_node())
        } else {
            fleet
        };
        let sizes = fleet.pieces();
        let partitions = self.partitions(cluster);
        let work = self.work(sample, &sizes, &partitions);
        let outcome = Play::run(
            &work,
            &partitions,
            &self.options.limits.classes,
            fleet,
            &self.options.curve,
            self.options.queue,
        );
        let sums = Sums::of(&work, &outcome, cluster.gpus(), self.options.slow);
        let mut waits: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        if sizes.len() <= MOST_SIZES {
            waits.extend(sizes.iter().map(|size| (size.units, Vec::new())));
        }
        for (job, run) in work.iter().zip(&outcome.runs) {
            if let Some(run) = run {
                waits
                    .entry(job.units)
                    .or_default()
                    .push((run.start - job.submit) as f64);
            }
        }
        let count = |(units, waits): (u32, Vec<f64>)| SizeCount {
            units,
            jobs: waits.len(),
            waits: (quantile(&waits, 0.5) as u64, quantile(&waits, 0.95) as u64),
        };
        let (first, last) = self.history.span();
        let step = last.saturating_sub(first) as f64 / COURSE as f64;
        let course = series(&outcome, first, last, COURSE);
        Ok(Played {
            sums,
            sizes: waits.into_iter().map(count).collect(),
            course: course
                .iter()
                .map(|units| units / 100.0 / step.max(1e-9))
                .collect(),
        })
    }

    /// GPU-hours of the history that the reaper gives back: with the windows of the plan, else with the usual ones.
    pub fn reaped(&self) -> f64 {
        let windows = if self.options.windows == Windows::default() {
            USUAL
        } else {
            self.options.windows
        };
        let given_back =
            |job: &Job| (job.ran - windows.length(job)) as f64 * f64::from(job.all_gpus());
        self.history.jobs.iter().map(given_back).sum::<f64>() / 3600.0
    }
}

/// The CPUs or the memory of a job on each of its nodes. A job that had what its GPUs bring has its part of it on a
/// piece; a job with another amount asked for it.
fn part(had: u32, per_gpu: Option<u64>, job: &Job, units: u32) -> u32 {
    match per_gpu.map(|per_gpu| per_gpu * u64::from(job.gpus)) {
        Some(brought) if brought == u64::from(had) => {
            let part = brought * u64::from(units.min(100));
            u32::try_from(part.div_ceil(100)).unwrap_or(had)
        }
        _ => had,
    }
}

/// Menus with more sizes, such as every percent, are shown without those that no job has.
const MOST_SIZES: usize = 8;
