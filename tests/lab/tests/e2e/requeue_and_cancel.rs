//! Jobs that are requeued, cancelled or end at their time limit.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

/// Promise (users): requeue, scancel at any time, time limit.
/// With `scancel_while_pending`, `scancel_while_in_prolog`,
/// `a_job_that_is_cancelled_while_its_prolog_waits_never_runs`, `scancel_while_running`, `time_limit`.
#[test]
fn requeue() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = "echo CUDA=$CUDA_VISIBLE_DEVICES; [ \"$SLURM_RESTART_COUNT\" = 1 ] || sleep 1000";
    let job = lab.sbatch(
        user,
        &[
            "--requeue",
            "--open-mode=append",
            "--gres=gpufrac:0.25",
            "--wrap",
            script,
        ],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let first = lab.slice(node, job)?;
    lab.wait(
        "the first run wrote its output",
        Duration::from_secs(10),
        || Ok(lab.output(job).ok().filter(|text| text.contains("MIG-"))),
    )?;
    lab.command("scontrol")
        .args(["requeue", &job.to_string()])
        .stdout()?;
    lab.wait(
        "the slice of the first run is gone",
        Duration::from_secs(20),
        || Ok(lab.instances(node)?.is_empty().then_some(())),
    )?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "1"));
    let output = lab.output(job)?;
    let seen: Vec<_> = output
        .lines()
        .filter_map(|line| line.strip_prefix("CUDA="))
        .collect();
    assert_eq!(seen.len(), 2, "{output}");
    assert_eq!(seen[0], first.instance.uuids[0]);
    // The driver may give the next instance the same UUID.
    assert!(seen[1].starts_with("MIG-"), "{output}");
    lab.expect_nothing_left()
}

#[test]
fn scancel_while_pending() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.25", "--wrap=true"])?;
    lab.command("scancel")
        .user(user)
        .args([job.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(job)?.state(), "CANCELLED");
    assert!(lab.leases(node)?.is_empty());
    lab.expect_nothing_left()
}

#[test]
fn scancel_while_in_prolog() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    lab.gpusim(
        node,
        &[
            "delay",
            "--call",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "--ms",
            "2000",
        ],
    )?;
    let job = lab.sbatch(
        user,
        &["--gres=gpufrac:0.25", "--wrap=touch ran; sleep 1000"],
    )?;
    lab.wait("the prolog is carving", Duration::from_secs(20), || {
        let lease = lab.lease(node, job)?;
        Ok(lease.filter(|lease| lease.state == gpufrac_core::lease::LeaseState::Carving))
    })?;
    lab.command("scancel")
        .user(user)
        .args([job.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(job)?.state(), "CANCELLED");
    assert!(!lab.folder().work().join("ran").exists());
    lab.gpusim(node, &["clear"])?;
    lab.expect_nothing_left()?;
    // The node still serves.
    let next = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=true"])?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// The prolog requeues its job seconds after the job was cancelled, and Slurm would accept that.
#[test]
fn a_job_that_is_cancelled_while_its_prolog_waits_never_runs() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
    lab.gpusim(
        node,
        &["fault", "--call", call, "--count", "0", "--code", "IN_USE"],
    )?;
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=touch ran"])?;
    lab.wait_for_state(job, &["CONFIGURING", "RUNNING"])?;
    // By then the prolog has asked for the job, and retries for seconds.
    std::thread::sleep(Duration::from_secs(1));
    lab.command("scancel")
        .user(user)
        .args([job.to_string()])
        .stdout()?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!(
        (ended.state(), ended.field("Restarts")),
        ("CANCELLED", "0"),
        "{ended:?}"
    );
    lab.gpusim(node, &["clear"])?;
    lab.expect_nothing_left()?;
    assert!(!lab.folder().work().join("ran").exists());
    Ok(())
}

#[test]
fn scancel_while_running() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=sleep 1000"])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.slice(node, job)?;
    lab.command("scancel")
        .user(user)
        .args([job.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(job)?.state(), "CANCELLED");
    lab.expect_nothing_left()
}

#[test]
fn time_limit() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(
        user,
        &["--time=1", "--gres=gpufrac:0.5", "--wrap=sleep 1000"],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.slice(node, job)?;
    // The smallest limit is a minute, and slurmctld checks every half minute.
    let ended = lab.wait("the limit struck", Duration::from_secs(150), || {
        let seen = lab.job(job)?;
        Ok((!seen.is_active()).then_some(seen))
    })?;
    assert_eq!(ended.state(), "TIMEOUT");
    lab.expect_nothing_left()
}
