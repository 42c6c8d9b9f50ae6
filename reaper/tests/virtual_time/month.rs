//! A month of a node with eight GPUs: 300 jobs a day, a few of which hold their slices for hours after their last
//! use. The daemon restarts each day.

use std::time::Duration;

use fastrand::Rng;
use gpufrac_core::policy::IdleWish;
use gpufrac_records::usage::Ended;

use crate::plans::{Part, between};
use crate::play::{Played, play};
use crate::site::{Class, Site};
use crate::world::{ADA, How, Run, Submission, World};
use test_seed::seed;

const MINUTE: Duration = Duration::from_secs(60);
const DAYS: u32 = 30;
const JOBS_PER_DAY: usize = 300;
/// Percent of all slice-hours that are stalled without the reaper.
const STALLED: f64 = 5.5;
/// Percent of all slice-hours that may remain stalled.
const GOAL: f64 = 0.5;
/// The window is longer than the pauses of busy jobs, which are at most 20 minutes. Bursts repeat within half of the
/// window; in its second half slices are observed without gaps.
const WINDOW: Duration = Duration::from_secs(25 * 60);
const PAUSE: Duration = Duration::from_secs(20 * 60);

/// A job of the month.
struct Plan {
    arrival: Duration,
    /// The size in eighths of a GPU.
    units: u32,
    parts: Vec<Part>,
    /// How long it holds its slice after its last use.
    stalled: Duration,
}

impl Plan {
    fn slice_minutes(&self, time: Duration) -> f64 {
        f64::from(self.units) * time.as_secs_f64() / 60.0
    }

    fn busy(&self) -> Duration {
        self.parts.iter().map(Part::length).sum::<Duration>() - self.stalled
    }
}

/// Typical work of jobs: training at full load, bursts of one to fifty percent of the time, phases on the CPU,
/// loading of data first, many short programs.
fn work(dice: &mut Rng, length: Duration) -> Vec<Part> {
    let busy = |length| Part::Program(vec![(1.0, length)]);
    match dice.u8(0..6) {
        0 => vec![busy(length)],
        1 => vec![bursts(dice, length, 0.2, 0.5)],
        2 => vec![bursts(dice, length, 0.01, 0.05)],
        // Twenty minutes on the CPU between two phases on the GPU.
        3 => {
            let half = length.saturating_sub(PAUSE).max(4 * MINUTE) / 2;
            vec![busy(half), Part::Pause(PAUSE), busy(half)]
        }
        4 => {
            let loading = (15 * MINUTE).min(length / 2);
            let program = bursts(dice, length - loading, 0.1, 0.3);
            vec![Part::Pause(loading), program]
        }
        _ => {
            let program = between(dice, MINUTE / 4, MINUTE);
            let turn = program + 4 * MINUTE;
            let turns = 1 + (length.as_secs() / turn.as_secs()) as u32;
            let parts = (0..turns).flat_map(|_| [busy(program), Part::Pause(4 * MINUTE)]);
            let mut parts: Vec<Part> = parts.collect();
            parts.pop();
            parts
        }
    }
}

/// A program that computes for a part of the time, every few minutes.
fn bursts(dice: &mut Rng, length: Duration, least: f64, most: f64) -> Part {
    let period = between(dice, MINUTE, 11 * MINUTE);
    let share = least + (most - least) * dice.f64();
    let busy = period.mul_f64(share);
    let turns = 1 + (length.as_secs() / period.as_secs()) as u32;
    let steps = (0..turns).flat_map(|_| [(0.0, period - busy), (1.0, busy)]);
    Part::Program(steps.collect())
}

/// Arrivals over the whole day, random sizes and lengths, and enough stalled jobs of eight hours that they are
/// [`STALLED`] percent of all slice-hours.
fn plans(dice: &mut Rng) -> Vec<Plan> {
    let mut plans = Vec::new();
    for day in 0..DAYS {
        let first = plans.len();
        for _ in 0..JOBS_PER_DAY {
            let length = MINUTE * dice.u32(40..130);
            plans.push(Plan {
                arrival: MINUTE * (day * 1440 + dice.u32(0..1440)),
                units: [1, 1, 2, 4][dice.usize(0..4)],
                parts: work(dice, length),
                stalled: Duration::ZERO,
            });
        }
        let of_day = &mut plans[first..];
        let busy: f64 = of_day
            .iter()
            .map(|plan| plan.slice_minutes(plan.busy()))
            .sum();
        let mut left = busy * STALLED / (100.0 - STALLED);
        while left > 1.0 {
            let plan = &mut of_day[dice.usize(0..JOBS_PER_DAY)];
            if plan.stalled.is_zero() {
                let most = MINUTE.mul_f64(left / f64::from(plan.units));
                plan.stalled = most.min(MINUTE * 480);
                left -= plan.slice_minutes(plan.stalled);
                // Half of the jobs hold a context meanwhile.
                plan.parts.push(if dice.bool() {
                    Part::Program(vec![(0.0, plan.stalled)])
                } else {
                    Part::Pause(plan.stalled)
                });
            }
        }
    }
    plans
}

fn site() -> Site {
    Site {
        interval: Duration::from_secs(10),
        grace: 5 * MINUTE,
        never_used: WINDOW,
        idle: WINDOW,
        warn: vec![10 * MINUTE],
        second_warning: 5 * MINUTE,
        checkpoint: MINUTE,
        gpus: vec![8; 8],
        reaps_per_hour: 20,
        node_share: 60,
        trouble: None,
        restarts: Some(Duration::from_secs(24 * 3600)),
    }
}

/// Seeds of months in which the daemon, the simulation or the test was wrong, with the fault.
const FAILED: [(u64, &str); 1] = [(
    3_859_240_504,
    "a burst of 5 s went unseen in the second half of the window: a neighbour on the GPU was taken down",
)];

/// Promise (reaper): a month of 300 jobs a day: under 0.5 % of the slice-hours stalled, no busy job ended.
/// With `months_that_ever_failed`, `a_day_of_jobs`.
#[test]
fn a_month_of_jobs() {
    month(seed());
}

#[test]
fn months_that_ever_failed() {
    for (seed, found) in FAILED {
        println!("seed {seed}: {found}");
        month(seed);
    }
}

fn month(seed: u64) {
    let mut dice = Rng::with_seed(seed);
    let plans = plans(&mut dice);
    let submissions = plans.iter().map(|plan| Submission {
        arrival: plan.arrival,
        units: plan.units,
        of: 8,
        class: Class::Plain,
        wish: IdleWish::Default,
        batch: true,
        deaf: false,
        plans: vec![plan.parts.clone()],
        beside: Vec::new(),
        user: ADA,
    });
    let submissions = submissions.collect();
    let Played { world, log, tally } = play(World::new(site(), submissions, dice));
    let (mut held, mut stalled, mut planned) = (0.0, 0.0, 0.0);
    let mut killed = Vec::new();
    for (plan, job) in plans.iter().zip(&world.jobs) {
        let run = &job.runs[0];
        let (end, how) = run.end.unwrap();
        let stalled_from = run.script + plan.busy();
        // A short burst may stay unseen in the first half of the window, but not in the second.
        let earliest = stalled_from + WINDOW / 2;
        if how != How::ByItself && (plan.stalled.is_zero() || end < earliest) {
            let log = log.lines(&format!(" job={} ", job.id));
            killed.push(format!(
                "job {}: {:?}\n{}",
                job.id,
                plan.parts,
                log.join("\n")
            ));
        }
        held += plan.slice_minutes(end - run.begin);
        planned += plan.slice_minutes(plan.stalled);
        if !plan.stalled.is_zero() {
            stalled += plan.slice_minutes(end.saturating_sub(stalled_from));
        }
    }
    let without = 100.0 * planned / (held - stalled + planned);
    let with = 100.0 * stalled / held;
    check_books(&world);
    println!(
        "{} jobs: {without:.2} % of the slice-hours stalled without the reaper, {with:.2} % with it; {tally:?}",
        plans.len()
    );
    assert!(killed.is_empty(), "{}", killed.join("\n\n"));
    assert!(world.wrong.is_empty(), "{}", world.wrong.join("\n"));
    assert!(with < GOAL, "{with:.2} %");
    assert!(without > 5.0, "{without:.2} %");
    assert!(tally.restarts >= DAYS - 1, "{tally:?}");
}

/// The usage records say what the jobs did.
fn check_books(world: &World) {
    let (mut busy, mut unknown, mut length) = (0, 0, 0);
    for record in &world.kept.usage {
        let used = record.used.as_ref().expect("the reaper ran all the time");
        busy += used.busy;
        unknown += used.unknown;
        length += record.seconds;
    }
    let runs: Vec<&Run> = world.jobs.iter().flat_map(|job| &job.runs).collect();
    let seconds = |run: &Run| {
        let (end, _) = run.end.unwrap();
        let length = end - run.begin;
        (
            length.as_secs_f64(),
            run.timeline.activity(run.begin, end) * length.as_secs_f64(),
        )
    };
    let held: f64 = runs.iter().map(|run| seconds(run).0).sum();
    let computed: f64 = runs.iter().map(|run| seconds(run).1).sum();
    let off = |recorded: u64, truth: f64| 100.0 * (recorded as f64 / truth - 1.0);
    println!(
        "usage records: busy {:+.2} % of what the jobs computed, length {:+.3} %, unknown {:.3} %",
        off(busy, computed),
        off(length, held),
        100.0 * unknown as f64 / length as f64
    );
    // Samples are a tenth of the time: the error is that of chance.
    assert!(off(busy, computed).abs() < 2.0);
    // A lease lasts until its epilog is done, up to two seconds longer than the job.
    assert!((0.0..0.1).contains(&off(length, held)));
    assert!((unknown as f64) < 0.01 * length as f64);
    let by_reaper = runs
        .iter()
        .filter(|run| run.end.is_some_and(|(_, how)| how != How::ByItself));
    let reclaimed = world
        .kept
        .usage
        .iter()
        .filter(|record| record.ended == Some(Ended::Reclaimed));
    assert_eq!(reclaimed.count(), by_reaper.count());
}
