//! The reported activity and memory of programs, while they run and after they ended.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, UNIX_EPOCH};

use common::{Running, SimNode};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};

fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Busy percent between two samples.
fn percent(nvml: &Nvml, from: &GpmSample<'_>, to: &GpmSample<'_>) -> Result<f64, NvmlError> {
    let got = gpm_metrics_get(nvml, from, to, &[GpmMetricId::GraphicsUtil])?;
    Ok(got[0].as_ref().unwrap().value)
}

/// A sample, and the times between which it was taken, in microseconds since 1970; on a busy machine they differ much.
struct Taken<'nvml> {
    sample: GpmSample<'nvml>,
    from_us: u64,
    to_us: u64,
}

fn taken<'nvml>(take: impl FnOnce() -> Result<GpmSample<'nvml>, NvmlError>) -> Taken<'nvml> {
    let from_us = now_us();
    let sample = take().unwrap();
    Taken {
        sample,
        from_us,
        to_us: now_us(),
    }
}

fn seconds(from_us: u64, to_us: u64) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1e6
}

/// Busy seconds between two samples: lower and upper bound, with a tolerance of a millisecond.
fn busy(nvml: &Nvml, from: &Taken<'_>, to: &Taken<'_>) -> RangeInclusive<f64> {
    let part = percent(nvml, &from.sample, &to.sample).unwrap() / 100.0;
    let least = part * seconds(from.to_us, to.from_us);
    let most = part * seconds(from.from_us, to.to_us);
    least - 0.001..=most + 0.001
}

#[track_caller]
fn agree(one: &RangeInclusive<f64>, other: &RangeInclusive<f64>) {
    let apart = one.end() < other.start() || other.end() < one.start();
    assert!(!apart, "{one:?} s and {other:?} s");
}

fn on(node: &SimNode, device: &str, more: &[&str]) -> Running {
    let mut command = node.gpusim(&["run", "--memory", "1M"]);
    command.args(more).env("CUDA_VISIBLE_DEVICES", device);
    Running::start(command)
}

/// Microseconds since 1970, as NVML's time stamps.
fn now_us() -> u64 {
    nvidia_ml::processes::now_us()
}

/// The processes that computed since a time.
fn workers(gpu: &Device<'_>, last_seen_us: u64) -> Vec<(u32, u32)> {
    match gpu.process_utilization_stats(last_seen_us) {
        Err(NvmlError::NotFound) => Vec::new(),
        other => {
            let rows = other.unwrap();
            rows.iter().map(|row| (row.pid, row.sm_util)).collect()
        }
    }
}

#[test]
fn short_programs_between_two_samples_count() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let (worked, _rested) = (node.create("3g.40gb"), node.create("3g.40gb"));
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let sample = |gi| taken(|| gpu.gpm_mig_sample(gi));
    let (idle, whole, first) = (sample(1), taken(|| gpu.gpm_sample()), sample(2));
    let mut samples = vec![sample(2)];
    let mut lives = 0.0;
    for _ in 0..20 {
        let start = now_us();
        assert_eq!(on(&node, &worked, &["--seconds", "0.05"]).status(), Some(0));
        lives += seconds(start, now_us());
        samples.push(sample(2));
    }
    let (end, whole_end) = (sample(2), taken(|| gpu.gpm_sample()));
    let all = busy(&nvml, &first, &end);
    // Twenty times 50 ms; more if the machine was slow to end the programs.
    agree(&all, &(1.0..=lives));
    let parts = samples.windows(2).map(|two| busy(&nvml, &two[0], &two[1]));
    let parts = parts.fold((0.0, 0.0), |sum, part| {
        (sum.0 + part.start(), sum.1 + part.end())
    });
    agree(&all, &(parts.0..=parts.1));
    let none = |from: &Taken<'_>, to: &Taken<'_>| {
        assert_eq!(percent(&nvml, &from.sample, &to.sample).unwrap(), 0.0);
    };
    none(&idle, &sample(1));
    agree(&all, &busy(&nvml, &whole, &whole_end));
    // All programs have ended.
    none(&end, &sample(2));
}

#[test]
fn a_killed_program_counts_up_to_its_death() {
    let node = SimNode::new(&["H100-80"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let sample = || taken(|| gpu.gpm_sample());
    let from = sample();
    let started = now_us();
    let mut program = Running::start(node.gpusim(&["run"]));
    let runs = now_us();
    // Its activity is known up to its last beat.
    while last_beat(&node) < runs + 300_000 {
        sleep(10);
    }
    let before = sample();
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let dead = now_us();
    sleep(400);
    let after = sample();
    // A killed program counts for up to one beat after its last one.
    let beat = nvidia_ml::processes::BEAT.as_secs_f64();
    let lived = 0.3..=seconds(started, dead) + beat;
    agree(&busy(&nvml, &from, &after), &lived);
    let rest = 0.0..=seconds(before.from_us, dead) + beat;
    agree(&busy(&nvml, &before, &after), &rest);
    assert_eq!(workers(&gpu, started)[0].0, program.pid());
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 0);
    assert!(!node.ok(&["show"]).contains("process"));
}

/// The last beat of the only program of a node, in microseconds since 1970.
fn last_beat(node: &SimNode) -> u64 {
    let mut files = fs::read_dir(node.root().join("procs")).unwrap();
    let file = files.next().unwrap().unwrap().metadata().unwrap();
    let since = file.modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    since.as_micros() as u64
}

#[test]
fn processes_that_computed_are_told_though_they_have_ended() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        gpu.process_utilization_stats(None),
        Err(NvmlError::NotFound)
    ));
    let _idle = Running::start(node.gpusim(&["run", "--pattern", "idle"]));
    let begun = now_us();
    assert_eq!(workers(&gpu, begun - 1_000_000), [], "it holds memory only");
    let started = now_us();
    let mut short = Running::start(node.gpusim(&["run", "--seconds", "0.1"]));
    assert_eq!(short.status(), Some(0));
    let over = now_us();
    sleep(400);
    let (asked, ended, answered) = (now_us(), workers(&gpu, begun), now_us());
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].0, short.pid());
    let least = 100.0 * 0.1 / seconds(begun, answered) - 1.0;
    let most = 100.0 * seconds(started, over) / seconds(begun, asked) + 1.0;
    let told = f64::from(ended[0].1);
    assert!((least..=most).contains(&told), "{least}..{most}: {told}");
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 1);
    assert_eq!(workers(&gpu, now_us() - 200_000), [], "not since then");
    let steps = ["run", "--pattern", "steps:1@0.3"];
    let from = now_us();
    let steps = Running::start(node.gpusim(&steps));
    sleep(150);
    assert_eq!(workers(&gpu, from)[0].0, steps.pid());
    sleep(300);
    assert_eq!(
        workers(&gpu, now_us() - 100_000),
        [],
        "idle again, and alive"
    );
}

#[test]
fn steps_follow_one_another() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let (gi, uuid) = node.create_numbered("1g.10gb");
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let pattern = ["--pattern", "steps:0@0.4,0.5@0.4,1@0.4"];
    let _program = on(&node, &uuid, &pattern);
    let samples: Vec<_> = (0..8)
        .map(|_| {
            let sample = taken(|| gpu.gpm_mig_sample(gi));
            sleep(200);
            sample
        })
        .collect();
    let began_us = nvidia_ml::processes::live(node.root()).unwrap()[0].began_us;
    // Half of the load from 0.4 s on, all of it from 0.8 s on.
    let worked = |at_us| {
        let age = seconds(began_us, at_us);
        (age - 0.4).clamp(0.0, 0.4) / 2.0 + (age - 0.8).clamp(0.0, 0.4)
    };
    for two in samples.windows(2) {
        let least = worked(two[1].from_us) - worked(two[0].to_us);
        let most = worked(two[1].to_us) - worked(two[0].from_us);
        agree(&busy(&nvml, &two[0], &two[1]), &(least..=most));
    }
    agree(&busy(&nvml, &samples[0], &samples[7]), &(0.59..=0.61));
    let wrong = node.gpusim(&["run", "--pattern", "steps:2@1"]).output();
    let text = String::from_utf8(wrong.unwrap().stderr).unwrap();
    assert!(text.contains("steps:0@5,1@0.2,0.3@4"), "{text}");
}

#[test]
fn samples_of_instances_that_had_the_same_id_give_some_percentage() {
    let node = SimNode::new(&["H100-80:2"], &["--mig", "--manner", "random-uuids"]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let (gi, first) = node.create_numbered("1g.10gb");
    let mut program = on(&node, &first, &["--seconds", "0.3"]);
    let before = gpu.gpm_mig_sample(gi).unwrap();
    program.status();
    node.ok(&["destroy", &first]);
    assert!(gpu.gpm_mig_sample(gi).is_err(), "there is none now");
    let (again, second) = node.create_numbered("1g.10gb");
    assert_ne!(first, second);
    assert_eq!(gi, again);
    let _program = on(&node, &second, &[]);
    sleep(100);
    let after = gpu.gpm_mig_sample(gi).unwrap();
    let found = percent(&nvml, &before, &after).unwrap();
    assert!((0.0..=100.0).contains(&found), "{found}");
    let of_other = nvml.device_by_index(1).unwrap().gpm_sample().unwrap();
    let found = percent(&nvml, &before, &of_other).unwrap();
    assert!((0.0..=100.0).contains(&found), "{found}");
}

#[test]
fn telemetry_dies_and_comes_back() {
    let node = SimNode::new(&["H100-80"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let program = Running::start(node.gpusim(&["run"]));
    let from = now_us();
    let first = gpu.gpm_sample().unwrap();
    sleep(1200);
    let second = gpu.gpm_sample().unwrap();
    let all = || {
        let samples = gpu.samples(
            nvml_wrapper::enum_wrappers::device::Sampling::GpuUtilization,
            None,
        );
        let sampled = samples.unwrap().iter().any(|sample| match sample.value {
            nvml_wrapper::enums::device::SampleValue::U32(value) => value > 0,
            _ => panic!("{sample:?}"),
        });
        (
            percent(&nvml, &first, &second).unwrap() > 90.0,
            gpu.utilization_rates().unwrap().gpu > 90,
            workers(&gpu, from).len(),
            sampled,
        )
    };
    assert_eq!(all(), (true, true, 1, true));
    node.ok(&["dead-telemetry", "on"]);
    assert_eq!(all(), (false, false, 0, false));
    node.ok(&["calls", "--start"]);
    assert_eq!(all(), (false, false, 0, false));
    assert_eq!(
        gpu.running_compute_processes().unwrap()[0].pid,
        program.pid()
    );
    node.ok(&["dead-telemetry", "off"]);
    assert_eq!(all(), (true, true, 1, true));
    node.ok(&["dead-telemetry", "on"]);
    node.ok(&["clear"]);
    assert_eq!(all(), (true, true, 1, true));

    let fail = |call, code| {
        node.ok(&["fault", "--call", call, "--count", "0", "--code", code]);
    };
    fail("nvmlGpmMetricsGet", "UNKNOWN");
    fail("nvmlDeviceGetProcessUtilization", "GPU_IS_LOST");
    for _ in 0..3 {
        let metrics = percent(&nvml, &first, &second);
        assert!(matches!(metrics, Err(NvmlError::Unknown)), "{metrics:?}");
        let stats = gpu.process_utilization_stats(from);
        assert!(matches!(stats, Err(NvmlError::GpuLost)), "{stats:?}");
    }
    node.ok(&["clear"]);
    assert_eq!(all(), (true, true, 1, true));
}

#[test]
fn memory_is_held_without_a_process() {
    let node = SimNode::new(&["H100-80:mig", "L40S-48"], &[]);
    let nvml = node.nvml();
    let uuid = node.create("1g.10gb");
    let used = |device: &Device<'_>| device.memory_info().unwrap().used >> 20;
    let (parent, whole) = (
        nvml.device_by_index(0).unwrap(),
        nvml.device_by_index(1).unwrap(),
    );
    let (parent_before, whole_before) = (used(&parent), used(&whole));
    let mig = nvml.device_by_uuid(uuid.as_str()).unwrap();
    node.ok(&["leak", &uuid, "--memory", "2G"]);
    assert_eq!(used(&mig), 2048);
    assert_eq!(used(&parent), parent_before + 2048);
    assert_eq!(mig.running_compute_processes().unwrap().len(), 0);
    assert!(
        node.ok(&["show"])
            .contains("  2048 MiB held by no process\n")
    );
    assert_eq!(node.status(Some(&uuid), &["--memory", "8G"]), Some(2));
    node.ok(&["leak", &uuid, "--memory", "0"]);
    assert_eq!((used(&mig), used(&parent)), (0, parent_before));
    assert_eq!(node.status(Some(&uuid), &["--memory", "8G"]), Some(0));
    node.ok(&["leak", &uuid, "--memory", "1G"]);
    node.ok(&["destroy", &uuid]);
    let next = node.create("1g.10gb");
    assert_eq!(used(&nvml.device_by_uuid(next).unwrap()), 0);
    assert_eq!(used(&parent), parent_before);

    node.ok(&["leak", "1", "--memory", "512M"]);
    assert_eq!(used(&whole), whole_before + 512);
    let name = whole.uuid().unwrap();
    node.ok(&["leak", &name, "--memory", "3G"]);
    assert_eq!(used(&whole), whole_before + 3072);
    assert_eq!(node.status(Some(&name), &["--memory", "44G"]), Some(2));
    node.ok(&["reset", "1"]);
    assert_eq!(used(&whole), whole_before);
    for (device, memory) in [("2", "1G"), ("MIG-1", "1G"), ("x", "1G"), ("1", "100G")] {
        let wrong = node.gpusim(&["leak", device, "--memory", memory]).output();
        assert!(!wrong.unwrap().status.success(), "{device}");
    }
}
