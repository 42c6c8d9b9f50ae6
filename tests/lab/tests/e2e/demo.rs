//! `cargo xtask demo`, which shows the life of jobs to people.

use std::path::PathBuf;
use std::process::Command;

use gpufrac_lab::{LabError, Slurm};

/// The demo's program, beside the folder of the test programs.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let folder = own.ancestors().nth(2).expect("target/debug");
    folder.join("lab-tasks")
}

#[test]
fn the_demo_shows_four_gpus_that_pieces_had() -> Result<(), LabError> {
    let slurm = Slurm::of_environment()?;
    let mut demo = Command::new(program());
    demo.args(["demo", "--built"]);
    match slurm.prefix() {
        Some(prefix) => demo.arg("--slurm-prefix").arg(prefix),
        None => demo.args(["--slurm", &slurm.series()]),
    };
    let ran = demo.output().expect("cargo built lab-tasks");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{stdout}\n{stderr}");
    let moments = [
        "Four GPUs for a job, which pieces used before",
        "six quarters are in use",
        "The last piece has ended",
        "Nobody else gets a part of them",
        "It returned its GPUs",
        "Nothing is left here either",
    ];
    let mut rest = &*stdout;
    let mut acts = Vec::new();
    for moment in moments {
        let (act, later) = rest
            .split_once(moment)
            .unwrap_or_else(|| panic!("no {moment:?} in {stdout}\n{stderr}"));
        acts.push(act);
        rest = later;
    }
    // The map of each moment.
    let drawn = |act: &str, words: &str| {
        let places = act.lines().filter(|line| line.contains('['));
        places
            .map(|line| line.matches(words).count())
            .sum::<usize>()
    };
    // Behind "six quarters": six, then the two that are left.
    assert_eq!(drawn(acts[2], ": 1/4"), 6 + 2, "{stdout}");
    assert_eq!(drawn(acts[3], ": 4 GPUs 7g.80gb"), 4, "{stdout}");
    assert_eq!(drawn(acts[5], ": 1/4"), 1, "{stdout}");
    assert_eq!(drawn(rest, ":"), 0, "{stdout}");
    Ok(())
}
