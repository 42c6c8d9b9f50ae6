//! Histories with a known answer, and properties that hold for all of them.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use fastrand::Rng;
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::{Cluster, Partition};
use gpufrac_plan::job::{Charge, History, Job, Need};
use gpufrac_plan::limits::Assigned;
use gpufrac_plan::queue::{Outcome, Play, Settings, Work};
use gpufrac_plan::search::{Options, Plan, Windows, plan};
use gpufrac_plan::size::Rule;
use gpufrac_plan::speed::Curve;

fn options(candidates: &[&str]) -> Options {
    Options {
        model: Model::named("H100-80").unwrap(),
        rule: Rule::default(),
        curve: Curve::proportional(),
        queue: Settings::default(),
        limits: Assigned::default(),
        slow: 1.25,
        samples: 6,
        seed: 1,
        windows: Windows::default(),
        counts_cpus: true,
        candidates: candidates
            .iter()
            .map(|text| Candidate::parse(text).unwrap())
            .collect(),
        best: 3,
    }
}

fn job(number: u32, submit: u64, ran: u64, need: Need) -> Job {
    Job {
        id: number.to_string().into(),
        user: 0,
        charge: Charge::default(),
        partition: 0,
        submit,
        waited: 0,
        ran,
        limit: Some(ran),
        nodes: 1,
        gpus: 1,
        cpus: 0,
        memory: 0,
        priority: 0,
        need,
        idle: Vec::new(),
    }
}

/// A job comes each `every` seconds and runs for `ran`.
fn history(jobs: u32, every: u64, ran: u64, need: Need) -> History {
    let mut history = History::default();
    history.partitions.number("gpu");
    history.users.number("ann");
    history.jobs = (0..jobs)
        .map(|number| job(number, u64::from(number) * every, ran, need))
        .collect();
    history
}

fn run(history: &History, nodes: u32, candidates: &[&str]) -> Plan {
    let cluster = Cluster::uniform(nodes, 8);
    plan(history, &cluster, &options(candidates), &mut |_| {}).unwrap()
}

const TINY: Need = Need {
    memory_mib: Some(1000.0),
    activity: Some(0.05),
    share: None,
};

/// Promise (users): a plan finds the gain where all jobs are tiny, none where they need whole GPUs, and the idle time
/// of one holder; jobs without telemetry widen its bands.
/// With `jobs_that_need_whole_gpus_win_nothing`, `one_idle_holder_gives_back_all_but_its_window`,
/// `jobs_without_telemetry_stay_whole_and_widen_the_bands`.
#[test]
fn jobs_that_are_tiny_need_an_eighth_of_the_gpus() {
    // 64 jobs run at a time, on 64 GPUs today.
    let history = history(2000, 60, 64 * 60, TINY);
    let plan = run(&history, 9, &["halves", "whole"]);
    let best = plan.winner().expect("there is a gain");
    assert_eq!(best.candidate, Candidate::parse("halves").unwrap());
    let bands = best.bands.as_ref().unwrap();
    // An eighth counts as 13 units; the activity makes jobs longer, by up to a factor of 1.35.
    assert!((75.0..88.0).contains(&bands.gain.value), "{:?}", bands.gain);
    let today = plan.today.bands.as_ref().unwrap();
    assert!((56..=72).contains(&today.needed.gpus), "{:?}", today.needed);
    assert!((8..=16).contains(&bands.needed.gpus), "{:?}", bands.needed);
}

#[test]
fn jobs_that_need_whole_gpus_win_nothing() {
    let need = Need {
        memory_mib: Some(70_000.0),
        activity: Some(1.0),
        share: None,
    };
    let history = history(1000, 60, 80 * 60, need);
    let plan = run(&history, 8, &["uniform:1/2", "mps"]);
    assert!(plan.winner().is_none(), "{:?}", plan.best);
    let gain = plan.best[0].bands.as_ref().unwrap().gain;
    assert!(gain.low <= 0.0 && gain.high.abs() < 1e-6, "{gain:?}");
}

#[test]
fn jobs_without_telemetry_stay_whole_and_widen_the_bands() {
    let unknown = history(500, 60, 64 * 60, Need::default());
    let plan = run(&unknown, 8, &["halves+4", "mps"]);
    assert!(plan.winner().is_none());
    let mut mixed = unknown.clone();
    mixed
        .jobs
        .iter_mut()
        .step_by(2)
        .for_each(|job| job.need = TINY);
    let gain = run(&mixed, 8, &["mps"]).best[0]
        .bands
        .as_ref()
        .unwrap()
        .gain;
    let mut known = unknown;
    known.jobs.iter_mut().for_each(|job| job.need = TINY);
    let sure = run(&known, 8, &["mps"]).best[0]
        .bands
        .as_ref()
        .unwrap()
        .gain;
    assert!(
        gain.high - gain.low > 2.0 * (sure.high - sure.low),
        "{gain:?} {sure:?}"
    );
}

#[test]
fn one_idle_holder_gives_back_all_but_its_window() {
    let mut history = history(1, 0, 100 * 3600, TINY);
    history.jobs[0].idle = vec![(3600, 99 * 3600)];
    let mut options = options(&["halves"]);
    options.windows.idle = Some(3 * 3600);
    let plan = plan(&history, &Cluster::uniform(1, 8), &options, &mut |_| {}).unwrap();
    assert!((plan.reaped - 96.0).abs() < 1e-9, "{}", plan.reaped);
}

#[test]
fn without_windows_of_its_own_a_plan_says_what_the_usual_ones_give_back() {
    let mut history = history(1, 0, 10 * 3600, TINY);
    history.jobs[0].need.activity = Some(0.0);
    let plan = run(&history, 1, &["halves"]);
    assert!((plan.reaped - 8.0).abs() < 1e-9, "{}", plan.reaped);
    let with = plan.best[0].sums.allocated;
    assert!(
        (with - 0.13 * 10.0).abs() < 0.01,
        "the play itself has no reaper: {with}"
    );
}

#[test]
fn slowed_jobs_are_counted() {
    let need = Need {
        memory_mib: Some(30_000.0),
        activity: Some(1.0),
        share: None,
    };
    let plan = run(&history(100, 600, 3600, need), 2, &["halves"]);
    assert!(
        (plan.best[0].sums.slowed - 1.0).abs() < 1e-9,
        "a half is slower than a GPU"
    );
    assert!(plan.today.sums.slowed.abs() < 1e-9);
}

/// Random work on a cluster.
fn work(random: &mut Rng, jobs: u32, partitions: usize) -> Vec<Work> {
    let mut submit = 0;
    (0..jobs)
        .map(|_| {
            submit += random.u64(..200);
            let (units, count, nodes) = match random.u32(..10) {
                0..4 => (25, 1, 1),
                4..7 => (50, 1, 1),
                7 => (13, 1, 1),
                8 => (100, random.u32(1..5), 1),
                _ => (100, random.u32(1..5), random.u32(1..3)),
            };
            let ran = random.u64(1..4000);
            Work {
                submit,
                ran,
                limit: random.bool().then(|| ran + random.u64(..3000)),
                partition: random.usize(..partitions),
                priority: random.u64(..3),
                units,
                count,
                cpus: [0, 1, 4, 16][random.usize(..4)],
                memory: 0,
                nodes,
                activity: random.f64(),
                share: 1.0,
                quantile: random.f64(),
                class: 0,
            }
        })
        .collect()
}

fn played(work: &[Work], nodes: u32, candidate: &str) -> Outcome {
    let model = Model::named("H100-80").unwrap();
    let gpus = vec![8; nodes as usize];
    let fleet = Candidate::parse(candidate)
        .unwrap()
        .fleet(&model, &gpus)
        .unwrap();
    let all = Partition {
        nodes: (0..nodes as usize).collect(),
        limit: Some(10_000),
        ..Partition::default()
    };
    let some = Partition {
        nodes: (nodes as usize / 2..nodes as usize).collect(),
        ..all.clone()
    };
    Play::run(
        work,
        &[all, some],
        &[],
        fleet,
        &Curve::default(),
        Settings::default(),
    )
}

/// Promise (users): in a plan GPU-seconds balance, more GPUs never wait longer in the mean, and backfill delays no
/// planned job.
/// With `more_gpus_never_wait_longer_in_the_mean`, `backfill_starts_small_jobs_and_delays_no_job_before_them`,
/// `no_schedule_is_better_than_the_bound_and_ours_is_near_it`.
#[test]
fn gpu_seconds_balance_and_no_gpu_is_held_twice() {
    let mut random = Rng::with_seed(test_seed::seed());
    for candidate in ["halves+4", "uniform:1/4", "uniform:1/2", "mps"] {
        let work = work(&mut random, 600, 2);
        let outcome = played(&work, 4, candidate);
        let runs = work
            .iter()
            .zip(&outcome.runs)
            .filter_map(|(job, run)| Some((job, run.as_ref()?)));
        let units = |job: &Work| u64::from(job.units * job.count * job.nodes);
        let by_job: u64 = runs
            .clone()
            .map(|(job, run)| units(job) * (run.end - run.start))
            .sum();
        let steps = outcome
            .used
            .windows(2)
            .map(|pair| pair[0].1 * (pair[1].0 - pair[0].0));
        assert_eq!(by_job, steps.sum::<u64>(), "{candidate}");
        assert_eq!(
            outcome.used.last().unwrap().1,
            0,
            "{candidate}: all jobs end"
        );
        let most = outcome.used.iter().map(|(_, used)| *used).max().unwrap();
        assert!(most <= 4 * 8 * 100, "{candidate}: {most}");
        for (job, run) in runs {
            assert!(
                run.start >= job.submit && run.end >= run.start + job.ran,
                "{candidate}"
            );
        }
    }
}

#[test]
fn more_gpus_never_wait_longer_in_the_mean() {
    let mut random = Rng::with_seed(test_seed::seed());
    let mut means = [0.0; 3];
    for _ in 0..20 {
        let work = work(&mut random, 300, 1);
        for (mean, nodes) in means.iter_mut().zip([4, 6, 8]) {
            let outcome = played(&work, nodes, "halves+4");
            assert_eq!(outcome.refused, 0);
            let waits = work
                .iter()
                .zip(&outcome.runs)
                .map(|(job, run)| run.unwrap().start - job.submit);
            *mean += waits.sum::<u64>() as f64;
        }
    }
    assert!(means[0] >= means[1] && means[1] >= means[2], "{means:?}");
}

#[test]
fn backfill_starts_small_jobs_and_delays_no_job_before_them() {
    let job = |submit, ran, units, count| Work {
        submit,
        ran,
        limit: Some(ran),
        partition: 0,
        priority: 0,
        units,
        count,
        cpus: 0,
        memory: 0,
        nodes: 1,
        activity: 0.0,
        share: 1.0,
        quantile: 0.5,
        class: 0,
    };
    // 7 of 8 GPUs are in use until 1000; the second job needs all 8; the third fits before it, the fourth does not.
    let work = [
        job(0, 1000, 100, 7),
        job(1, 100, 100, 8),
        job(2, 500, 100, 1),
        job(3, 2000, 100, 1),
    ];
    let outcome = played(&work, 1, "whole");
    let starts: Vec<u64> = outcome.runs.iter().map(|run| run.unwrap().start).collect();
    assert_eq!(starts[0], 0);
    assert_eq!(starts[1], 1000, "the plan is kept");
    assert!(starts[2] <= 60, "{starts:?}");
    assert!(starts[3] >= 1000, "{starts:?}");
}

#[test]
fn a_job_that_no_node_can_hold_is_refused() {
    let mut random = Rng::with_seed(3);
    let mut work = work(&mut random, 1, 1);
    work[0].units = 100;
    work[0].count = 9;
    work[0].nodes = 1;
    assert_eq!(played(&work, 2, "whole").refused, 1);
    work[0].count = 1;
    assert_eq!(
        played(&work, 2, "halves").refused,
        1,
        "halves lend no whole GPU"
    );
}
