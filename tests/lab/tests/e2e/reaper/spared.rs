//! An active job is never reclaimed, whatever its samples look like for a while.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufrac_core::lease::LeaseState;
use gpufrac_lab::{JobId, Lab, LabError};
use nix::sys::signal::Signal;

use super::{decisions, expect_reclaimed, expect_spared, expect_unnoticed, findings, lab, submit};

/// Windows in which a job with a slow rhythm is active at least twice.
const WINDOWS: [(&str, &str); 5] = [
    ("interval", "\"500ms\""),
    ("never_used", "\"20s\""),
    ("idle", "\"20s\""),
    ("over_share", "\"20s\""),
    ("warn", "[\"3s\"]"),
];
/// Longer than two windows. Short bursts and further cases are played in virtual time (`reaper/tests/virtual_time.rs`).
const LONG: Duration = Duration::from_secs(45);
const QUARTER: &str = "--gres=gpufrac:0.25";

const LOADING: &str = r#"
[reaper.rule.grace]
partitions = ["grace"]
grace = "15s"

[reaper.rule.patient]
partitions = ["patient"]
never_used = "off"
"#;

/// Promise (reaper): each busy job is spared: bursts, phases on the CPU, data first, short processes, clients that come
/// and go, suspension, lost telemetry.
/// With `on_whole_gpus`, `telemetry_that_is_lost_for_a_while`, `suspended_jobs`.
#[test]
fn on_instances() -> Result<(), LabError> {
    let pools = "[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
        partitions = [\"gpu\", \"grace\", \"patient\"]\nnodes = \"@NODES@\"\n";
    let builder = lab(&WINDOWS, LOADING).pools(pools);
    let lab = builder
        .partition("grace", "")
        .partition("patient", "")
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let run = |partition, script| submit(&lab, user, &["-p", partition, QUARTER], script);
    let jobs = [
        ("gpu", "gpu steps:1@1,0@8,..."),
        ("gpu", "while :; do gpu busy 1; sleep 7; done"),
        ("gpu", "while :; do gpu busy 0.05; sleep 1; done"),
        ("grace", "sleep 27; gpu busy"),
        ("patient", "sleep 35; gpu busy"),
    ];
    let jobs = jobs.map(|(partition, script)| (run(partition, script), script));
    // Without activity it would be ended after 21 s each time.
    let late = run("gpu", "gpu steps:1@1,0@19,1@1,0@19,1@1000")?;
    lab.wait_for_state(late, &["RUNNING"])?;
    std::thread::sleep(LONG);
    for (job, script) in jobs {
        let job = job?;
        expect_unnoticed(&lab, node, job, script)?;
        expect_spared(&lab, node, job)?;
    }
    let found = decisions(&lab, node, late)?;
    let log = lab.reaper_log(node)?;
    let each = found.chunks(2).all(|it| it == ["warn", "clear"]);
    assert!(each && !found.is_empty(), "{found:?}\n{log}");
    expect_spared(&lab, node, late)?;
    lab.expect_nothing_left()
}

const SHARED: &str = r#"
[pool.mps]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODE1@"

[pool.timeslice]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["timeslice"]
nodes = "@NODE2@"
"#;

#[test]
fn on_whole_gpus() -> Result<(), LabError> {
    let builder = lab(&WINDOWS, "").nodes(2).gpu_list(&["L40S-48", "L40S-48"]);
    let builder = builder.partition("timeslice", "Nodes=@NODE2@");
    let lab = builder.mps_standin().pools(SHARED).start()?;
    let (users, nodes) = (lab.users(), lab.nodes());
    let run = |place: usize, user: usize, size: &str, script| {
        let partition = ["gpu", "timeslice"][place];
        let gres = format!("--gres=gpufrac:{size}");
        let job = submit(&lab, &users[user], &["-p", partition, &gres], script)?;
        lab.wait_for_state(job, &["RUNNING"])?;
        Ok::<_, LabError>((place, job, script))
    };
    let comes_and_goes = "while :; do gpu busy 1; sleep 6; done";
    let short = "while :; do gpu busy 0.05; sleep 1; done";
    let jobs = [
        // One GPU has two tenants, the other a single one.
        run(0, 0, "0.3", "gpu busy")?,
        run(0, 1, "0.6", comes_and_goes)?,
        run(0, 2, "0.6", comes_and_goes)?,
        // All of one GPU, and three parts of the other.
        run(1, 0, "1", comes_and_goes)?,
        run(1, 1, "0.2", "gpu busy")?,
        run(1, 0, "0.2", short)?,
        run(1, 2, "0.2", comes_and_goes)?,
    ];
    std::thread::sleep(LONG);
    for (place, job, script) in jobs {
        expect_unnoticed(&lab, &nodes[place], job, script)?;
        expect_spared(&lab, &nodes[place], job)?;
    }
    lab.expect_nothing_left()
}

/// Waits until one of the jobs, each on a node, ends; returns the time since `since`.
fn first_end(lab: &Lab, jobs: &[JobId], since: Instant) -> Result<Duration, LabError> {
    lab.wait("a job ends", Duration::from_secs(60), || {
        for job in jobs {
            if lab.job(*job)?.state() != "RUNNING" {
                return Ok(Some(since.elapsed()));
            }
        }
        Ok(None)
    })
}

#[test]
fn telemetry_that_is_lost_for_a_while() -> Result<(), LabError> {
    let changes = [("idle", "\"10s\""), ("never_used", "\"10s\"")];
    let builder = lab(&changes, "").nodes(3).gpus("H100-80", 1);
    let lab = builder.start()?;
    let (user, nodes) = (&lab.users()[0], lab.nodes());
    let mut jobs = Vec::new();
    for node in nodes {
        let args = ["-w", node, QUARTER];
        jobs.push(submit(&lab, user, &args, "gpu steps:1@1")?);
    }
    for job in &jobs {
        wait_for_program(&lab, *job)?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let calls = ["nvmlGpmMigSampleGet", "nvmlGpmMetricsGet", "nvmlInit_v2"];
    for (node, call) in nodes.iter().zip(calls) {
        let what = ["fault", "--call", call, "--count", "0", "--code", "UNKNOWN"];
        lab.gpusim(node, &what)?;
    }
    std::thread::sleep(Duration::from_secs(15));
    for ((node, job), call) in nodes.iter().zip(&jobs).zip(calls) {
        expect_unnoticed(&lab, node, *job, call)?;
        let log = lab.reaper_log(node)?;
        // Errors of single instances are only in the samples.
        let lost = log.contains("starting NVML");
        assert_eq!(lost, call == "nvmlInit_v2", "{log}");
        lab.gpusim(node, &["clear"])?;
    }
    let back = Instant::now();
    let after = first_end(&lab, &jobs, back)?;
    for (node, job) in nodes.iter().zip(&jobs) {
        expect_reclaimed(&lab, node, *job, "idle gpm")?;
    }
    let logs: Vec<String> = nodes.iter().flat_map(|n| lab.reaper_log(n)).collect();
    let logs = logs.join("\n");
    assert!(after > Duration::from_secs(8), "{after:?}: {logs}");
    lab.expect_nothing_left()
}

/// Waits until a job's program has its device.
fn wait_for_program(lab: &Lab, job: JobId) -> Result<(), LabError> {
    let what = format!("the program of job {job}");
    lab.wait(&what, Duration::from_secs(60), || {
        let output = lab.output(job).unwrap_or_default();
        Ok(output.contains("device=").then_some(()))
    })
}

#[test]
fn suspended_jobs() -> Result<(), LabError> {
    let lab = lab(&[("idle", "\"8s\"")], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let control = |word: &str, job: JobId| {
        let args = [word, &job.to_string()];
        lab.command("scontrol").args(args).stdout().map(drop)
    };
    let idle = submit(&lab, user, &[QUARTER], "gpu steps:1@1")?;
    let works = submit(&lab, user, &[QUARTER], "gpu steps:1@1,0@15,1@1000")?;
    for job in [idle, works] {
        wait_for_program(&lab, job)?;
        control("suspend", job)?;
    }
    std::thread::sleep(Duration::from_secs(18));
    for job in [idle, works] {
        let log = lab.reaper_log(node)?;
        assert_eq!(lab.job(job)?.state(), "SUSPENDED", "{log}");
        assert_eq!(findings(&lab, node, job)?, Vec::<String>::new(), "{log}");
        control("resume", job)?;
    }
    let resumed = Instant::now();
    let after = first_end(&lab, &[idle], resumed)?;
    let log = lab.reaper_log(node)?;
    // Slurm's times are whole seconds.
    assert!(after > Duration::from_secs(6), "{after:?}: {log}");
    expect_reclaimed(&lab, node, idle, "idle gpm")?;
    expect_unnoticed(&lab, node, works, "it works again")?;
    expect_spared(&lab, node, works)?;
    lab.expect_nothing_left()
}

/// The folder of a node's daemon in /proc.
fn reaper(lab: &Lab, node: &str) -> PathBuf {
    let text = std::fs::read(lab.folder().root().join("lab.json")).expect("the lab's record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("the lab's record");
    let processes = record["processes"].as_array().expect("processes");
    let name = format!("reaperd.{node}");
    let found = processes.iter().find(|process| process["name"] == *name);
    let pid = &found.expect("a reaper")["pid"];
    Path::new("/proc").join(pid.to_string())
}

/// Files of the simulated driver that a process has open.
fn open_files(process: &Path, driver: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(process.join("fd")).expect("the daemon's files");
    let targets = entries
        .flatten()
        .filter_map(|it| std::fs::read_link(it.path()).ok());
    targets
        .filter(|target| target.starts_with(driver))
        .collect()
}

/// Open sessions with the driver on a node, of all programs.
fn sessions(lab: &Lab, node: &str) -> Result<u64, LabError> {
    let calls = lab.gpusim(node, &["calls"])?;
    let count = |call: &str| {
        let words = calls.lines().map(str::split_whitespace);
        let counts = words.filter(|line| line.clone().any(|word| word == call));
        let numbers = counts.flat_map(|line| line.filter_map(|word| word.parse::<u64>().ok()));
        numbers.sum::<u64>()
    };
    let opened = count("nvmlInit_v2");
    assert!(opened > 0, "{calls}");
    Ok(opened.saturating_sub(count("nvmlShutdown")))
}

/// Observations of the daemon until the end of a job.
#[derive(Default)]
struct Seen {
    /// It had a session with the driver while the job ran.
    session: bool,
    /// It had none while the job's instance was destroyed.
    let_go: bool,
    /// Device nodes that it had open.
    open: Vec<PathBuf>,
}

/// Watches the daemon until the job's lease is gone and Slurm has released the job.
fn watch(lab: &Lab, node: &str, job: JobId) -> Result<Seen, LabError> {
    let (process, driver) = (reaper(lab, node), lab.folder().gpus(node).join("dev"));
    let mut seen = Seen::default();
    let began = Instant::now();
    let mut had_lease = false;
    while began.elapsed() < Duration::from_secs(60) {
        let lease = lab.lease(node, job)?;
        let sessions = sessions(lab, node)?;
        seen.open.extend(open_files(&process, &driver));
        had_lease |= lease.is_some();
        match lease.map(|lease| lease.state) {
            // Prolog and Epilog have their own session.
            Some(LeaseState::Releasing) => seen.let_go |= sessions <= 1,
            Some(LeaseState::Active) => seen.session |= sessions > 0,
            Some(_) => {}
            None if had_lease => break,
            None => {}
        }
        // A tenth of the time that the destruction of an instance takes here.
        std::thread::sleep(Duration::from_millis(30));
    }
    let ended = lab.wait_for_end(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
    Ok(seen)
}

const JOBS: usize = 12;

/// Promise (reaper): a job that ends is not delayed by the observation of a slice beside it.
#[test]
fn jobs_that_end_beside_a_suspect() -> Result<(), LabError> {
    // Samples of nearly a second without gaps as soon as a slice is suspected; no job is ended.
    let changes = [
        ("mode", "\"dry-run\""),
        ("never_used", "\"10s\""),
        ("idle", "\"10s\""),
        ("over_share", "\"10s\""),
    ];
    let mut lab = lab(&changes, "").gpus("H100-80", 1).start()?;
    let name = lab.nodes()[0].clone();
    // An open session is only counted when it is closed.
    lab.stop_reaper(&name, Signal::SIGTERM)?;
    lab.gpusim(&name, &["calls", "--start"])?;
    lab.start_reaper(&name)?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let suspect = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    super::wait_for_decision(&lab, node, suspect, "cancel")?;
    // Slow enough to observe the daemon meanwhile.
    let slow = ["delay", "--call", "nvmlGpuInstanceDestroy", "--ms", "300"];
    lab.gpusim(node, &slow)?;
    let (mut watched, mut let_go) = (0, 0);
    for number in 0..JOBS {
        let script = ["true", "gpu busy 0.1", "gpu idle 0.2"][number % 3];
        let job = submit(&lab, user, &[QUARTER], script)?;
        let seen = watch(&lab, node, job)?;
        assert_eq!(seen.open, Vec::<PathBuf>::new(), "job {job}");
        watched += usize::from(seen.session);
        let_go += usize::from(seen.let_go);
        assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    }
    let log = lab.reaper_log(node)?;
    // By chance, less than a half would be observed in the rest between two samples. This program may be delayed.
    let (watched_enough, let_go_enough) = (watched > JOBS / 2, let_go > JOBS * 4 / 5);
    assert!(
        watched_enough && let_go_enough,
        "{watched} watched, {let_go} let go: {log}"
    );
    expect_spared(&lab, node, suspect)?;
    lab.expect_nothing_left()?;
    expect_sessions_closed(&lab, node)
}

/// Waits until every session with the driver is closed; without a slice the daemon only opens one from time to time.
fn expect_sessions_closed(lab: &Lab, node: &str) -> Result<(), LabError> {
    let what = "as many calls of nvmlShutdown as of nvmlInit_v2";
    lab.wait(what, Duration::from_secs(20), || {
        Ok((sessions(lab, node)? == 0).then_some(()))
    })
}
