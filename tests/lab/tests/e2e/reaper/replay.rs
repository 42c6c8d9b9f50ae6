//! A day of a node with eight GPUs: 300 jobs, a few of which hold their slices for hours after their last use. A
//! minute takes a quarter of a second. `reaper/tests/virtual_time` plays a month of such days with real minutes in
//! virtual time.
//!
//! `GPUFRAC_REPLAY_JOBS` and `GPUFRAC_TEST_SEED` set the number and the seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpufrac_lab::{JobId, Lab, LabError};

use super::{Lifetime, lab, lifetimes, submit};
use crate::soak::number;
use test_seed::Dice;

/// A minute of the day, in seconds.
const MINUTE: f64 = 0.25;
/// Percent of all slice-hours that are stalled without the reaper.
const STALLED: f64 = 5.5;
/// Percent of all slice-hours that may remain stalled.
const GOAL: f64 = 0.5;
/// The idle window in minutes, longer than the pauses of busy jobs, which are 20.
const WINDOW: f64 = 25.0;

/// A job of the day; times in minutes.
struct Plan {
    arrival: f64,
    /// 0.125, 0.25 or 0.5.
    fraction: f64,
    /// Its work until its last use.
    script: String,
    busy: f64,
    /// How long it then holds its slice.
    stalled: f64,
}

/// Typical work of jobs: training at full load, bursts, phases on the CPU, loading of data first, many short programs.
fn work(dice: &mut Dice, minutes: f64) -> String {
    let seconds = minutes * MINUTE;
    let program = |pattern: &str, seconds: f64| format!("gpu {pattern} {seconds:.2}\n");
    match dice.throw(5) {
        0 => program("busy", seconds),
        // Slurm needs its time to act, which does not shrink with the day: shorter bursts could fall in it.
        1 => program("burst:4:0.2", seconds),
        // Twenty minutes on the CPU in between.
        2 => {
            let pause = 20.0 * MINUTE;
            let half = ((seconds - pause) / 2.0).max(0.5);
            format!(
                "{}sleep {pause:.2}\n{}",
                program("busy", half),
                program("busy", half)
            )
        }
        3 => {
            let loading = (15.0 * MINUTE).min(seconds / 2.0);
            format!(
                "sleep {loading:.2}\n{}",
                program("burst:1:0.3", seconds - loading)
            )
        }
        _ => {
            let times = (seconds / 1.2).ceil() as u32;
            format!(
                "for i in $(seq {times}); do {}sleep 1; done\n",
                program("busy", 0.2)
            )
        }
    }
}

/// The day: arrivals over the whole day, random sizes and lengths, and enough stalled jobs of eight hours that they
/// are [`STALLED`] percent of all slice-hours.
fn plans(dice: &mut Dice, count: usize) -> Vec<Plan> {
    let mut plans: Vec<Plan> = (0..count)
        .map(|_| {
            let busy = 40.0 + dice.throw(90) as f64;
            Plan {
                arrival: dice.throw(1200) as f64,
                fraction: [0.125, 0.125, 0.25, 0.5][dice.throw(4) as usize],
                script: work(dice, busy),
                busy,
                stalled: 0.0,
            }
        })
        .collect();
    let hours = |plans: &[Plan], of: fn(&Plan) -> f64| -> f64 {
        plans.iter().map(|plan| plan.fraction * of(plan)).sum()
    };
    let busy = hours(&plans, |plan| plan.busy);
    let wanted = busy * STALLED / (100.0 - STALLED);
    let mut left = wanted;
    while left > 1.0 {
        let place = dice.throw(plans.len() as u64) as usize;
        let plan = &mut plans[place];
        if plan.stalled == 0.0 {
            plan.stalled = (left / plan.fraction).min(480.0);
            left -= plan.fraction * plan.stalled;
            // Half of the jobs hold a context meanwhile.
            let hold = match dice.throw(2) {
                0 => format!("gpu idle {:.2}", plan.stalled * MINUTE),
                _ => format!("sleep {:.2}", plan.stalled * MINUTE),
            };
            plan.script = format!("{}date +STALLED=%s.%N\n{hold}\n", plan.script);
        }
    }
    plans.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
    plans
}

#[test]
#[ignore = "takes six minutes, and virtual time plays a month of it: `cargo xtask test --full` runs this on real Slurm"]
fn a_day_of_jobs() -> Result<(), LabError> {
    let count = number("GPUFRAC_REPLAY_JOBS", 300) as usize;
    let plans = plans(&mut Dice::new(test_seed::seed()), count);
    let window = format!("\"{:.0}ms\"", WINDOW * MINUTE * 1000.0);
    let lab = lab(
        &[
            // Activity shorter than three of them may stay unseen.
            ("interval", "\"250ms\""),
            ("never_used", &window),
            ("idle", &window),
            ("over_share", "\"off\""),
            ("warn", "[\"2500ms\"]"),
        ],
        "",
    )
    .gpus("H100-80", 8)
    .cores_per_node(128)
    .start()?;
    let jobs = submit_all(&lab, &plans)?;
    lab.wait("the day is over", Duration::from_secs(400), || {
        let left = lab.command("squeue").args(["-h", "-o", "%i"]).stdout()?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(left.trim().is_empty().then_some(()))
    })?;

    let (mut held, mut stalled, mut planned) = (0.0, 0.0, 0.0);
    let mut killed = Vec::new();
    let lifetimes = lifetimes(&lab)?.into_iter();
    let ended: BTreeMap<u32, Lifetime> = lifetimes.map(|l| (l.job, l)).collect();
    for (plan, job) in plans.iter().zip(&jobs) {
        let Some(Lifetime {
            state, begin, end, ..
        }) = ended.get(&job.0)
        else {
            panic!("Slurm does not know job {job}");
        };
        let output = lab.output(*job)?;
        let since = output
            .lines()
            .find_map(|line| line.strip_prefix("STALLED="));
        let since: Option<f64> = since.and_then(|text| text.parse().ok());
        if state == "CANCELLED" && since.is_none() {
            killed.push(format!("{job}: {}\n{output}", plan.script));
        }
        held += plan.fraction * (end - begin);
        planned += plan.fraction * plan.stalled * MINUTE;
        // Slurm rounds times down to seconds.
        stalled += since.map_or(0.0, |since| plan.fraction * (end + 0.5 - since));
    }
    let without = 100.0 * planned / (held - stalled + planned);
    let with = 100.0 * stalled / held;
    println!(
        "{count} jobs: {without:.2} % of the slice-hours stalled without the reaper, {with:.2} % with it; {} busy jobs ended",
        killed.len()
    );
    let log = lab.reaper_log(&lab.nodes()[0])?;
    assert!(killed.is_empty(), "{}\n{log}", killed.join("\n"));
    assert!(with < GOAL, "{with:.2} %\n{log}");
    assert!(without > 4.0, "{without:.2} %");
    lab.expect_nothing_left()
}

/// Submits each job at its time.
fn submit_all(lab: &Lab, plans: &[Plan]) -> Result<Vec<JobId>, LabError> {
    let user = &lab.users()[0];
    let begin = Instant::now();
    let mut jobs = Vec::new();
    for plan in plans {
        let at = Duration::from_secs_f64(plan.arrival * MINUTE);
        std::thread::sleep(at.saturating_sub(begin.elapsed()));
        let gres = format!("--gres=gpufrac:{}", plan.fraction);
        jobs.push(submit(lab, user, &[&gres], &plan.script)?);
    }
    Ok(jobs)
}
