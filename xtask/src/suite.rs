//! The tests, in stages.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::cargo::{Counts, build, cargo, run, run_tests, stage, tests};
use crate::matrix::Matrix;
use crate::series::{self, Series};
use crate::setup;

/// Tests that need the whole machine to be in time, as hundreds of jobs run at once.
const CROWDS: [&str; 2] = ["reaper::patterns", "reaper::replay"];

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
            counts += end_to_end(series, &mut matrix, &[name, "--test-threads=3"])?;
        }
        if counts == Counts::default() {
            bail!("no end-to-end test has a name with `{name}` in it");
        }
    } else {
        counts += without_a_cluster()?;
        for series in &series {
            let mut args = vec!["--test-threads=3"];
            args.extend(CROWDS.iter().flat_map(|name| ["--skip", name]));
            counts += end_to_end(series, &mut matrix, &args)?;
            let crowds = [&["--test-threads=1"], CROWDS.as_slice()].concat();
            counts += end_to_end(series, &mut matrix, &crowds)?;
        }
        stage("documentation", || {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        })?;
    }
    println!("== what passed on which Slurm\n{matrix}");
    println!("== all stages in {:.1} s", before.elapsed().as_secs_f64());
    conclude(counts)
}

/// Builds for a series and runs tests of the lab on it.
fn end_to_end(series: &Series, matrix: &mut Matrix, args: &[&str]) -> Result<Counts> {
    stage(&format!("build for Slurm {}", series.name), || {
        series.build()
    })?;
    stage(
        &format!("end-to-end tests on Slurm {}", series.name),
        || {
            let mut command = series.cargo(&[
                "test",
                "--no-fail-fast",
                "-p",
                "gpufrac-lab",
                "--tests",
                "--",
            ]);
            command.args(args);
            let (counts, results) = run_tests(command)?;
            matrix.add(series.name, results);
            Ok(counts)
        },
    )
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
