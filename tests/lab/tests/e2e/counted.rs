//! A job has exactly what Slurm counted: without a lease, or with one of another size, no task starts. A slurmctld
//! that does not answer while a job must be requeued is no fault of the node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use gpufrac_core::fraction::Units;
use gpufrac_core::lease::Lease;
use gpufrac_lab::{CgroupVersion, JobId, Lab, LabError, User};
use nix::sys::signal::Signal;

use crate::fence::{LOOK, answers, own_devices, reached, reached_by_ssh};
use crate::wait_until_put_back;

/// Halves, and a GPU that is lent whole.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [0]

[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [1]
"#;

/// Runs a script in place of the prolog, with `@REAL@` for the prolog and `@WORK@` for the folder of jobs.
fn replace_prolog(lab: &Lab, script: &str) {
    let (prolog, real) = (
        lab.folder().bin().join("prolog"),
        lab.folder().bin().join("prolog.real"),
    );
    fs::rename(&prolog, &real).expect("the lab has a prolog");
    let script = script
        .replace("@REAL@", &real.display().to_string())
        .replace("@WORK@", &lab.folder().work().display().to_string());
    fs::write(&prolog, script).expect("root may");
    fs::set_permissions(&prolog, fs::Permissions::from_mode(0o755)).expect("root may");
}

fn said_by_slurmd(lab: &Lab, words: &str) -> bool {
    let log = lab
        .folder()
        .log()
        .join(format!("slurmd.{}.log", lab.nodes()[0]));
    fs::read_to_string(log).is_ok_and(|log| log.contains(words))
}

/// Promise (users): a job without its slice starts no task, and goes back to the queue where it can.
/// With `a_job_that_holds_devices_without_asking_is_noted`.
// slurmd does so if slurmctld returns with a state that is some seconds old: it starts jobs again, without their
// prolog.
#[test]
fn a_job_whose_prolog_did_not_run_starts_no_task() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 2).pools(POOLS).start()?;
    let user = &lab.users()[0];
    replace_prolog(
        &lab,
        "#!/bin/sh\n/bin/rm @WORK@/skip 2>/dev/null && exit 0\nexec @REAL@ \"$@\"\n",
    );
    // An interactive user sees the reason: with shares, and with a whole device, which is not counted in shares.
    for size in ["0.25", "1"] {
        lab.write_work("skip", "")?;
        let told = lab
            .command("srun")
            .user(user)
            .args([&format!("--gres=gpufrac:{size}"), "echo", "RAN"])
            .run()?;
        assert!(!told.status.success(), "{told:?}");
        assert!(!told.stdout.contains("RAN"), "{told:?}");
    }
    // A batch job is requeued, and its next run has its slice.
    lab.write_work("skip", "")?;
    let wrap = "--wrap=echo RAN=$CUDA_VISIBLE_DEVICES";
    let job = lab.sbatch(
        user,
        &[
            "--requeue",
            "--open-mode=append",
            "--gres=gpufrac:0.25",
            wrap,
        ],
    )?;
    lab.wait("the first run was refused", Duration::from_secs(60), || {
        Ok(said_by_slurmd(&lab, "no prolog created a slice").then_some(()))
    })?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "1"));
    let output = lab.output(job)?;
    let runs: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("RAN="))
        .collect();
    assert!(
        matches!(runs[..], [run] if run.starts_with("RAN=MIG-")),
        "{output}"
    );
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

#[test]
fn a_slice_that_is_not_what_slurm_counted_is_not_used() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    replace_prolog(
        &lab,
        "#!/bin/sh\n@REAL@ \"$@\" || exit 1\n: > @WORK@/made\n\
         while [ ! -e @WORK@/checked ]; do /bin/sleep 0.05; done\n",
    );
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=touch ran"])?;
    let made = lab.folder().work().join("made");
    lab.wait("the slice is made", Duration::from_secs(60), || {
        Ok(made.exists().then_some(()))
    })?;
    let lease = lab.lease(node, job)?.expect("a lease");
    assert!(lease.confirmed && lease.units == Units(25));
    let greater = Lease {
        units: Units(50),
        ..lease
    };
    let text = greater.to_text().expect("a lease");
    let path = lab.folder().run(node).join("leases").join(greater.name());
    fs::write(path, text).expect("root may");
    lab.write_work("checked", "")?;
    // The job is requeued and held, so that someone looks at it.
    wait_until_put_back(&lab, job)?;
    assert_eq!(lab.job(job)?.field("Priority"), "0");
    assert!(said_by_slurmd(
        &lab,
        "its slice is 50 % of a GPU, but Slurm allocated 25 %"
    ));
    assert!(!lab.folder().work().join("ran").exists());
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

/// A job of salloc without a shell, whose lease is unconfirmed and has these units.
fn unconfirmed(lab: &Lab, user: &User, units: u32) -> Result<JobId, LabError> {
    let node = &lab.nodes()[0];
    let work = lab.folder().work();
    let _ = (
        fs::remove_file(work.join("made")),
        fs::remove_file(work.join("checked")),
    );
    let salloc = ["--gres=gpufrac:0.25", "--no-shell", "--job-name=salloc"];
    let salloc = lab.command("salloc").user(user).args(salloc).spawn()?;
    lab.wait("the slice is made", Duration::from_secs(60), || {
        Ok(work.join("made").exists().then_some(()))
    })?;
    let job = lab
        .command("squeue")
        .args(["-h", "-o", "%A", "-n", "salloc"]);
    let job: JobId = job.stdout()?.trim().parse().expect("one job");
    let lease = Lease {
        confirmed: false,
        units: Units(units),
        ..lab.lease(node, job)?.expect("a lease")
    };
    let text = lease.to_text().expect("a lease");
    fs::write(lab.lease_path(node, job), text).expect("root may");
    lab.write_work("checked", "")?;
    salloc.wait()?.success()?;
    Ok(job)
}

/// The extern step does not get Slurm's counts.
fn ssh_sessions(version: CgroupVersion) -> Result<(), LabError> {
    crate::needs_groups(version);
    let lab = Lab::builder().cgroup(version).gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    lab.write_work("look.sh", LOOK)?;
    let devices = lab.folder().gpus(node).join("dev").display().to_string();
    replace_prolog(
        &lab,
        "#!/bin/sh\n@REAL@ \"$@\" || exit 1\n: > @WORK@/made\n\
         while [ ! -e @WORK@/checked ]; do /bin/sleep 0.05; done\n",
    );
    let step = |job: JobId, option: &str| {
        let id = format!("--jobid={job}");
        let srun = lab
            .command("srun")
            .user(user)
            .current_dir(lab.folder().work());
        srun.args([&id, option, "bash", "look.sh", &devices, "step"])
            .run()
    };
    // More than Slurm counted: no step reaches it.
    let job = unconfirmed(&lab, user, 50)?;
    let nothing = BTreeSet::new();
    assert_eq!(reached_by_ssh(&lab, (job, user), &devices)?, nothing);
    let refused = step(job, "--label")?;
    assert!(!refused.status.success(), "{refused:?}");
    let without = step(job, "--gres=none")?.success()?.stdout;
    assert_eq!(
        reached(&answers(&without, "step"), "a step without"),
        nothing
    );
    assert_eq!(reached_by_ssh(&lab, (job, user), &devices)?, nothing);
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    // As much as Slurm counted, which the first step finds out.
    let job = unconfirmed(&lab, user, 25)?;
    let own = own_devices(&lab, job)?;
    assert_eq!(reached_by_ssh(&lab, (job, user), &devices)?, nothing);
    let with = step(job, "--ntasks=1")?.success()?.stdout;
    assert_eq!(reached(&answers(&with, "step"), "a step"), own);
    let later = match version {
        CgroupVersion::V1 => nothing,
        CgroupVersion::V2 => own,
    };
    assert_eq!(reached_by_ssh(&lab, (job, user), &devices)?, later);
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// Promise (users): a process that enters a job by ssh (pam_slurm_adopt) reaches no more of a GPU than Slurm counted.
/// With `an_ssh_session_reaches_no_more_than_slurm_counted_on_version_2`,
/// `a_job_reaches_what_is_not_denied_from_any_group_below`.
#[test]
fn an_ssh_session_reaches_no_more_than_slurm_counted() -> Result<(), LabError> {
    ssh_sessions(CgroupVersion::V1)
}

#[test]
fn an_ssh_session_reaches_no_more_than_slurm_counted_on_version_2() -> Result<(), LabError> {
    ssh_sessions(CgroupVersion::V2)
}

#[test]
fn a_silent_slurmctld_drains_no_node_while_a_job_is_given_back() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
    lab.gpusim(
        node,
        &["fault", "--call", call, "--count", "0", "--code", "IN_USE"],
    )?;
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=touch ran"])?;
    lab.wait_for_state(job, &["CONFIGURING", "RUNNING"])?;
    lab.signal_daemon("slurmctld", Signal::SIGSTOP);
    // Longer than a prolog needs for its question, its slice and its message.
    std::thread::sleep(Duration::from_secs(20));
    lab.signal_daemon("slurmctld", Signal::SIGCONT);
    wait_until_put_back(&lab, job)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.gpusim(node, &["clear"])?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    assert!(!lab.folder().work().join("ran").exists());
    lab.expect_nothing_left()
}
