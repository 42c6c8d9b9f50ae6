//! What is told of activity and of memory, once programs have ended and while they run.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

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

fn on(node: &SimNode, device: &str, more: &[&str]) -> Running {
    let mut command = node.gpusim(&["run", "--memory", "1M"]);
    command.args(more).env("CUDA_VISIBLE_DEVICES", device);
    Running::start(command)
}

/// Microseconds since 1970, as NVML's time stamps.
fn now_us() -> u64 {
    nvidia_ml::processes::now_us()
}

/// Who computed since a moment.
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
    let sample = |gi| gpu.gpm_mig_sample(gi).unwrap();
    let begun = Instant::now();
    let (first, idle) = (sample(2), sample(1));
    let whole = gpu.gpm_sample().unwrap();
    let (mut last, mut last_at) = (sample(2), Instant::now());
    let mut busy = 0.0;
    for _ in 0..20 {
        assert_eq!(on(&node, &worked, &["--seconds", "0.05"]).status(), Some(0));
        let (now, now_at) = (sample(2), Instant::now());
        let length = now_at.duration_since(last_at).as_secs_f64();
        busy += percent(&nvml, &last, &now).unwrap() / 100.0 * length;
        (last, last_at) = (now, now_at);
    }
    let (end, length) = (sample(2), begun.elapsed().as_secs_f64());
    let whole_end = gpu.gpm_sample().unwrap();
    let all = percent(&nvml, &first, &end).unwrap() / 100.0 * length;
    println!("{all} s, in parts {busy} s, of {length} s");
    assert!((0.98..1.5).contains(&all), "20 times 50 ms: {all}");
    assert!((all - busy).abs() < 0.1, "{all} {busy}");
    assert_eq!(percent(&nvml, &idle, &sample(1)).unwrap(), 0.0);
    let of_gpu = percent(&nvml, &whole, &whole_end).unwrap() / 100.0 * length;
    assert!((of_gpu - all).abs() < 0.1, "{of_gpu} {all}");
    assert_eq!(percent(&nvml, &end, &sample(2)).unwrap(), 0.0, "all over");
}

#[test]
fn a_killed_program_counts_up_to_its_death() {
    let node = SimNode::new(&["H100-80"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let begun = Instant::now();
    let (from, from_us) = (gpu.gpm_sample().unwrap(), now_us());
    let mut program = Running::start(node.gpusim(&["run"]));
    sleep(400);
    let before = gpu.gpm_sample().unwrap();
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    sleep(600);
    let after = gpu.gpm_sample().unwrap();
    let busy = percent(&nvml, &from, &after).unwrap() / 100.0 * begun.elapsed().as_secs_f64();
    assert!((0.35..0.65).contains(&busy), "{busy}");
    assert!((0.0..15.0).contains(&percent(&nvml, &before, &after).unwrap()));
    assert_eq!(workers(&gpu, from_us)[0].0, program.pid());
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 0);
    assert!(!node.ok(&["show"]).contains("process"));
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
    let mut short = Running::start(node.gpusim(&["run", "--seconds", "0.1"]));
    assert_eq!(short.status(), Some(0));
    sleep(400);
    let ended = workers(&gpu, begun);
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].0, short.pid());
    assert!((8..40).contains(&ended[0].1), "0.1 of 0.5 s: {ended:?}");
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 1);
    assert_eq!(workers(&gpu, now_us() - 200_000), [], "not since then");
    let steps = ["run", "--pattern", "steps:1@0.3"];
    let steps = Running::start(node.gpusim(&steps));
    let from = now_us();
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
    let samples: Vec<_> = (0..5)
        .map(|_| {
            let sample = gpu.gpm_mig_sample(gi).unwrap();
            sleep(400);
            sample
        })
        .collect();
    let parts: Vec<_> = samples
        .windows(2)
        .map(|two| percent(&nvml, &two[0], &two[1]).unwrap())
        .collect();
    for (part, wanted) in parts.iter().zip([0.0, 50.0, 100.0, 0.0]) {
        assert!((part - wanted).abs() < 15.0, "{parts:?}");
    }
    let wrong = node.gpusim(&["run", "--pattern", "steps:2@1"]).output();
    let text = String::from_utf8(wrong.unwrap().stderr).unwrap();
    assert!(text.contains("steps:0@5,1@0.2,0.3@4"), "{text}");
}

#[test]
fn samples_of_instances_that_had_the_same_id_give_some_percentage() {
    let node = SimNode::new(&["H100-80:2"], &["--mig"]);
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
