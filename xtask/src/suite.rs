//! The tests, in stages.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cargo::{Counts, build, cargo, run, stage, tests};
use crate::setup;

/// The series of Slurm that the tests run on unless told otherwise: Debian 12's.
pub(crate) const SLURM: &str = "22.05";

/// All stages, or set-up, build and the end-to-end tests called `name`.
pub(crate) fn test(slurm: &str, name: Option<&str>) -> Result<()> {
    let before = Instant::now();
    stage("set-up", || {
        setup::run()?;
        check_slurm(slurm)
    })?;
    let mut counts = Counts::default();
    if let Some(name) = name {
        stage("build", build)?;
        stage("end-to-end tests", || {
            counts += tests(&[
                "-p",
                "gpufrac-lab",
                "--tests",
                "--",
                name,
                "--test-threads=3",
            ])?;
            if counts == Counts::default() {
                bail!("no end-to-end test has a name with `{name}` in it");
            }
            Ok(())
        })?;
    } else {
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
        let crowds = ["reaper::patterns", "reaper::replay"];
        stage("end-to-end tests", || {
            let mut args = vec!["-p", "gpufrac-lab", "--", "--test-threads=3"];
            args.extend(crowds.iter().flat_map(|name| ["--skip", name]));
            counts += tests(&args)?;
            Ok(())
        })?;
        // Alone: hundreds of jobs at a time need the whole machine to be in time.
        stage("crowds of jobs", || {
            let args = [
                "-p",
                "gpufrac-lab",
                "--test",
                "e2e",
                "--",
                "--test-threads=1",
            ];
            counts += tests(&[args.as_slice(), &crowds].concat())?;
            Ok(())
        })?;
        stage("documentation", || {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        })?;
    }
    println!("== all stages in {:.1} s", before.elapsed().as_secs_f64());
    conclude(counts)
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

/// That the installed Slurm is of the series `wanted`.
fn check_slurm(wanted: &str) -> Result<()> {
    let output = Command::new("slurmctld")
        .arg("-V")
        .output()
        .context("cannot start slurmctld")?;
    let version = String::from_utf8_lossy(&output.stdout);
    // "slurm-wlm 22.05.8"
    let version = version.split_whitespace().last().unwrap_or_default();
    let series = version
        .rsplit_once('.')
        .map_or(version, |(series, _)| series);
    if series != wanted {
        bail!("the installed Slurm is {version}, and {wanted} was asked for");
    }
    println!("Slurm {version}");
    Ok(())
}
