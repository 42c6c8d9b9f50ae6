//! Random jobs on random nodes, half of them with disturbances.

use std::time::Duration;

use fastrand::Rng;
use gpufrac_core::policy::IdleWish;

use crate::oracle;
use crate::plans::{Part, between, random};
use crate::play::{Played, Tally, play};
use crate::site::{Class, Site};
use crate::world::{ADA, Submission, World};
use test_seed::seed;

const WORLDS: u64 = 20;
const JOBS: usize = 500;

/// Worlds in which the daemon, the simulation or the oracle was wrong: seed, number of the world, jobs, fault.
const FAILED: [(u64, u64, usize, &str); 4] = [
    (
        103,
        19,
        500,
        "the daemon counted the hour of `reaps_per_hour` from before a slow Slurm ended the job",
    ),
    (
        108,
        1,
        500,
        "the oracle took the breaker for open until the end of the round that saw it open",
    ),
    (
        117,
        10,
        500,
        "the oracle wanted a program to be seen that ended before the first sample of its job did",
    ),
    (
        17_867_554_043_663_991_794,
        2,
        500,
        "the oracle wanted what a job does to be seen while others are looked at once more before their end",
    ),
];

fn submission(dice: &mut Rng, site: &Site) -> Submission {
    let wish = match dice.u8(0..20) {
        0 => IdleWish::Long,
        _ => IdleWish::Default,
    };
    let window = site.idle.max(site.never_used);
    let plan = |_| random(dice, site.interval, site.idle);
    let mut plans: Vec<Vec<Part>> = (0..3).map(plan).collect();
    // A job that is requeued again and again must end at some time.
    plans.push(vec![Part::Program(vec![(1.0, window)])]);
    Submission {
        arrival: between(dice, Duration::ZERO, window * 4),
        units: 1,
        of: 7,
        class: match dice.u8(0..12) {
            0..7 => Class::Plain,
            rest => Class::ALL[rest as usize - 6],
        },
        wish,
        batch: dice.u8(0..10) > 0,
        deaf: dice.u8(0..40) == 0,
        plans,
        beside: Vec::new(),
        user: ADA,
    }
}

/// Half of the jobs have up to three further slices with other work.
fn with_slices(dice: &mut Rng, site: &Site) -> Submission {
    let submission = submission(dice, site);
    let further = dice.u8(0..2) * dice.u8(1..4);
    let beside = (0..further).map(|_| random(dice, site.interval, site.idle));
    Submission {
        beside: beside.collect(),
        ..submission
    }
}

/// The outcome of one world.
struct Outcome {
    ended: usize,
    spared: usize,
    tally: Tally,
}

/// Plays one world, and judges all its jobs.
fn world(
    seed: u64,
    number: u64,
    jobs: usize,
    submission: impl Fn(&mut Rng, &Site) -> Submission,
) -> Outcome {
    let mut dice = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let site = Site::random(&mut dice, number);
    let submissions = (0..jobs).map(|_| submission(&mut dice, &site));
    let submissions = submissions.collect();
    let Played { world, log, tally } = play(World::new(site, submissions, dice));
    let mut wrong = world.wrong.clone();
    for job in &world.jobs {
        let found = oracle::judge(&world.site, job);
        if !found.is_empty() {
            let log = log.lines(&format!(" job={} ", job.id));
            wrong.push(format!(
                "{}\n{}\n{:?}",
                found.join("\n"),
                log.join("\n"),
                job.runs
            ));
        }
    }
    let ends = world.ends();
    let most = world.site.reaps_per_hour;
    for lost in [&[Duration::ZERO], &world.kept.lost[..]].concat() {
        let next = world.kept.lost.iter().find(|next| **next > lost);
        let known = |at: &&Duration| **at >= lost && next.is_none_or(|next| *at < next);
        let ends: Vec<Duration> = ends.iter().filter(known).copied().collect();
        if let Some(at) = too_many_in_an_hour(&ends, most) {
            wrong.push(format!("more than {most} ends in the hour before {at:?}"));
        }
    }
    wrong.truncate(3);
    assert!(
        wrong.is_empty(),
        "world {number} of seed {seed}, {jobs} jobs:\n{}\n{:?}",
        wrong.join("\n\n"),
        world.site
    );
    let runs: usize = world.jobs.iter().map(|job| job.runs.len()).sum();
    Outcome {
        ended: ends.len(),
        spared: runs - ends.len(),
        tally,
    }
}

/// The time at which a node had ended more jobs than the hourly limit.
fn too_many_in_an_hour(ends: &[Duration], most: u32) -> Option<Duration> {
    let hour = Duration::from_secs(3600);
    let most = usize::try_from(most).ok()?;
    let pairs = ends.iter().zip(ends.iter().skip(most));
    let mut close = pairs.filter(|(first, last)| **last < **first + hour);
    close.next().map(|(_, last)| *last)
}

/// Promise (reaper): no busy job of ten thousand is ended, whatever disturbs the daemon.
/// With `worlds_that_ever_failed`, `no_busy_job_is_ended_by_mistake`.
#[test]
fn no_busy_job_of_ten_thousand_is_ended() {
    let seed = seed();
    let (mut quiet, mut troubled) = (0, 0);
    let mut spared = 0;
    let mut sum = Tally::default();
    for number in 0..WORLDS {
        let outcome = world(seed, number, JOBS, submission);
        println!(
            "world {number}: {} ended, {} spared, {:?}",
            outcome.ended, outcome.spared, outcome.tally
        );
        match number % 2 {
            0 => quiet += outcome.ended,
            _ => troubled += outcome.ended,
        }
        spared += outcome.spared;
        sum.add(&outcome.tally);
    }
    // Otherwise the test would have tried nothing.
    let half = WORLDS as usize / 2 * JOBS;
    assert!(
        quiet * 5 > half,
        "{quiet} of {half} jobs ended in quiet worlds"
    );
    assert!(
        troubled * 20 > half,
        "{troubled} of {half} jobs ended in troubled worlds"
    );
    assert!(spared > half, "{spared} runs were spared");
    assert!(sum.has_all(), "a disturbance was never tried: {sum:?}");
}

#[test]
fn a_job_is_as_busy_as_its_busiest_slice() {
    let seed = seed();
    let (mut ended, mut spared) = (0, 0);
    for number in 0..WORLDS / 2 {
        let outcome = world(seed, number, JOBS / 2, with_slices);
        println!(
            "world {number}: {} ended, {} spared",
            outcome.ended, outcome.spared
        );
        ended += outcome.ended;
        spared += outcome.spared;
    }
    let all = WORLDS as usize / 2 * JOBS / 2;
    assert!(ended * 20 > all, "{ended} of {all} jobs ended");
    assert!(spared * 5 > all, "{spared} runs were spared");
}

#[test]
fn worlds_that_ever_failed() {
    for (seed, number, jobs, found) in FAILED {
        println!("seed {seed}, world {number}: {found}");
        world(seed, number, jobs, submission);
    }
}
