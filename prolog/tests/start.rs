//! How the program starts, and where it ends early.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::process::Command;

fn prolog(env: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpufrac-prolog"))
        .env_clear()
        .env("GPUFRAC_CONFIG", "/nowhere/gpufrac.toml")
        .env("SLURM_JOB_ID", "1")
        .env("SLURM_JOB_UID", "1000")
        .envs(env.iter().copied())
        .output()
        .unwrap();
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
fn a_fraction_without_configuration_is_a_broken_node() {
    let granted = ("SPANK_GPUFRAC", "v1:units=25:mech=mig");
    let (code, text) = prolog(&[granted, ("SLURM_JOB_GPUS", "0")]);
    assert_eq!(code, Some(1));
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
    let (code, _) = prolog(&[
        ("SPANK_GPUFRAC", "v1:units=25:mech=mig"),
        ("GPUFRAC_CONFIG", config),
    ]);
    assert_eq!(code, Some(1));
    std::fs::remove_dir_all(folder).unwrap();
}
