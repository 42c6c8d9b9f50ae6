//! How the program starts, and where it ends early.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn command(env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac-prolog"));
    command
        .env_clear()
        .env("GPUFRAC_CONFIG", "/nowhere/gpufrac.toml")
        .env("SLURM_JOB_ID", "1")
        .env("SLURM_JOB_UID", "1000")
        .envs(env.iter().copied());
    command
}

/// The first line of a prolog that would now ask slurmctld to requeue the job, for as long as there is none.
fn first_line(env: &[(&str, &str)]) -> String {
    let mut child = command(env).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    lines.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    line
}

fn prolog(env: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = command(env).output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Promise (admins): a job without a GPU is left alone, before any file is read.
/// With `a_job_without_a_gpu_is_left_alone`.
#[test]
fn a_job_without_gpus_ends_before_anything_is_read() {
    assert_eq!(prolog(&[]), (Some(0), String::new()));
}

#[test]
fn an_ordinary_gpu_job_runs_where_gpufrac_is_not_set_up() {
    assert_eq!(prolog(&[("SLURM_JOB_GPUS", "0")]), (Some(0), String::new()));
}

#[test]
fn a_fraction_without_configuration_is_given_back() {
    let granted = ("SPANK_GPUFRAC", "v1:units=25:mech=mig");
    let text = first_line(&[granted, ("SLURM_JOB_GPUS", "0")]);
    assert!(text.contains("gpufrac: job 1: `/nowhere/gpufrac.toml` does not exist"));
    // It was moved to a node without GPUs, and has what was granted before in its environment for ever.
    assert_eq!(prolog(&[granted]), (Some(0), String::new()));
}

/// Promise (admins): exit codes of prolog and command.
/// With `a_wrong_command_line_is_usage`.
#[test]
fn processes_that_slurmd_did_not_start_count_as_use() {
    let (code, text) = prolog(&[("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_ID", "x")]);
    assert_eq!(code, Some(2));
    assert!(text.contains("SLURM_JOB_ID=x"));
}

/// Promise (admins): a mistake in the file drains no node for an ordinary GPU job.
#[test]
fn a_mistake_in_the_configuration_does_not_drain_for_an_ordinary_job() {
    let folder = std::env::temp_dir().join(format!("gpufrac-prolog-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let config = folder.join("gpufrac.toml");
    std::fs::write(&config, "version = 1\n[pool.p]\nlayuot = 1\n").unwrap();
    let config = config.to_str().unwrap();
    let (code, text) = prolog(&[("SLURM_JOB_GPUS", "0"), ("GPUFRAC_CONFIG", config)]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("gpufrac.toml:3: pool.p.layuot"), "{text}");
    let granted = ("SPANK_GPUFRAC", "v1:units=25:mech=mig");
    let text = first_line(&[granted, ("GPUFRAC_CONFIG", config)]);
    assert!(text.contains("gpufrac.toml:3: pool.p.layuot"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}
