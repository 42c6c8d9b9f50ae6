//! Small cases against integer programming: no schedule is better than the bound, and ours is not far from it.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use fastrand::Rng;
use good_lp::{Expression, Solution, SolverModel, constraint, microlp, variable, variables};
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::Partition;
use gpufrac_plan::queue::{Play, Settings, Work};
use gpufrac_plan::speed::Curve;

const GPUS: u32 = 8;
const JOBS: usize = 40;
/// All jobs run as long: a schedule is a sequence of rounds.
const ROUND: u64 = 600;
/// Sizes of `halves`, in units.
const SIZES: [u32; 3] = [13, 25, 50];

/// The fullest halves: how many slices of each size fit by counting.
fn patterns() -> Vec<[u32; 3]> {
    let mut all = Vec::new();
    for halves in 0..=1 {
        for quarters in 0..=2 {
            for eighths in 0..=3 {
                let units = halves * 50 + quarters * 25 + eighths * 13;
                if (1..=50).contains(&units) {
                    all.push([eighths, quarters, halves]);
                }
            }
        }
    }
    all
}

/// The least sum of the rounds in which jobs start, over all schedules.
fn bound(counts: [usize; 3], rounds: usize) -> f64 {
    let patterns = patterns();
    let mut variables = variables!();
    let uses: Vec<Vec<_>> = (0..rounds)
        .map(|_| variables.add_vector(variable().integer().min(0).max(2 * GPUS), patterns.len()))
        .collect();
    let starts: Vec<Vec<_>> = (0..rounds)
        .map(|_| variables.add_vector(variable().integer().min(0).max(JOBS as u32), 3))
        .collect();
    let cost: Expression = starts
        .iter()
        .enumerate()
        .flat_map(|(round, starts)| starts.iter().map(move |start| *start * round as f64))
        .sum();
    let mut model = variables.minimise(cost.clone()).using(microlp);
    for round in 0..rounds {
        let all: Expression = uses[round].iter().sum();
        model = model.with(constraint!(all <= 2 * GPUS));
        for size in 0..3 {
            let room: Expression = uses[round]
                .iter()
                .zip(&patterns)
                .map(|(uses, pattern)| *uses * f64::from(pattern[size]))
                .sum();
            model = model.with(constraint!(starts[round][size] <= room));
        }
    }
    for size in 0..3 {
        let all: Expression = starts.iter().map(|starts| starts[size]).sum();
        model = model.with(constraint!(all == counts[size] as f64));
    }
    model.solve().unwrap().eval(&cost)
}

#[test]
fn no_schedule_is_better_than_the_bound_and_ours_is_near_it() {
    let mut random = Rng::with_seed(test_seed::seed());
    let model = Model::named("H100-80").unwrap();
    let (mut ours, mut best) = (0.0, 0.0);
    for _ in 0..5 {
        let work: Vec<Work> = (0..JOBS)
            .map(|_| Work {
                submit: 0,
                ran: ROUND,
                limit: Some(ROUND),
                partition: 0,
                priority: 0,
                units: random.choice(SIZES).unwrap(),
                count: 1,
                cpus: 0,
                memory: 0,
                nodes: 1,
                activity: 0.0,
                share: 1.0,
                quantile: 0.5,
                class: 0,
            })
            .collect();
        let counts = SIZES.map(|size| work.iter().filter(|job| job.units == size).count());
        let fleet = Candidate::parse("halves")
            .unwrap()
            .fleet(&model, &[GPUS])
            .unwrap();
        let partition = Partition {
            nodes: vec![0],
            ..Partition::default()
        };
        let outcome = Play::run(
            &work,
            &[partition],
            &[],
            fleet,
            &Curve::default(),
            Settings::default(),
        );
        let waited: u64 = outcome.runs.iter().map(|run| run.unwrap().start).sum();
        let bound = bound(counts, 4) * ROUND as f64;
        assert!(waited as f64 >= bound - 1e-6, "{waited} {bound} {counts:?}");
        ours += waited as f64;
        best += bound;
    }
    println!("sum of waits: {ours:.0} s, bound {best:.0} s");
    // In the order of submission, small jobs wait behind large ones: the bound may start them first.
    assert!(ours <= 2.0 * best + 10.0 * ROUND as f64, "{ours} {best}");
}
