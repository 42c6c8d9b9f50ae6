//! Attacks by processes that slurmd starts for a user outside of every job.

use gpufrac_lab::{Lab, LabError};

use super::Attack;
use crate::HOLD;

/// slurmd loads the login environment if a job has this variable with the value 1.
const SHOW: &str = "--wrap=echo login=$SLURM_GET_USER_ENV";

/// Promise (users): no login shell of a user runs outside of the fence on nodes of pools.
/// With `a_login_shell_of_a_job_that_is_moved`.
#[test]
fn a_login_shell_outside_of_the_fence() -> Result<(), LabError> {
    let lab = Lab::builder().partition("cpu", "").start()?;
    let mut attack = Attack::begin(&lab, "~/.profile outside of the fence")?;
    let user = &lab.users()[0];
    for option in ["--get-user-env", "--export=NONE"] {
        let args = ["--gres=gpufrac:0.25", option, SHOW];
        let outcome = lab.try_sbatch(user, &args)?.success()?;
        assert!(outcome.stderr.contains("#!/bin/bash -l"), "{outcome:?}");
        let job = outcome.stdout.trim().parse().map(gpufrac_lab::JobId);
        let job = job.expect("a job's number");
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        let output = lab.output(job)?;
        if !output.contains("login=0") {
            attack.reached(format!("{option}: {output}"));
        }
    }
    attack.end()
}

/// job_submit does not see the environment of a job whose partition is changed.
#[test]
fn a_login_shell_of_a_job_that_is_moved() -> Result<(), LabError> {
    let lab = Lab::builder()
        .partition("cpu", "")
        // slurmd then logs that it loads the environment.
        .slurm_conf_extra("SlurmdDebug=verbose")
        .start()?;
    let mut attack = Attack::begin(&lab, "~/.profile of a job that is moved")?;
    let user = &lab.users()[0];
    let script = format!("--wrap={HOLD}");
    let args = ["--hold", "--partition=cpu", "--get-user-env", &script];
    let job = lab.sbatch(user, &args)?;
    let id = format!("JobId={job}");
    lab.try_update(user, &[&id, "Partition=gpu", "Gres=gpufrac:0.25"])?
        .success()?;
    lab.command("scontrol")
        .user(user)
        .args(["release", &job.to_string()])
        .stdout()?;
    lab.wait(
        "the job is held",
        std::time::Duration::from_secs(60),
        || {
            let seen = lab.job(job)?;
            let held = seen.state() == "PENDING" && seen.field("Restarts") != "0";
            Ok(held.then_some(()))
        },
    )?;
    let log = lab
        .folder()
        .log()
        .join(format!("slurmd.{}.log", lab.nodes()[0]));
    let log = std::fs::read_to_string(log).unwrap_or_default();
    if log.contains("get env for user") {
        attack.reached("a login shell");
    }
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    attack.end()
}
