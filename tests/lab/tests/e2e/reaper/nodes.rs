//! Jobs on several nodes, and the leases of all nodes together.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabBuilder, LabError, User};
use nix::sys::signal::Signal;

use super::{
    decisions, expect_spared, failed, kept, kept_once, lab, reload, submit, wait_for_decision,
    wait_for_log, wait_until_cancelled, wait_until_kept, words,
};

const SECOND: Duration = Duration::from_secs(1);
const BOTH: [&str; 2] = ["-N2", "--gres=gpufrac:0.25"];
/// Runs a command on the second node of a job only.
const SECOND_NODE: &str = "srun -N1 -n1 --overlap -w $(scontrol show hostnames | tail -1)";

const POOL: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "early"]
nodes = "@NODES@"
"#;

/// The warning is due before Slurm was asked about the job.
const EARLY: &str = r#"
[reaper.rule.early]
partitions = ["early"]
warn = ["5s"]
over_share = "off"
"#;

/// Reports of other nodes are valid for twelve intervals.
const INTERVAL: (&str, &str) = ("interval", "\"500ms\"");

fn two(changes: &[(&str, &str)], more: &str) -> LabBuilder {
    lab(&[&[INTERVAL], changes].concat(), more).nodes(2)
}

/// A job on both nodes that is busy on one (`first` or `second`), or on none.
fn on_both(lab: &Lab, user: &User, busy: &str, partition: &str) -> Result<JobId, LabError> {
    let gpus = lab.folder().root().join("gpus");
    let run = format!(
        "gpusim --root {}/'$SLURMD_NODENAME' run --pattern busy --memory 500M",
        gpus.display()
    );
    let script = match busy {
        "first" => "gpu busy".to_owned(),
        "second" => format!("{SECOND_NODE} sh -c '{}'", run.replace('\'', "")),
        _ => "sleep 1000".to_owned(),
    };
    let partition = format!("--partition={partition}");
    submit(lab, user, &[&BOTH[..], &[&partition]].concat(), &script)
}

fn expect_untouched(lab: &Lab, job: JobId) -> Result<(), LabError> {
    for node in lab.nodes() {
        let log = lab.reaper_log(node)?;
        let told = decisions(lab, node, job)?;
        assert_eq!(told, Vec::<String>::new(), "job {job} on {node}\n{log}");
    }
    Ok(())
}

/// Promise (reaper): jobs on several nodes.
/// With `a_node_that_says_nothing_spares_the_job`, `a_report_of_idleness_is_withdrawn_when_the_slice_is_used`,
/// `without_a_shared_folder_jobs_on_several_nodes_live`.
#[test]
fn a_job_is_ended_once_when_it_is_idle_on_all_its_nodes() -> Result<(), LabError> {
    let lab = two(&[], EARLY)
        .partition("early", "")
        .pools(POOL)
        .shared()
        .start()?;
    let user = &lab.users()[0];
    let idle = on_both(&lab, user, "none", "gpu")?;
    let spared = [
        on_both(&lab, user, "first", "gpu")?,
        on_both(&lab, user, "second", "gpu")?,
        on_both(&lab, user, "first", "early")?,
        on_both(&lab, user, "second", "early")?,
    ];
    for job in spared {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    // A daemon that reads its configuration again knows of the others when they report again.
    wait_for_decision(&lab, &lab.nodes()[0], idle, "warn")?;
    reload(
        &lab,
        &lab.nodes()[0],
        "the daemon read its configuration again",
    )?;
    wait_until_cancelled(&lab, &lab.nodes()[0], idle)?;
    let logs = format!(
        "{}\n{}",
        lab.reaper_log(&lab.nodes()[0])?,
        lab.reaper_log(&lab.nodes()[1])?
    );
    let told = kept_once(&lab, &lab.nodes()[0], idle)?;
    assert_eq!(words(&told), ["warn", "cancel"], "{logs}");
    assert!(told[1].at - told[0].at >= 3 * SECOND, "{told:?}\n{logs}");
    assert!(told[1].stalled >= 6 * SECOND, "{told:?}\n{logs}");
    let second = decisions(&lab, &lab.nodes()[1], idle)?;
    assert_eq!(second, Vec::<String>::new(), "{logs}");
    let output = lab.output(idle)?;
    let all = kept(&lab, &lab.nodes()[0], idle)?.remove(0);
    let warnings = words(&all).iter().filter(|word| **word == "warn").count();
    let told = output.matches("will be cancelled").count();
    assert_eq!(told, warnings, "{output}\n{logs}");
    // The shared record is found from every node.
    let why = ["why", &idle.to_string(), "--node", &lab.nodes()[1]];
    let why = lab.command("gpufrac").user(user).args(why).stdout()?;
    assert!(why.contains("cancelled"), "{why}\n{logs}");

    std::thread::sleep(5 * SECOND);
    for job in spared {
        expect_untouched(&lab, job)?;
        expect_spared(&lab, &lab.nodes()[0], job)?;
    }
    lab.expect_nothing_left()
}

#[test]
fn a_node_that_says_nothing_spares_the_job() -> Result<(), LabError> {
    let mut lab = two(&[("interval", "\"250ms\"")], "").shared().start()?;
    let (first, second) = (lab.nodes()[0].clone(), lab.nodes()[1].clone());
    let user = lab.users()[0].clone();
    let job = on_both(&lab, &user, "none", "gpu")?;
    wait_for_decision(&lab, &first, job, "warn")?;
    // Its last report is valid for 3 s; the job has a warning of 3 s.
    lab.stop_reaper(&second, Signal::SIGKILL)?;
    std::thread::sleep(10 * SECOND);
    let log = lab.reaper_log(&first)?;
    let told = decisions(&lab, &first, job)?;
    assert!(!told.contains(&"cancel".to_owned()), "{told:?}\n{log}");
    assert_eq!(lab.job(job)?.state(), "RUNNING", "{log}");
    // It has not sampled the slice for long, so the window restarts.
    lab.start_reaper(&second)?;
    wait_until_cancelled(&lab, &first, job)?;
    let told = kept(&lab, &first, job)?.remove(0);
    let log = lab.reaper_log(&first)?;
    let last: Vec<&str> = words(&told).into_iter().rev().take(3).collect();
    assert_eq!(last, ["cancel", "warn", "clear"], "{told:?}\n{log}");
    assert_eq!(decisions(&lab, &second, job)?, Vec::<String>::new());
    lab.expect_nothing_left()
}

#[test]
fn a_report_of_idleness_is_withdrawn_when_the_slice_is_used() -> Result<(), LabError> {
    // A slice that was used once is no longer judged.
    let changes = [("idle", "\"off\""), ("interval", "\"1s\"")];
    let windows = [("never_used", "\"12s\""), ("warn", "[\"5s\"]")];
    let over = [("over_share", "\"off\"")];
    let lab = two(&[&changes[..], &windows, &over].concat(), "")
        .shared()
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!(
        "while [ ! -e use ]; do sleep 0.1; done; {SECOND_NODE} gpusim --root {}/{} run --pattern busy --memory 500M",
        lab.folder().root().join("gpus").display(),
        lab.nodes()[1]
    );
    let job = submit(&lab, user, &BOTH, &script)?;
    wait_for_decision(&lab, node, job, "warn")?;
    lab.write_work("use", "")?;
    std::thread::sleep(10 * SECOND);
    let told = decisions(&lab, node, job)?;
    let log = lab.reaper_log(node)?;
    assert_eq!(told, ["warn", "clear"], "{log}");
    expect_spared(&lab, node, job)?;
    lab.expect_nothing_left()
}

#[test]
fn without_a_shared_folder_jobs_on_several_nodes_live() -> Result<(), LabError> {
    let lab = two(&[], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let both = on_both(&lab, user, "none", "gpu")?;
    let one = submit(&lab, user, &["--gres=gpufrac:0.25"], "sleep 1000")?;
    wait_for_decision(&lab, node, both, "refuse")?;
    wait_until_cancelled(&lab, node, one)?;
    std::thread::sleep(3 * SECOND);
    for node in lab.nodes() {
        let log = lab.reaper_log(node)?;
        assert_eq!(decisions(&lab, node, both)?, ["refuse"], "{log}");
        assert!(log.contains("names no shared folder"), "{log}");
    }
    expect_spared(&lab, node, both)?;
    lab.expect_nothing_left()
}

/// More than 40 % of the slices of the cluster, and at least four.
const BREAKER: (&str, &str) = (
    "breaker",
    "{ node_share = 100, cluster_share = 40, least = 4 }",
);

#[test]
fn the_breaker_of_the_cluster_counts_all_nodes() -> Result<(), LabError> {
    let lab = two(&[BREAKER], "").shared().start()?;
    let user = &lab.users()[0];
    let script = "while [ ! -e use ]; do sleep 0.1; done; gpu busy";
    let jobs: Vec<JobId> = (0..6)
        .map(|number| {
            let node = &lab.nodes()[number % 2];
            submit(&lab, user, &["-w", node, "--gres=gpufrac:0.25"], script)
        })
        .collect::<Result<_, _>>()?;
    for node in lab.nodes() {
        wait_for_log(&lab, node, "circuit breaker open on the cluster")?;
    }
    std::thread::sleep(6 * SECOND);
    expect_no_end(&lab, &jobs)?;
    // Without the folder no node can count, and the breaker stays open.
    let (shared, away) = (lab.folder().shared(), lab.folder().root().join("away"));
    let closed = |node: &String| {
        let log = lab.reaper_log(node)?;
        Ok::<_, LabError>(log.matches("circuit breaker closed").count())
    };
    fs::rename(&shared, &away).map_err(failed(&shared))?;
    for node in lab.nodes() {
        wait_for_log(&lab, node, "shared: ")?;
    }
    let before: Vec<usize> = lab.nodes().iter().map(closed).collect::<Result<_, _>>()?;
    std::thread::sleep(3 * SECOND);
    expect_no_end(&lab, &jobs)?;
    for (node, before) in lab.nodes().iter().zip(before) {
        assert_eq!(closed(node)?, before, "{}", lab.reaper_log(node)?);
    }
    fs::rename(&away, &shared).map_err(failed(&shared))?;
    lab.write_work("use", "")?;
    for node in lab.nodes() {
        wait_for_log(&lab, node, "circuit breaker closed on the cluster")?;
    }
    expect_no_end(&lab, &jobs)?;
    for job in jobs {
        expect_spared(&lab, &lab.nodes()[0], job)?;
    }
    lab.expect_nothing_left()
}

#[test]
fn one_user_does_not_open_the_breaker_of_the_cluster() -> Result<(), LabError> {
    let lab = two(&[BREAKER], "").shared().start()?;
    let (eve, bob) = (&lab.users()[0], &lab.users()[1]);
    let on = |number: usize, user, script| {
        let node = &lab.nodes()[number % 2];
        submit(&lab, user, &["-w", node, "--gres=gpufrac:0.25"], script)
    };
    // More than enough slices, if they had more than one user.
    let idle: Vec<JobId> = (0..6)
        .map(|number| on(number, eve, "sleep 1000"))
        .collect::<Result<_, _>>()?;
    let unused = on(0, bob, "sleep 1000")?;
    let busy = on(1, bob, "gpu busy")?;
    wait_until_cancelled(&lab, &lab.nodes()[0], unused)?;
    for (number, job) in idle.into_iter().enumerate() {
        wait_until_cancelled(&lab, &lab.nodes()[number % 2], job)?;
    }
    for node in lab.nodes() {
        let log = lab.reaper_log(node)?;
        assert!(
            !log.contains("circuit breaker open on the cluster"),
            "{log}"
        );
    }
    expect_spared(&lab, &lab.nodes()[1], busy)?;
    lab.expect_nothing_left()
}

#[test]
fn a_breaker_counts_each_part_of_a_job_on_several_nodes() -> Result<(), LabError> {
    let breaker = (
        "breaker",
        "{ node_share = 40, cluster_share = 100, least = 3 }",
    );
    let lab = two(&[breaker], "").shared().start()?;
    let user = &lab.users()[0];
    let jobs = (0..3).map(|_| on_both(&lab, user, "none", "gpu"));
    let jobs: Vec<JobId> = jobs.collect::<Result<_, _>>()?;
    // The second node makes no decision about these jobs.
    for node in lab.nodes() {
        wait_for_log(&lab, node, "circuit breaker open on the node")?;
    }
    std::thread::sleep(8 * SECOND);
    expect_no_end(&lab, &jobs)?;
    for job in jobs {
        expect_spared(&lab, &lab.nodes()[0], job)?;
    }
    lab.expect_nothing_left()
}

/// Windows that end long after those of the others.
const LATE: &str = r#"
[reaper.rule.late]
partitions = ["early"]
never_used = "18s"
idle = "18s"
"#;

#[test]
fn a_node_that_nothing_was_due_on_knows_of_the_breaker_too() -> Result<(), LabError> {
    let lab = two(&[BREAKER], LATE)
        .partition("early", "")
        .pools(POOL)
        .shared()
        .start()?;
    let (user, nodes) = (&lab.users()[0], lab.nodes());
    let on = |node: usize, partition: &str| {
        let args = ["-w", &nodes[node], "-p", partition, "--gres=gpufrac:0.25"];
        submit(&lab, user, &args, "sleep 1000")
    };
    let late = on(1, "early")?;
    let many: Vec<JobId> = (0..4).map(|_| on(0, "gpu")).collect::<Result<_, _>>()?;
    wait_for_log(&lab, &nodes[0], "circuit breaker open on the cluster")?;
    let ended = many.iter().map(ToString::to_string);
    lab.command("scancel").args(ended).stdout()?;
    let open = lab.reaper_log(&nodes[1])?;
    assert!(!open.contains("OPEN"), "this took too long to tell: {open}");

    wait_for_decision(&lab, &nodes[1], late, "warn")?;
    let told = wait_until_kept(&lab, &nodes[1], late, "warn")?;
    let log = lab.reaper_log(&nodes[1])?;
    // It was stalled from its first second on.
    let since = told[0].at.saturating_sub(told[0].stalled);
    assert!(since >= 10 * SECOND, "{told:?}\n{log}");
    lab.command("scancel").args([late.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

fn expect_no_end(lab: &Lab, jobs: &[JobId]) -> Result<(), LabError> {
    for node in lab.nodes() {
        let log = lab.reaper_log(node)?;
        for job in jobs {
            let told = decisions(lab, node, *job)?;
            assert!(!told.contains(&"cancel".to_owned()), "job {job}\n{log}");
        }
    }
    Ok(())
}
