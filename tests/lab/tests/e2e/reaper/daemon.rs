//! The daemon itself: start, end, and faults of other programs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use gpufrac_core::lease::LeaseState;
use gpufrac_lab::{JobId, Lab, LabError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock;

use super::{
    Decided, STOOD_STILL, configure, decisions, expect_spared, failed, kept, kept_once, lab, quick,
    reload, scontrol, submit, wait_for_decision, wait_for_log, wait_until_cancelled, words,
    write_reaper,
};

const SECOND: Duration = Duration::from_secs(1);
const QUARTER: &str = "--gres=gpufrac:0.25";
const BEGINS: &str = "watching the slices of node";

/// Waits until the log has these words `count` times.
fn wait_for_count(lab: &Lab, node: &str, words: &str, count: usize) -> Result<(), LabError> {
    let what = format!("{count} times: {words}");
    lab.wait(&what, Duration::from_secs(60), || {
        let found = lab.reaper_log(node)?.matches(words).count();
        Ok((found >= count).then_some(()))
    })
}

#[test]
fn a_warning_outlives_the_daemon() -> Result<(), LabError> {
    let slower = [
        ("never_used", "\"14s\""),
        ("idle", "\"14s\""),
        ("over_share", "\"14s\""),
        ("warn", "[\"10s\"]"),
    ];
    let mut lab = lab(&slower, "").start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let job = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    wait_for_decision(&lab, &node, job, "warn")?;
    let asked = Instant::now();
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    let took = asked.elapsed();
    lab.start_reaper(&node)?;
    wait_for_count(&lab, &node, BEGINS, 2)?;
    lab.stop_reaper(&node, Signal::SIGKILL)?;
    lab.start_reaper(&node)?;
    wait_for_count(&lab, &node, BEGINS, 3)?;

    let second = lab
        .command("gpufrac-reaperd")
        .args(["--node", &node])
        .run()?;
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = format!("another gpufrac-reaperd runs on node {node}");
    assert!(second.stderr.contains(&said), "{second:?}");

    write_reaper(&lab, "[reaper]\nmode = \"sideways\"\n")?;
    reload(&lab, &node, "the daemon keeps the old one")?;
    let log = lab.reaper_log(&node)?;
    assert!(log.contains("\"sideways\""), "{log}");
    write_reaper(&lab, &quick(&slower, ""))?;
    let running = lab.job(job)?.state() == "RUNNING";

    wait_until_cancelled(&lab, &node, job)?;
    let log = lab.reaper_log(&node)?;
    assert!(running, "this took too long to tell anything\n{log}");
    assert!(took < 30 * SECOND, "the daemon took {took:?} to end\n{log}");
    let told = kept_once(&lab, &node, job)?;
    assert_eq!(words(&told), ["warn", "cancel"], "{log}");
    assert!(told[1].at - told[0].at >= 10 * SECOND, "{told:?}\n{log}");
    assert!(told[1].stalled >= 14 * SECOND, "{told:?}\n{log}");
    assert!(lab.folder().run(&node).join("reaper/state.json").exists());

    let chart = lab.folder().work().join("chart.svg");
    let svg = chart.display().to_string();
    let why = ["why", &job.to_string(), "--node", &node, "--svg", &svg];
    let why = lab.command("gpufrac").user(&user).args(why).stdout()?;
    assert!(why.contains("cancelled"), "{why}");
    let svg = fs::read_to_string(&chart).map_err(failed(&chart))?;
    assert!(svg.contains("<svg"), "{svg}");
    lab.expect_nothing_left()
}

#[test]
fn time_without_a_daemon_counts_as_use() -> Result<(), LabError> {
    let mut lab = lab(&[], "").start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let job = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    wait_for_decision(&lab, &node, job, "warn")?;
    let daemon = format!("reaperd.{node}");
    lab.signal_daemon(&daemon, Signal::SIGSTOP);
    std::thread::sleep(5 * SECOND);
    lab.signal_daemon(&daemon, Signal::SIGCONT);
    wait_for_count(&lab, &node, "decision=clear", 1)?;
    let warnings = lab.reaper_log(&node)?.matches("decision=warn").count();
    wait_for_count(&lab, &node, "decision=warn", warnings + 1)?;
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    std::thread::sleep(5 * SECOND);
    lab.start_reaper(&node)?;
    wait_until_cancelled(&lab, &node, job)?;
    let told = kept(&lab, &node, job)?.remove(0);
    let log = lab.reaper_log(&node)?;
    let is_again = |told: &Decided| told.word == "clear" && told.detail == STOOD_STILL;
    let again = told.iter().filter(|told| is_again(told)).count();
    assert!(again >= 2, "{told:?}\n{log}");
    let last = told.iter().rposition(is_again).unwrap_or_default();
    let after = &told[last..];
    assert_eq!(words(after), ["clear", "warn", "cancel"], "{log}");
    assert!(after[2].stalled >= 6 * SECOND, "{told:?}\n{log}");
    assert!(after[2].at >= after[0].at + 5 * SECOND, "{told:?}\n{log}");
    lab.expect_nothing_left()
}

/// Promise (reaper): nobody is warned while slurmctld is silent.
#[test]
fn nobody_is_warned_while_slurmctld_is_silent() -> Result<(), LabError> {
    let mut lab = lab(&[], "").start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let job = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    wait_for_log(&lab, &node, "slurm: ")?;
    std::thread::sleep(3 * SECOND);
    let log = lab.reaper_log(&node)?;
    assert_eq!(decisions(&lab, &node, job)?, Vec::<String>::new(), "{log}");
    lab.start_slurmctld()?;
    wait_until_cancelled(&lab, &node, job)?;
    let told = kept_once(&lab, &node, job)?;
    let log = lab.reaper_log(&node)?;
    assert_eq!(words(&told), ["warn", "cancel"], "{log}");
    assert!(told[1].at - told[0].at >= 3 * SECOND, "{told:?}\n{log}");
    assert!(log.contains("slurm: works again"), "{log}");
    lab.expect_nothing_left()
}

/// The metrics for Prometheus.
pub(super) fn metrics(lab: &Lab, node: &str) -> Result<String, LabError> {
    let log = lab.reaper_log(node)?;
    let address = log.split("metrics at http://").nth(1).unwrap_or_default();
    let address = address.split('/').next().unwrap_or_default();
    let read = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(10 * SECOND))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(failed(Path::new(address)))
}

fn wait_for_gauge(lab: &Lab, node: &str, open: u8) -> Result<(), LabError> {
    lab.wait("the breaker's gauge", Duration::from_secs(20), || {
        let text = metrics(lab, node)?;
        let mut lines = text.lines();
        let gauge = lines.find(|line| line.contains("breaker_open{") && line.contains("\"node\""));
        let value = gauge.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok((value == Some(f64::from(open))).then_some(()))
    })
}

/// Waits for a line of the metrics of the node.
fn wait_for_metric(lab: &Lab, node: &str, line: &str) -> Result<(), LabError> {
    lab.wait(line, Duration::from_secs(20), || {
        let text = metrics(lab, node)?;
        let found = text.lines().any(|shown| shown == line);
        Ok(found.then_some(()))
    })
}

fn expect_all_run(lab: &Lab, node: &str, jobs: &[JobId]) -> Result<(), LabError> {
    let log = lab.reaper_log(node)?;
    for job in jobs {
        assert_eq!(lab.job(*job)?.state(), "RUNNING", "job {job}\n{log}");
        let told = decisions(lab, node, *job)?;
        assert!(!told.contains(&"cancel".to_owned()), "job {job}\n{log}");
    }
    Ok(())
}

/// More than half of the slices of a node, and at least three.
const BREAKER: (&str, &str) = (
    "breaker",
    "{ node_share = 50, cluster_share = 100, least = 3 }",
);

/// Promise (reaper): the circuit breakers of node and cluster suspend reclaims.
/// With `samples_from_before_a_breaker_closed_do_not_count`, `the_breaker_of_the_cluster_counts_all_nodes`,
/// `a_node_that_nothing_was_due_on_knows_of_the_breaker_too`, `a_breaker_counts_each_part_of_a_job_on_several_nodes`.
#[test]
fn many_slices_that_look_idle_at_once_are_left_alone() -> Result<(), LabError> {
    let lab = lab(&[BREAKER, ("metrics", "\"127.0.0.1:0\"")], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = "while [ ! -e use ]; do sleep 0.1; done; gpu busy";
    let jobs = (0..4).map(|_| submit(&lab, user, &[QUARTER], script));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    let (open, closed) = (
        "circuit breaker open on the node",
        "circuit breaker closed on the node",
    );
    wait_for_count(&lab, node, open, 1)?;
    wait_for_gauge(&lab, node, 1)?;
    std::thread::sleep(6 * SECOND);
    expect_all_run(&lab, node, &jobs)?;
    for job in &jobs {
        let log = lab.reaper_log(node)?;
        let told = decisions(&lab, node, *job)?;
        assert!(told.contains(&"refuse".to_owned()), "job {job}\n{log}");
    }
    assert_eq!(lab.reaper_log(node)?.matches(open).count(), 1);
    lab.write_work("use", "")?;
    wait_for_count(&lab, node, closed, 1)?;
    wait_for_gauge(&lab, node, 0)?;

    lab.gpusim(node, &["dead-telemetry", "on"])?;
    wait_for_count(&lab, node, open, 2)?;
    std::thread::sleep(6 * SECOND);
    expect_all_run(&lab, node, &jobs)?;
    lab.gpusim(node, &["dead-telemetry", "off"])?;
    wait_for_count(&lab, node, closed, 2)?;
    expect_all_run(&lab, node, &jobs)?;
    for job in jobs {
        expect_spared(&lab, node, job)?;
    }
    lab.expect_nothing_left()
}

#[test]
fn samples_from_before_a_breaker_closed_do_not_count() -> Result<(), LabError> {
    let lab = lab(&[BREAKER], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let jobs = (0..4).map(|_| submit(&lab, user, &[QUARTER], "sleep 1000"));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    wait_for_log(&lab, node, "circuit breaker open on the node")?;
    for job in &jobs {
        wait_for_decision(&lab, node, *job, "refuse")?;
    }
    // Two are too few for the breaker.
    let ended = jobs[2..].iter().map(ToString::to_string);
    lab.command("scancel").args(ended).stdout()?;
    for job in &jobs[..2] {
        wait_until_cancelled(&lab, node, *job)?;
        let told = kept_once(&lab, node, *job)?;
        let log = lab.reaper_log(node)?;
        let last = &told[told.len().saturating_sub(2)..];
        assert_eq!(words(last), ["warn", "cancel"], "{told:?}\n{log}");
        let refused = told.iter().rfind(|told| told.word == "refuse");
        let refused = refused.unwrap_or_else(|| panic!("{told:?}\n{log}"));
        let since = last[0].at.saturating_sub(last[0].stalled);
        assert!(since >= refused.at, "{told:?}\n{log}");
    }
    lab.expect_nothing_left()
}

/// Replaces the lab's epilog; returns the original text.
fn replace_epilog(lab: &Lab, text: &str) -> Result<String, LabError> {
    let path = lab.folder().bin().join("epilog");
    let before = fs::read_to_string(&path).map_err(failed(&path))?;
    fs::write(&path, text).map_err(failed(&path))?;
    Ok(before)
}

fn wait_for_no_lease(lab: &Lab, node: &str) -> Result<(), LabError> {
    lab.wait("the lease is gone", Duration::from_secs(90), || {
        Ok(lab.leases(node)?.is_empty().then_some(()))
    })
}

/// Promise (reaper): remains of ended jobs are removed without another job on the GPU; MIG instances without a lease
/// stay. Metrics count prologs, epilogs and releases that failed.
/// With `instances_without_a_lease_are_not_touched`, `outcomes_are_counted_by_ending_cause_and_time`.
#[test]
fn remains_of_ended_jobs_are_removed_without_another_job() -> Result<(), LabError> {
    let with_metrics = [("mode", "\"off\""), ("metrics", "\"127.0.0.1:0\"")];
    let mut lab = lab(&with_metrics, "").start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());

    // The driver refuses while the epilog runs.
    let job = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let refuse = ["--nth", "1", "--count", "0", "--code", "IN_USE"];
    let fault = [&["fault", "--call", "nvmlGpuInstanceDestroy"][..], &refuse].concat();
    lab.gpusim(&node, &fault)?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    wait_for_log(&lab, &node, "failed for now")?;
    let lease = lab.lease(&node, job)?;
    let state = lease.map(|lease| lease.state);
    assert_eq!(state, Some(LeaseState::Releasing));
    let failed = format!("gpufrac_failed_releases_total{{node=\"{node}\",cause=\"user\"}} 1");
    wait_for_metric(&lab, &node, &failed)?;
    for name in ["prolog", "prolog_wait", "epilog"] {
        let count = format!("gpufrac_{name}_seconds_count{{node=\"{node}\"}} 1");
        wait_for_metric(&lab, &node, &count)?;
    }
    lab.gpusim(&node, &["clear"])?;
    wait_for_no_lease(&lab, &node)?;
    assert_eq!(lab.instances(&node)?, [], "{}", lab.reaper_log(&node)?);
    if !lab.drained_nodes()?.is_empty() {
        let node = format!("NodeName={node}");
        scontrol(&lab, &["update", &node, "State=RESUME"])?;
    }

    // The epilog never ran, and slurmctld cannot say whether the job has ended.
    let job = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    let epilog = replace_epilog(&lab, "#!/bin/sh\nexit 0\n")?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_reaper(&node)?;
    wait_for_log(&lab, &node, "jobs that seem to be over: ")?;
    std::thread::sleep(2 * SECOND);
    lab.slice(&node, job)?;
    replace_epilog(&lab, &epilog)?;
    lab.start_slurmctld()?;
    wait_for_no_lease(&lab, &node)?;
    let log = lab.reaper_log(&node)?;
    wait_for_log(
        &lab,
        &node,
        "Slurm reports that the job has ended, but its epilog did not run",
    )?;
    assert_eq!(lab.instances(&node)?, [], "{log}");
    wait_for_log(&lab, &node, "jobs that seem to be over: works again")?;
    lab.expect_nothing_left()
}

#[test]
fn all_slices_of_a_job_whose_epilog_never_came_are_ended() -> Result<(), LabError> {
    crate::needs_slurm(23, 11)?;
    let lab = lab(&[("mode", "\"off\"")], "").cores_per_node(16).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let each = ["-n2", "--tres-per-task=gres/gpufrac:0.25"];
    let job = submit(&lab, user, &each, "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    assert_eq!(lab.leases_of(node, job)?.len(), 2);
    let epilog = replace_epilog(&lab, "#!/bin/sh\nexit 0\n")?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    wait_for_no_lease(&lab, node)?;
    replace_epilog(&lab, &epilog)?;
    // The daemon logs the end of a lease after the lease is gone.
    let ended = "Slurm reports that the job has ended, but its epilog did not run";
    lab.wait("both leases are told", Duration::from_secs(10), || {
        let told = lab.reaper_log(node)?.matches(ended).count();
        Ok((told == 2).then_some(()))
    })?;
    assert_eq!(lab.instances(node)?, []);
    lab.expect_nothing_left()
}

#[test]
fn a_process_that_computes_without_a_lease_is_reported() -> Result<(), LabError> {
    let lab = lab(&[("mode", "\"off\"")], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    // The files of the slice admit its user, also from outside of the job.
    let root = lab.folder().gpus(node).display().to_string();
    let outside = lab
        .command("gpusim")
        .user(user)
        .env("CUDA_VISIBLE_DEVICES", &slice.instance.uuids[0])
        .args(["--root", &root, "run", "--memory", "100M"])
        .args(["--pattern", "busy"])
        .spawn()?;
    let pid = outside.pid();
    wait_for_log(&lab, node, &format!("process {pid} on "))?;
    wait_for_log(&lab, node, "computes without a lease of its job")?;
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, Signal::SIGKILL).expect("it runs");
    outside.wait()?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    lab.expect_nothing_left()
}

#[test]
fn instances_without_a_lease_are_not_touched() -> Result<(), LabError> {
    // Longer than it takes to find the instance.
    let windows = [("never_used", "\"20s\""), ("idle", "\"20s\"")];
    let lab = lab(&windows, "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let name = lab.gpusim(node, &["create", "1", "1g.10gb"])?;
    let name = name
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned();
    let job = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    lab.wait_for_state(job, &["RUNNING"])?;
    wait_for_log(
        &lab,
        node,
        "no lease names it; gpufrac did not create it and leaves it",
    )?;
    let damaged = lab.folder().run(node).join("leases/999999");
    fs::write(&damaged, "version = 1\nsta").map_err(failed(&damaged))?;
    wait_for_log(&lab, node, "leases: ")?;
    // On a busy machine a warning may have come earlier.
    let before = decisions(&lab, node, job)?;
    std::thread::sleep(21 * SECOND);
    let log = lab.reaper_log(node)?;
    assert_eq!(decisions(&lab, node, job)?, before, "{log}");
    assert!(!before.contains(&"cancel".to_owned()), "{log}");
    assert_eq!(lab.instances(node)?.len(), 2, "{log}");
    assert!(damaged.exists());
    fs::remove_file(&damaged).map_err(failed(&damaged))?;
    wait_for_log(&lab, node, "leases: works again")?;

    wait_until_cancelled(&lab, node, job)?;
    lab.wait_until_empty(Duration::from_secs(30))?;
    let left = lab.instances(node)?;
    assert_eq!(left.len(), 1, "{left:?}\n{}", lab.reaper_log(node)?);
    lab.gpusim(node, &["destroy", &name])?;
    lab.expect_nothing_left()
}

/// A MIG instance, and a GPU whose activity the driver reports by the wall clock.
const CLOCKED: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
gpus = [0]
partitions = ["gpu"]
nodes = "@NODES@"

[pool.shared]
mechanism = "timeslice"
gpu = "L40S-48"
gpus = [1]
partitions = ["shared"]
nodes = "@NODES@"
"#;

/// Promise (reaper): the wall clock ends nothing.
#[test]
fn the_wall_clock_ends_nothing() -> Result<(), LabError> {
    let library = clock::library();
    let warned = [
        ("warn", "[\"5s\"]"),
        ("over_share", "\"off\""),
        ("idle", "\"8s\""),
        ("never_used", "\"8s\""),
    ];
    let mut lab = lab(&warned, "")
        .gpu_list(&["H100-80:mig", "L40S-48"])
        .partition("shared", "")
        .pools(CLOCKED)
        .start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let file = lab.write_work("clock", "+0\n")?;
    wait_for_log(&lab, &node, BEGINS)?;
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    let environment = clock::environment(&library, &file.display().to_string());
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, &**value));
    lab.set_daemon_environment(&environment);
    lab.start_reaper(&node)?;
    wait_for_count(&lab, &node, BEGINS, 2)?;

    let shared = ["--partition=shared", QUARTER];
    let busy = submit(&lab, &user, &shared, "gpu busy")?;
    let unused = submit(&lab, &user, &[QUARTER], "sleep 1000")?;
    wait_for_decision(&lab, &node, unused, "warn")?;
    for shift in [3600, 0, -3600, 0] {
        clock::set(&file, shift);
        let shown = environment
            .iter()
            .fold(lab.command("date"), |date, (name, value)| {
                date.env(name, value)
            });
        let shown: i64 = shown.args(["+%s"]).stdout()?.trim().parse().unwrap_or(0);
        let real: i64 = lab
            .command("date")
            .args(["+%s"])
            .stdout()?
            .trim()
            .parse()
            .unwrap_or(0);
        assert!(
            (shown - real - shift).abs() < 60,
            "{shown} is not {real} {shift:+}"
        );
        std::thread::sleep(SECOND);
    }
    wait_until_cancelled(&lab, &node, unused)?;
    let told = kept_once(&lab, &node, unused)?;
    let log = lab.reaper_log(&node)?;
    // The simulator's counters use the wall clock, so a step of it may look like activity.
    let [.., warned, ended] = &told[..] else {
        panic!("{told:?}\n{log}")
    };
    let last = [&*warned.word, &*ended.word];
    assert_eq!(last, ["warn", "cancel"], "{told:?}\n{log}");
    assert!(ended.stalled >= 8 * SECOND, "{told:?}\n{log}");
    assert!(ended.at - warned.at >= 5 * SECOND, "{told:?}\n{log}");
    std::thread::sleep(4 * SECOND);
    let log = lab.reaper_log(&node)?;
    assert_eq!(decisions(&lab, &node, busy)?, Vec::<String>::new(), "{log}");
    expect_spared(&lab, &node, busy)?;
    lab.expect_nothing_left()
}

/// Promise (reaper): systemd ends a daemon whose round does not end.
#[test]
fn systemd_hears_of_every_round_and_how_long_one_may_take() -> Result<(), LabError> {
    let mut lab = lab(&[], "").start()?;
    let node = lab.nodes()[0].clone();
    wait_for_log(&lab, &node, BEGINS)?;
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    let path = lab.folder().root().join("notify");
    let socket = UnixDatagram::bind(&path).map_err(failed(&path))?;
    let limit = socket.set_read_timeout(Some(20 * SECOND));
    limit.map_err(failed(&path))?;
    let name = path.display().to_string();
    lab.set_daemon_environment(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "60000000")]);
    lab.start_reaper(&node)?;
    let said = || {
        let mut text = [0; 200];
        let length = socket.recv(&mut text).map_err(failed(&path))?;
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        Ok::<_, LabError>(text.trim().to_owned())
    };
    // Two intervals more than the unit's own limit.
    for word in ["WATCHDOG_USEC=62000000", "READY=1", "WATCHDOG=1"] {
        assert_eq!(said()?, word, "{}", lab.reaper_log(&node)?);
    }
    configure(&lab, &quick(&[("interval", "\"250ms\"")], ""))?;
    let mut later = Vec::new();
    while later.last().is_none_or(|word| word != "READY=1") {
        later.push(said()?);
    }
    later.retain(|word| word != "WATCHDOG=1");
    let reload = ["RELOADING=1", "WATCHDOG_USEC=60500000", "READY=1"];
    assert_eq!(later, reload, "{}", lab.reaper_log(&node)?);
    Ok(())
}
