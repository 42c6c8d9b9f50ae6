//! Compares the ways of lending on a history.

mod needed;
mod replay;

use gpufrac_core::layout::LayoutError;

use crate::candidate::{Candidate, Model};
use crate::cluster::Cluster;
use crate::job::History;
use crate::limits::Assigned;
use crate::queue;
use crate::size::Rule;
use crate::speed::Curve;
use crate::sums::{Band, Sums};

pub use needed::Needed;
pub use replay::{Played, Replay, SizeCount, Windows};

/// The input of a plan.
#[derive(Clone, Debug)]
pub struct Options {
    pub model: Model,
    /// How sizes are chosen.
    pub rule: Rule,
    /// Speeds on pieces.
    pub curve: Curve,
    /// How Slurm is set.
    pub queue: queue::Settings,
    /// The limits of accounts and QOS, which hold with each way of lending.
    pub limits: Assigned,
    /// Jobs count as slowed whose time grows by more than this factor.
    pub slow: f64,
    /// How often the history is resampled.
    pub samples: u32,
    /// The seed of the resampling.
    pub seed: u64,
    /// The reaper's windows.
    pub windows: Windows,
    /// Whether CPUs of nodes are counted, where they are known.
    pub counts_cpus: bool,
    /// The ways of lending; all, if empty.
    pub candidates: Vec<Candidate>,
    /// How many of them are shown.
    pub best: usize,
}

impl Options {
    /// The ways of lending that are compared.
    pub fn all_candidates(&self) -> Vec<Candidate> {
        match self.candidates.as_slice() {
            [] => Candidate::all(&self.model),
            some => some.to_vec(),
        }
    }
}

/// A way of lending with its figures.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The way of lending.
    pub candidate: Candidate,
    pub sums: Sums,
    /// How many jobs get each size.
    pub sizes: Vec<SizeCount>,
    /// Bands; None for those that are not among the best.
    pub bands: Option<Bands>,
    /// GPUs in use over time: mean of each part of the history.
    pub course: Vec<f64>,
}

/// Figures with their bands.
#[derive(Clone, Debug)]
pub struct Bands {
    /// Mean wait: seconds.
    pub wait_mean: Band,
    /// The wait that one of twenty jobs exceeds: seconds.
    pub wait_p95: Band,
    /// GPU-hours that Slurm counts.
    pub allocated: Band,
    /// Percent.
    pub utilisation: Band,
    /// Percent of the jobs.
    pub slowed: Band,
    /// Mean time from submission to end, less that of today: seconds.
    pub turnaround: Band,
    /// The gain in percent of today's figure: of GPU-hours if jobs hardly wait today, else of the mean wait.
    pub gain: Band,
    /// GPUs with which jobs wait no longer than today.
    pub needed: Needed,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub today: Judged,
    /// The best others, best first.
    pub best: Vec<Judged>,
    /// Number of the others.
    pub compared: usize,
    /// Whether waits are compared; else GPU-hours.
    pub by_wait: bool,
    /// GPU-hours of today that the reaper would give back.
    pub reaped: f64,
    /// The mean wait in the history itself: seconds; None where it does not say.
    pub waited: Option<f64>,
    /// The gain of the best way of lending, in percent, if jobs without telemetry needed as much as those with it. None
    /// where all jobs have telemetry, or none has.
    pub if_measured: Option<f64>,
    /// Resampled histories of the bands: fewer than wanted where the history has many jobs.
    pub samples: u32,
}

impl Plan {
    /// The best way of lending, if its gain is above 0 over all of its band.
    pub fn winner(&self) -> Option<&Judged> {
        let first = self.best.first()?;
        let bands = first.bands.as_ref()?;
        (bands.gain.low > 0.0).then_some(first)
    }
}

/// A mean wait below this is none: seconds.
const HARDLY: f64 = 60.0;

/// Jobs that are played for bands at most: of large histories fewer samples are enough, and are made.
const MOST_JOBS: usize = 300_000;

/// The fewest resampled histories.
const FEWEST: usize = 3;

/// Parts of [`Judged::course`].
const COURSE: usize = 120;

/// Compares the candidates. `progress` is called with a text before each part of the work.
/// Errors: when the model cannot be cut as a candidate wants.
pub fn plan(
    history: &History,
    cluster: &Cluster,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Plan, LayoutError> {
    let replay = Replay::new(history, options);
    progress("as today");
    let base = replay.sample(None);
    let today = replay.play(Candidate::TODAY, &base, cluster)?;
    let by_wait = today.sums.wait_mean > HARDLY;
    let mut others = Vec::new();
    let others_than_today = |one: &Candidate| *one != Candidate::TODAY;
    for candidate in options
        .all_candidates()
        .into_iter()
        .filter(others_than_today)
    {
        progress(&format!("{candidate}"));
        let played = replay.play(candidate, &base, cluster)?;
        // A candidate that refuses jobs that run today is none.
        if played.sums.refused <= today.sums.refused {
            others.push((candidate, played));
        }
    }
    let compared = others.len();
    let figure =
        |played: &Played| if by_wait { played.sums.turnaround } else { played.sums.allocated };
    others.sort_by(|(_, one), (_, other)| figure(one).total_cmp(&figure(other)));
    others.truncate(options.best);
    let most = (MOST_JOBS / history.jobs.len().max(1)).max(FEWEST);
    let samples = options.samples.min(u32::try_from(most).unwrap_or(u32::MAX));
    let mut best = bands(
        &replay,
        cluster,
        (by_wait, samples),
        (&today, &others),
        progress,
    )?;
    let today_judged = best.remove(0);
    let if_measured = match (best.first(), history.unmeasured()) {
        (None, _) | (_, 0) => None,
        (Some(first), _) => if_measured(&replay, first.candidate, cluster, by_wait)?,
    };
    let known: Vec<f64> = history.jobs.iter().map(|job| job.waited as f64).collect();
    let says = known.iter().any(|wait| *wait > 0.0);
    Ok(Plan {
        today: today_judged,
        best,
        compared,
        by_wait,
        reaped: replay.reaped(),
        if_measured,
        samples,
        waited: says.then(|| known.iter().sum::<f64>() / known.len() as f64),
    })
}

fn if_measured(
    replay: &Replay<'_>,
    candidate: Candidate,
    cluster: &Cluster,
    by_wait: bool,
) -> Result<Option<f64>, LayoutError> {
    let Some(sample) = replay.as_if_measured() else {
        return Ok(None);
    };
    let today = replay.play(Candidate::TODAY, &sample, cluster)?.sums;
    let own = replay.play(candidate, &sample, cluster)?.sums;
    Ok(Some(gain(&own, &today, by_wait)))
}

/// The gain of a candidate, in percent of today's figure.
fn gain(own: &Sums, today: &Sums, by_wait: bool) -> f64 {
    if by_wait {
        percent_less(own.turnaround, today.turnaround)
    } else {
        percent_less(own.allocated, today.allocated)
    }
}

/// Plays the best candidates on resampled histories; today first.
fn bands(
    replay: &Replay<'_>,
    cluster: &Cluster,
    (by_wait, samples): (bool, u32),
    (today, others): (&Played, &[(Candidate, Played)]),
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Judged>, LayoutError> {
    let all: Vec<(Candidate, &Played)> = std::iter::once((Candidate::TODAY, today))
        .chain(
            others
                .iter()
                .map(|(candidate, played)| (*candidate, played)),
        )
        .collect();
    let mut resampled: Vec<Vec<Sums>> = vec![Vec::new(); all.len()];
    let mut drawn = vec![(replay.sample(None), today.sums.clone())];
    for number in 0..samples {
        progress(&format!("resampled history {} of {}", number + 1, samples));
        let sample = replay.sample(Some(u64::from(number)));
        for ((candidate, _), sums) in all.iter().zip(&mut resampled) {
            sums.push(replay.play(*candidate, &sample, cluster)?.sums);
        }
        let of_today = resampled[0].last().cloned().unwrap_or_default();
        drawn.push((sample, of_today));
    }
    let mut judged = Vec::new();
    for (place, (candidate, played)) in all.iter().enumerate() {
        let own = &resampled[place];
        let figure = |pick: fn(&Sums) -> f64| {
            let values: Vec<f64> = own.iter().map(pick).collect();
            Band::of(pick(&played.sums), &values)
        };
        // Differences are taken within each resampled history.
        let against = |pick: &dyn Fn(&Sums, &Sums) -> f64| {
            let values: Vec<f64> = own
                .iter()
                .zip(&resampled[0])
                .map(|(own, today)| pick(own, today))
                .collect();
            Band::of(pick(&played.sums, &today.sums), &values)
        };
        progress(&format!("GPUs that {candidate} needs"));
        let needed = needed::needed(replay, *candidate, cluster, &drawn)?;
        judged.push(Judged {
            candidate: *candidate,
            sums: played.sums.clone(),
            sizes: played.sizes.clone(),
            course: played.course.clone(),
            bands: Some(Bands {
                wait_mean: figure(|sums| sums.wait_mean),
                wait_p95: figure(|sums| sums.wait_p95),
                allocated: figure(|sums| sums.allocated),
                utilisation: figure(|sums| sums.utilisation),
                slowed: figure(|sums| 100.0 * sums.slowed),
                turnaround: against(&|own, today| own.turnaround - today.turnaround),
                gain: against(&|own, today| gain(own, today, by_wait)),
                needed,
            }),
        });
    }
    Ok(judged)
}

fn percent_less(own: f64, today: f64) -> f64 {
    if today > 0.0 { 100.0 * (today - own) / today } else { 0.0 }
}
