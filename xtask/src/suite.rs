//! The tests, in stages.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::cargo::{Counts, build, cargo, run, run_tests, stage, tests};
use crate::matrix::{self, Matrix, Results};
use crate::series::{self, Series};
use crate::setup;

/// A part of the end-to-end tests: those whose names contain one of these, and how many at a time.
struct Part {
    names: &'static [&'static str],
    threads: u8,
}

/// Parts with needs of their own, in this order; all other tests come last, and may share the machine.
const PARTS: [Part; 3] = [
    // These build plugins.
    Part {
        names: &["panics::", "release::"],
        threads: 2,
    },
    // These need the whole machine to be in time, as hundreds of jobs run at once.
    Part {
        names: &["reaper::patterns", "reaper::replay"],
        threads: 1,
    },
    // These look at what processes do in seconds.
    Part {
        names: &["reaper::"],
        threads: 3,
    },
];
const OTHERS_AT_A_TIME: &str = "--test-threads=4";

/// So many tests of a part are run again when they failed, one at a time: they wait for real daemons by the clock, on a
/// machine that may stand still for seconds. More than these fail of a defect.
const MOST_AGAIN: usize = 3;

/// Not these: what they look for may happen once in thousands of jobs.
const NEVER_AGAIN: [&str; 2] = ["soak", "patterns"];

/// What says how much the reaper gains in a day, for six minutes: on the machine's own series alone.
const ONCE: &str = "reaper::replay";

/// Of the random jobs of `reaper::patterns`, how many are enough on a series that is not the machine's own.
const FEWER_PATTERNS: &str = "200";
const PATTERNS: &str = "GPUFRAC_PATTERN_JOBS";

/// All stages, or set-up, build and the end-to-end tests called `name`; those on one series of Slurm, or on all.
pub(crate) fn test(slurm: Option<&str>, name: Option<&str>) -> Result<()> {
    let before = Instant::now();
    let series = stage("set-up", || {
        setup::run()?;
        match (slurm, name) {
            (Some(slurm), _) => Ok(vec![Series::prepare(slurm)?]),
            (None, Some(_)) => Ok(vec![Series::own()?]),
            (None, None) => series::names().map(Series::prepare).collect(),
        }
    })?;
    let mut counts = Counts::default();
    let mut matrix = Matrix::default();
    if let Some(name) = name {
        for series in &series {
            build_for(series)?;
            let (counted, results) = end_to_end(series, &[name, "--test-threads=3"])?;
            matrix.add(series.name, results);
            counts += counted;
        }
        if counts == Counts::default() {
            bail!("no end-to-end test has a name with `{name}` in it");
        }
    } else {
        counts += without_a_cluster()?;
        for series in &series {
            counts += all_end_to_end(series, &mut matrix)?;
        }
        stage("documentation", || {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        })?;
    }
    println!(
        "== what passed on which Slurm (n/a: it has nothing to show there; again: it failed, and passed when it was run \
         alone)\n{matrix}"
    );
    println!("== all stages in {:.1} s", before.elapsed().as_secs_f64());
    conclude(counts)
}

/// All tests of the lab on a series, part by part.
fn all_end_to_end(series: &Series, matrix: &mut Matrix) -> Result<Counts> {
    build_for(series)?;
    let mut counts = Counts::default();
    let mut done: Vec<&str> = Vec::new();
    if !series.is_own() {
        done.push(ONCE);
    }
    for Part { names, threads } in PARTS {
        let threads = format!("--test-threads={threads}");
        let mut args = vec![threads.as_str()];
        args.extend(names);
        args.extend(done.iter().flat_map(|name| ["--skip", name]));
        counts += part(series, matrix, &args)?;
        done.extend(names);
    }
    let mut args = vec![OTHERS_AT_A_TIME];
    args.extend(done.iter().flat_map(|name| ["--skip", name]));
    counts += part(series, matrix, &args)?;
    Ok(counts)
}

/// Runs tests of the lab, and a few that failed once more. The matrix tells those that passed only then.
fn part(series: &Series, matrix: &mut Matrix, args: &[&str]) -> Result<Counts> {
    let (mut counts, mut results) = end_to_end(series, args)?;
    let failed = matrix::failed(&results);
    let may = |name: &&str| !NEVER_AGAIN.iter().any(|never| name.contains(never));
    let again: Vec<&str> = failed.iter().map(|it| &**it).filter(may).collect();
    // What is not counted there did not even start.
    if counts.failed as usize == failed.len() && (1..=MOST_AGAIN).contains(&again.len()) {
        let args = [&["--test-threads=1", "--exact"][..], &again].concat();
        let (_, second) = end_to_end(series, &args)?;
        let passed = matrix::passed_again(&mut results, &second);
        counts.passed += passed;
        counts.failed -= passed;
    }
    matrix.add(series.name, results);
    Ok(counts)
}

fn build_for(series: &Series) -> Result<()> {
    stage(&format!("build for Slurm {}", series.name), || {
        series.build()
    })
}

/// Runs tests of the lab on a series that was built for.
fn end_to_end(series: &Series, args: &[&str]) -> Result<(Counts, Results)> {
    let name = format!(
        "end-to-end tests on Slurm {}: {}",
        series.name,
        args.join(" ")
    );
    stage(&name, || {
        let mut command = series.cargo(&[
            "test",
            "--no-fail-fast",
            "-p",
            "gpufrac-lab",
            "--tests",
            "--",
        ]);
        if !series.is_own() && std::env::var_os(PATTERNS).is_none() {
            command.env(PATTERNS, FEWER_PATTERNS);
        }
        command.args(args);
        run_tests(command)
    })
}

/// Format, clippy, and the tests that need no Slurm daemons.
fn without_a_cluster() -> Result<Counts> {
    let mut counts = Counts::default();
    stage("format", || run(&mut cargo(&["fmt", "--all", "--check"])))?;
    stage("clippy", || {
        run(&mut cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    stage("build", build)?;
    stage("unit, property and integration tests", || {
        counts += tests(&["--workspace", "--exclude", "gpufrac-lab", "--quiet"])?;
        Ok(())
    })?;
    stage("crashes and faults at every step on a node", || {
        let feature = ["--features", "failpoints", "--test", "crash", "--quiet"];
        counts += tests(&[["-p", "gpufrac-node"].as_slice(), &feature].concat())?;
        Ok(())
    })?;
    Ok(counts)
}

/// What needs no cluster and takes seconds.
pub(crate) fn unit() -> Result<()> {
    conclude(tests(&[
        "--workspace",
        "--exclude",
        "gpufrac-lab",
        "--lib",
        "--bins",
        "--quiet",
    ])?)
}

fn conclude(counts: Counts) -> Result<()> {
    println!("{} passed, {} failed", counts.passed, counts.failed);
    if counts.failed > 0 {
        bail!("{} failed", counts.failed);
    }
    Ok(())
}
