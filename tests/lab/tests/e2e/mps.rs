//! GPUs that are shared by MPS, with NVIDIA's own control daemon.

use std::time::Duration;

use gpufrac_lab::{ComputeMode, Lab, LabError, User, is_running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shared_devices::{
    connect, control, daemons, finish, limits, pipe, ready, release, run, start_with_control,
    submit, tell,
};

/// One L40S, all of it in one pool.
fn lab(tenancy: &str, control: &std::path::Path) -> Result<Lab, LabError> {
    let pool = format!(
        "[pool.p]\nmechanism = \"mps\"\ntenancy = \"{tenancy}\"\ngpu = \"L40S-48\"\n\
         partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    );
    let builder = Lab::builder().gpu_list(&["L40S-48"]).pools(&pool);
    start_with_control(builder, control)
}

const MEMORY_MIB: u64 = 46_068;
const DENIED: &str = "Permission denied";

/// Promise (isolation): only users of its jobs reach a control daemon, and none of them can change its limits.
/// With `a_private_daemon_is_its_jobs_alone`.
#[test]
fn two_users_share_a_daemon_and_nobody_else_reaches_it() -> Result<(), LabError> {
    let control = control();
    let lab = lab("shared", &control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let uuid = lab.gpu_uuids(node)?.remove(0);
    let pipe = pipe(&lab, node, "gpu0");

    let (first, seen) = run(&lab, &users[0], &["--gres=gpufrac:0.3"])?;
    let memory = MEMORY_MIB * 30 / 100;
    for (name, value) in [
        ("CUDA_VISIBLE_DEVICES", uuid.clone()),
        ("NVIDIA_VISIBLE_DEVICES", uuid.clone()),
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.display().to_string()),
        (
            "CUDA_MPS_LOG_DIRECTORY",
            pipe.with_file_name("log").display().to_string(),
        ),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30".into()),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={memory}M")),
        ("GPUFRAC_FRACTION", "0.3".into()),
        ("GPUFRAC_MECHANISM", "mps".into()),
        ("GPUFRAC_PROFILE", "mps".into()),
        ("GPUFRAC_MEMORY_MIB", memory.to_string()),
    ] {
        assert_eq!(seen.get(name), value, "{name}");
    }
    assert_eq!(seen.devices, ["nvidia0"]);
    assert_eq!(seen.connected, "connected");
    let daemon = daemons(&lab, node);
    assert_eq!(daemon.len(), 1, "{daemon:?}");
    assert_eq!(daemon[0].pipe, pipe);
    assert_eq!(limits(&lab, &pipe)?, ("30.0".into(), "13G".into()));
    assert_eq!(connect(&lab, &users[0], &pipe)?, "connected");
    assert_eq!(connect(&lab, &users[1], &pipe)?, DENIED);

    let (second, seen) = run(&lab, &users[1], &["--gres=gpufrac:0.5"])?;
    assert_eq!(seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "50");
    assert_eq!(daemons(&lab, node), daemon, "the same daemon");
    // The most for a client that removed its own limits.
    assert_eq!(limits(&lab, &pipe)?, ("50.0".into(), "22G".into()));
    assert_eq!(lab.compute_modes(node)?, [ComputeMode::ExclusiveProcess]);
    for user in &users[..2] {
        assert_eq!(connect(&lab, user, &pipe)?, "connected");
        let answer = tell(
            &lab,
            user,
            &pipe,
            "set_default_active_thread_percentage 100",
        )?;
        assert!(answer.contains("Insufficient privileges"), "{answer}");
        let socket = pipe.join("control_privileged").display().to_string();
        let connected = lab.command("perl").args(["connect.pl", &socket]).user(user);
        assert_eq!(connected.stdout()?, DENIED);
    }
    assert_eq!(limits(&lab, &pipe)?, ("50.0".into(), "22G".into()));

    // From a job without a slice on the same node.
    let wrap = format!(
        "--wrap=perl connect.pl {0}/control; echo; ls {0} 2>&1; bash reach.sh",
        pipe.display()
    );
    let stranger = lab.sbatch(&users[2], &[&wrap])?;
    lab.wait_for_end(stranger)?;
    let output = lab.output(stranger)?;
    let lines: Vec<_> = output.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, DENIED), "{output}");
    assert!(lines[1].ends_with(DENIED), "{output}");

    finish(&lab, second)?;
    assert_eq!(connect(&lab, &users[1], &pipe)?, DENIED);
    assert_eq!(daemons(&lab, node), daemon);
    assert_eq!(limits(&lab, &pipe)?, ("30.0".into(), "13G".into()));
    finish(&lab, first)?;
    assert!(!is_running(daemon[0].pid));
    assert_eq!(lab.compute_modes(node)?, [ComputeMode::Default]);
    lab.expect_nothing_left()
}

#[test]
fn a_private_daemon_is_its_jobs_alone() -> Result<(), LabError> {
    let control = control();
    let lab = lab("private", &control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let (first, of_first) = run(&lab, &users[0], &["--gres=gpufrac:0.25"])?;
    let (second, of_second) = run(&lab, &users[1], &["--gres=gpufrac:0.7"])?;
    // A second job of the same user has its own daemon, too.
    let (third, _) = run(&lab, &users[1], &["--gres=gpufrac:0.01"])?;
    let place = |job| pipe(&lab, node, &format!("job{job}"));
    assert_eq!(daemons(&lab, node).len(), 3);
    assert_eq!(
        of_first.get("CUDA_MPS_PIPE_DIRECTORY"),
        place(first).display().to_string()
    );
    assert_eq!(of_second.connected, "connected");
    assert_eq!(of_second.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "70");
    assert_eq!(limits(&lab, &place(first))?, ("25.0".into(), "11G".into()));
    assert_eq!(limits(&lab, &place(second))?, ("70.0".into(), "31G".into()));
    assert_eq!(limits(&lab, &place(third))?, ("1.0".into(), "460M".into()));
    let tenants: [(_, &User); 3] = [(first, &users[0]), (second, &users[1]), (third, &users[1])];
    for (job, tenant) in tenants {
        for user in &users[..3] {
            let expected = if user == tenant { "connected" } else { DENIED };
            assert_eq!(
                connect(&lab, user, &place(job))?,
                expected,
                "{} at job {job}",
                user.name
            );
        }
    }
    // Daemons that take turns need a GPU that admits several.
    assert_eq!(lab.compute_modes(node)?, [ComputeMode::Default]);
    finish(&lab, second)?;
    assert!(!place(second).exists());
    assert_eq!(daemons(&lab, node).len(), 2);
    assert_eq!(connect(&lab, &users[0], &place(first))?, "connected");
    for job in [first, third] {
        finish(&lab, job)?;
    }
    lab.expect_nothing_left()
}

#[test]
fn a_whole_gpu_and_shares_of_it_exclude_each_other() -> Result<(), LabError> {
    let control = control();
    let lab = lab("shared", &control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let uuid = lab.gpu_uuids(node)?.remove(0);
    let (whole, seen) = run(&lab, &users[0], &["--gres=gpufrac:1"])?;
    let shown = lab.job(whole)?;
    // Slurm before 23.11.5 gives a device whole to another job beside shares of it.
    let counted = if lab.slurm().since(23, 11) { "gpu:mps:1" } else { "shard:mps:100" };
    assert!(shown.field("TresPerNode").contains(counted), "{shown:?}");
    assert_eq!(seen.get("CUDA_VISIBLE_DEVICES"), uuid);
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "1");
    assert_eq!(seen.starting("CUDA_MPS_"), Vec::<String>::new());
    assert_eq!(seen.devices, ["nvidia0"]);
    assert_eq!(daemons(&lab, node), []);
    assert_eq!(lab.compute_modes(node)?, [ComputeMode::Default]);

    let part = submit(&lab, &users[1], &["--gres=gpufrac:0.1"])?;
    waits(&lab, part)?;
    finish(&lab, whole)?;
    ready(&lab, part)?;
    let whole = submit(&lab, &users[0], &["--gres=gpufrac:1"])?;
    waits(&lab, whole)?;
    finish(&lab, part)?;
    ready(&lab, whole)?;
    assert_eq!(daemons(&lab, node), []);
    finish(&lab, whole)?;
    lab.expect_nothing_left()
}

/// Waits until Slurm has considered a job and found no room for it.
fn waits(lab: &Lab, job: gpufrac_lab::JobId) -> Result<(), LabError> {
    lab.wait("no room for the job", Duration::from_secs(20), || {
        let seen = lab.job(job)?;
        assert_eq!(seen.state(), "PENDING", "{seen:?}");
        Ok((seen.field("Reason") == "Resources").then_some(()))
    })
}

/// Promise (users): requeue and scancel where jobs share a daemon.
#[test]
fn requeue_and_scancel_of_tenants() -> Result<(), LabError> {
    let control = control();
    let lab = lab("shared", &control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let pipe = pipe(&lab, node, "gpu0");
    let (again, _) = run(&lab, &users[0], &["--requeue", "--gres=gpufrac:0.4"])?;
    let (stays, _) = run(&lab, &users[1], &["--gres=gpufrac:0.3"])?;
    let (cancelled, _) = run(&lab, &users[2], &["--gres=gpufrac:0.2"])?;
    let daemon = daemons(&lab, node);
    lab.command("scontrol")
        .args(["requeue", &again.to_string()])
        .stdout()?;
    lab.command("scancel")
        .args([cancelled.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(cancelled)?.state(), "CANCELLED");
    lab.wait("both are out", Duration::from_secs(20), || {
        Ok((lab.leases(node)?.len() == 1).then_some(()))
    })?;
    assert_eq!(limits(&lab, &pipe)?, ("30.0".into(), "13G".into()));
    for (user, expected) in users.iter().zip([DENIED, "connected", DENIED]) {
        assert_eq!(connect(&lab, user, &pipe)?, expected, "{}", user.name);
    }
    release(&lab, again)?;
    let ended = lab.wait_for_end(again)?;
    assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "1"));
    assert_eq!(daemons(&lab, node), daemon, "one daemon through all of it");
    lab.command("scancel").args([stays.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn a_daemon_outlives_slurmd_and_a_killed_one_is_replaced() -> Result<(), LabError> {
    let control = control();
    let mut lab = lab("shared", &control)?;
    let (users, node) = (lab.users().to_vec(), lab.nodes()[0].clone());
    let pipe = pipe(&lab, &node, "gpu0");
    let (first, _) = run(&lab, &users[0], &["--gres=gpufrac:0.3"])?;
    let old = daemons(&lab, &node);
    lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGTERM)?;
    assert_eq!(daemons(&lab, &node), old);
    lab.start_slurmd(&node)?;
    lab.wait("slurmd is back", Duration::from_secs(30), || {
        let running = lab.node(&node)?.state() == "MIXED";
        Ok(running.then_some(()))
    })?;
    assert_eq!(daemons(&lab, &node), old);

    kill(Pid::from_raw(old[0].pid), Signal::SIGKILL).expect("the daemon was there");
    let (second, _) = run(&lab, &users[1], &["--gres=gpufrac:0.2"])?;
    let new = daemons(&lab, &node);
    assert_eq!(new.len(), 1, "{new:?}");
    assert_ne!(new, old);
    assert_eq!(limits(&lab, &pipe)?, ("30.0".into(), "13G".into()));
    for user in &users[..2] {
        assert_eq!(connect(&lab, user, &pipe)?, "connected");
    }
    // The last jobs also end without a daemon.
    kill(Pid::from_raw(new[0].pid), Signal::SIGKILL).expect("the daemon was there");
    finish(&lab, second)?;
    finish(&lab, first)?;
    lab.expect_nothing_left()
}
