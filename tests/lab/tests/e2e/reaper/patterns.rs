//! Jobs with random activity on real Slurm, judged by their own output. `reaper/tests/virtual_time` plays ten
//! thousand of them in virtual time.
//!
//! The oracle knows nothing of samples, starts of windows or escalations: it has the times at which each job started
//! its programs, their arguments, and the end of the job.
//!
//! `GPUFRAC_PATTERN_JOBS` sets the number, `GPUFRAC_TEST_SEED` the seed; each run prints its seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError};
use serde_json::Value;

use super::{Lifetime, lab, lifetimes};
use crate::soak::number;
use test_seed::Dice;

/// `never_used` and `idle` of the policy.
const WINDOW: f64 = 8.0;
/// The warning before the end.
const WARNING_MS: u64 = 3000;
/// Slurm's times are whole seconds, and a program starts some time after its job printed so: a program that began
/// less than this before the end may not have begun.
const TOLERANCE: f64 = 2.0;
/// The tolerance for a busy machine in seconds.
const LATE: f64 = 10.0;

/// The shortest activity that is seen on any machine: samples of a suspected slice may be three intervals apart.
const SHORTEST: f64 = 2.5;

/// Jobs that hold a slice idle for [`IDLE`]. A busy machine misses samples, and an idle time that was not seen whole
/// starts again: the other jobs may all be over before one is ended, these outlast them.
const HOLDERS: usize = 3;
/// The pause of a holder in seconds. A quiet machine ends the holder after a window.
const IDLE: f64 = 90.0;

const POOLS: &str = "\
[pool.slices]
mechanism = \"mig\"
layout = \"slices\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"@NODES@\"
";

/// A part of a job's work.
enum Part {
    /// No program runs.
    Pause(f64),
    /// A program: pairs of activity and seconds.
    Program(Vec<(f64, f64)>),
}

impl Part {
    fn seconds(&self) -> f64 {
        match self {
            Part::Pause(seconds) => *seconds,
            Part::Program(steps) => steps.iter().map(|(_, seconds)| seconds).sum(),
        }
    }
}

/// A random time from `least` to `most` seconds, in tenths.
fn seconds(dice: &mut Dice, least: u64, most: u64) -> f64 {
    (least * 10 + dice.throw((most - least) * 10 + 1)) as f64 / 10.0
}

fn plan(dice: &mut Dice) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut left = seconds(dice, 6, 28);
    while left > 0.0 {
        let part = match dice.throw(5) {
            0 => Part::Pause(seconds(dice, 0, 18) + 0.2),
            // Short programs and pauses in turn.
            1 => Part::Program(vec![(1.0, SHORTEST + seconds(dice, 0, 1))]),
            _ => Part::Program(
                (0..1 + dice.throw(4))
                    .map(|_| {
                        let busy = [0.0, 0.0, 0.01, 0.3, 1.0][dice.throw(5) as usize];
                        (busy, SHORTEST + seconds(dice, 0, 7))
                    })
                    .collect(),
            ),
        };
        left -= part.seconds();
        parts.push(part);
    }
    parts
}

/// The script of a plan; it prints the time before each program.
fn script(plan: &[Part], number: usize) -> String {
    let mut text = format!("plan{number}() {{\n");
    for (position, part) in plan.iter().enumerate() {
        let seconds = part.seconds();
        let _ = match part {
            Part::Pause(_) => writeln!(text, "sleep {seconds:.1}"),
            Part::Program(steps) => {
                let steps: Vec<String> = steps.iter().map(|(b, s)| format!("{b}@{s:.1}")).collect();
                writeln!(
                    text,
                    "echo AT {position} $EPOCHREALTIME; gpusim --root $GPUS/$SLURMD_NODENAME run --memory 100M --pattern steps:{} --seconds {seconds:.1} || echo FAILED",
                    steps.join(",")
                )
            }
        };
    }
    text.push_str("}\n");
    text
}

/// The times at which a job computed and started programs, in seconds since 1970, from its output and its plan.
struct Truth {
    busy: Vec<(f64, f64)>,
    starts: Vec<f64>,
}

fn truth(plan: &[Part], output: &str) -> Truth {
    let mut truth = Truth {
        busy: Vec::new(),
        starts: Vec::new(),
    };
    for line in output.lines().filter_map(|line| line.strip_prefix("AT ")) {
        let mut words = line.split(' ');
        let position: Option<usize> = words.next().and_then(|word| word.parse().ok());
        let at: Option<f64> = words.next().and_then(|word| word.parse().ok());
        let (Some(position), Some(mut at)) = (position, at) else {
            continue;
        };
        truth.starts.push(at);
        if let Some(Part::Program(steps)) = plan.get(position) {
            for (busy, seconds) in steps {
                if *busy > 0.0 {
                    truth.busy.push((at, at + seconds));
                }
                at += seconds;
            }
        }
    }
    truth
}

impl Truth {
    /// The last moment before `end` at which it computed; None if it never did.
    fn last_use(&self, end: f64) -> Option<f64> {
        let before = self.busy.iter().filter(|(from, _)| *from < end - TOLERANCE);
        before.map(|(_, to)| to.min(end)).reduce(f64::max)
    }

    /// The longest time from `begin` to `end` in which it neither computed nor started a program.
    fn longest_pause(&self, begin: f64, end: f64) -> f64 {
        let mut times = self.busy.clone();
        times.extend(self.starts.iter().map(|at| (*at, *at)));
        times.push((end, end));
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut last = begin;
        let mut longest = 0.0_f64;
        for (from, to) in times {
            longest = longest.max(from.min(end) - last);
            last = last.max(to);
        }
        longest
    }
}

#[test]
fn no_busy_job_is_ended_by_mistake() -> Result<(), LabError> {
    let count = number("GPUFRAC_PATTERN_JOBS", 100) as usize;
    let mut dice = Dice::new(test_seed::seed());
    let warning = format!("[\"{WARNING_MS}ms\"]");
    let window = format!("\"{WINDOW}s\"");
    let lab = lab(
        &[
            ("warn", &warning),
            ("never_used", &window),
            ("idle", &window),
            ("reaps_per_hour", "255"),
            ("interval", "\"800ms\""),
            ("over_share", "\"off\""),
        ],
        "",
    )
    .nodes(2)
    .gpus("H100-80", 4)
    .cores_per_node(128)
    .slurm_conf_extra("MaxArraySize=20000")
    .pools(POOLS)
    .start()?;
    let holders = (0..HOLDERS).map(|_| vec![Part::Pause(IDLE)]);
    let plans: Vec<Vec<Part>> = (0..count).map(|_| plan(&mut dice)).chain(holders).collect();
    run(&lab, &plans)?;

    let lifetimes = lifetimes(&lab)?.into_iter();
    let outcomes: BTreeMap<usize, Lifetime> =
        lifetimes.filter_map(|l| Some((l.task?, l))).collect();
    let records = records(&lab)?;
    let (mut ended, mut spared, mut late) = (0, 0, 0);
    let mut wrong = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let output = lab.folder().work().join(format!("plan-{number}.out"));
        let output = std::fs::read_to_string(&output).unwrap_or_default();
        let Some(outcome) = outcomes.get(&number) else {
            wrong.push(format!("task {number}: Slurm does not know it"));
            continue;
        };
        match outcome.state.as_str() {
            "CANCELLED" => ended += 1,
            _ => spared += 1,
        }
        if output.contains("FAILED") {
            wrong.push(format!("task {number}: a program failed: {output}"));
        }
        let record = records.get(&outcome.job);
        match judge(&truth(plan, &output), outcome, record) {
            Verdict::Right => {}
            Verdict::Late => late += 1,
            Verdict::Wrong(why) => {
                wrong.push(format!("task {number}: {why}\n{output}\n{record:?}"))
            }
        }
    }
    println!(
        "{} jobs: {ended} ended, {spared} spared, {late} of them late, {} wrong",
        plans.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    // Otherwise nothing would have been tested. On a busy machine samples are missing, and an end is late, never
    // early. The virtual-time tests check how soon an end is without delays.
    let due = ended + late;
    assert!(
        ended > 0 && due * 20 > count && spared * 20 > count,
        "{ended} ended, {spared} spared, {late} late"
    );
    assert!(lab.drained_nodes()?.is_empty());
    lab.expect_nothing_left()
}

/// Runs the plans as one array and waits for its end.
fn run(lab: &Lab, plans: &[Vec<Part>]) -> Result<(), LabError> {
    let user = &lab.users()[0];
    let mut text = format!(
        "#!/bin/bash\nGPUS={}\n",
        lab.folder().root().join("gpus").display()
    );
    for (number, plan) in plans.iter().enumerate() {
        text.push_str(&script(plan, number));
    }
    text.push_str("plan$SLURM_ARRAY_TASK_ID\n");
    let path = lab.write_work("plans.sh", &text)?;
    let array = format!("--array=0-{}", plans.len() - 1);
    let path = path.display().to_string();
    lab.sbatch(
        user,
        &[&array, "--gres=gpufrac:0.14", "--output=plan-%a.out", &path],
    )?;
    let limit = Duration::from_secs(120 + plans.len() as u64);
    lab.wait("all tasks are over", limit, || {
        let left = lab
            .command("squeue")
            .args(["-h", "-r", "-o", "%i"])
            .stdout()?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(left.trim().is_empty().then_some(()))
    })
}

/// The kept records of jobs with decisions.
fn records(lab: &Lab) -> Result<BTreeMap<u32, Value>, LabError> {
    let mut records = BTreeMap::new();
    for node in lab.nodes() {
        let place = lab.folder().var(node).join("reaper");
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let record: Value = serde_json::from_str(&text).unwrap_or_default();
            let job = record["job"].as_u64().unwrap_or_default() as u32;
            records.insert(job, record);
        }
    }
    Ok(records)
}

/// The oracle's judgement.
enum Verdict {
    Right,
    /// The job should have ended.
    Late,
    /// The job should not have ended, or not in this way.
    Wrong(String),
}

fn judge(truth: &Truth, outcome: &Lifetime, record: Option<&Value>) -> Verdict {
    if outcome.state == "CANCELLED" {
        let since = truth.last_use(outcome.end).unwrap_or(outcome.begin);
        let idle = outcome.end - since;
        if idle < WINDOW - TOLERANCE {
            return Verdict::Wrong(format!("ended though it computed {idle:.1} s before"));
        }
        return match notice_ms(record) {
            Some(notice) if notice >= WARNING_MS => Verdict::Right,
            other => Verdict::Wrong(format!("warned {other:?} ms before")),
        };
    }
    if truth.longest_pause(outcome.begin, outcome.end) > WINDOW + LATE {
        Verdict::Late
    } else {
        Verdict::Right
    }
}

/// The time between the last warning and the end.
fn notice_ms(record: Option<&Value>) -> Option<u64> {
    let events = record?["events"].as_array()?;
    let at = |decision: &str| {
        let event = events.iter().rfind(|event| event["decision"] == decision);
        event?["at_ms"].as_u64()
    };
    at("cancel")?.checked_sub(at("warn")?)
}
