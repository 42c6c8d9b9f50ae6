//! The duration of the simulated driver's calls, and the journal of calls.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "NVML's MIG functions have no safe wrapper")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::SimNode;
use nvidia_ml::journal::{self, Entry};
use nvidia_ml::latency::TABLE;
use nvml_wrapper::Nvml;

const LIBRARY: &str = "GPUSIM_TEST_LIBRARY";

/// Opens a session and keeps it until its input ends; does nothing if a person runs the tests.
#[test]
fn child() {
    let Some(library) = std::env::var_os(LIBRARY) else {
        return;
    };
    let nvml = Nvml::builder().lib_path(&library).init().unwrap();
    println!("open with {} GPUs", nvml.device_count().unwrap());
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Another process with a session, as of a job.
fn other(node: &SimNode, job: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--quiet"])
        .env(LIBRARY, node.library())
        .env("SLURM_JOB_ID", job)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open: the test harness in the child fails if it cannot write its last lines.
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("open with")));
    child
}

fn calls(node: &SimNode, name: &str) -> Vec<Entry> {
    let mut entries = journal::read(node.root()).unwrap();
    entries.retain(|entry| entry.call == name);
    entries
}

#[test]
fn a_handle_by_uuid_takes_longer_for_each_other_session() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    node.ok(&["calls", "--start"]);
    let step = 200;
    let more = step.to_string();
    node.ok(&[
        "latency",
        "set",
        "handle-by-uuid",
        "0",
        "--session-ms",
        &more,
    ]);
    node.ok(&["latency", "set", "start", "0"]);
    let uuid = node.store().node().unwrap().gpus[0].uuid.clone();
    let nvml = node.nvml();
    let took = || {
        nvml.device_by_uuid(uuid.as_str()).unwrap();
        calls(&node, "nvmlDeviceGetHandleByUUID")
            .pop()
            .unwrap()
            .took
    };
    let least = |others: u64| Duration::from_millis(others * step);
    let quick = || (0..50).any(|_| took() < least(1));
    assert!(quick());
    let mut first = other(&node, "7");
    assert!(took() >= least(1));
    let mut second = other(&node, "8");
    assert!(took() >= least(2));
    // A killed process is no longer counted, nor is an ended one.
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(took() >= least(1));
    drop(second.stdin.take());
    assert!(second.wait().unwrap().success());
    assert!(quick());
}

#[test]
fn changes_of_one_gpu_take_turns_and_those_of_two_do_not() {
    let node = SimNode::new(&["H100-80:2"], &["--mig"]);
    let long = Duration::from_secs(1);
    node.ok(&["latency", "set", "create-gpu-instance", "1000"]);
    node.ok(&["latency", "set", "start", "0"]);
    // The end and the duration of each call, with the wait for its turn.
    let both = |places: [(u32, u32); 2]| -> [Entry; 2] {
        node.ok(&["calls", "--start"]);
        let nvml = node.nvml();
        std::thread::scope(|scope| {
            for (gpu, start) in places {
                let nvml = &nvml;
                scope.spawn(move || create(nvml, gpu, start));
            }
        });
        let name = "nvmlDeviceCreateGpuInstanceWithPlacement";
        calls(&node, name).try_into().unwrap()
    };
    let began = |entry: &Entry| entry.at_us - entry.took.as_micros() as u64;
    let [first, second] = both([(0, 0), (1, 0)]);
    assert!(first.took >= long && second.took >= long);
    assert_ne!(first.gpu, second.gpu);
    assert!(began(&second) < first.at_us && began(&first) < second.at_us);
    let start = Instant::now();
    let [first, second] = both([(0, 1), (0, 2)]);
    assert_eq!((first.gpu, second.gpu), (Some(0), Some(0)));
    assert!(start.elapsed() >= 2 * long);
}

/// Makes an instance of the smallest profile.
fn create(nvml: &Nvml, index: u32, start: u32) {
    use nvml_wrapper_sys::bindings as sys;
    let device = nvml.device_by_index(index).unwrap();
    let make = nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref();
    let placement = sys::nvmlGpuInstancePlacement_t { start, size: 1 };
    let mut gi = null_mut();
    // SAFETY: the handle comes from this library, pointers are to live locals.
    let code = unsafe { make.unwrap()(device.handle(), 19, &placement, &mut gi) };
    assert_eq!(code, 0);
}

#[test]
fn a_delay_can_be_of_one_gpu() {
    let node = SimNode::new(&["H100-80:2"], &["--mig"]);
    node.ok(&["calls", "--start"]);
    node.ok(&["delay", "--call", "any", "--ms", "150", "--gpu", "1"]);
    let nvml = node.nvml();
    for index in [0, 1] {
        nvml.device_by_index(index).unwrap().uuid().unwrap();
    }
    for entry in journal::read(node.root()).unwrap() {
        let slow = entry.took >= Duration::from_millis(150);
        // A busy machine can make a call slower, but not quicker.
        assert!(slow || entry.gpu != Some(1), "{entry:?}");
    }
    assert_eq!(calls(&node, "nvmlDeviceGetUUID")[1].gpu, Some(1));
    let delay = ["delay", "--call", "any", "--ms", "1", "--gpu", "2"];
    let refused = node.gpusim(&delay).output().unwrap();
    assert!(common::told(&refused).contains("no GPU 2"));
}

#[test]
fn calls_are_told_by_job() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    node.ok(&["calls", "--start"]);
    for job in ["7", "8", "8"] {
        let mut child = other(&node, job);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    let of = |job: &str| node.ok(&["calls", "--job", job]);
    assert!(of("7").contains("\n1 nvmlInit_v2 "), "{}", of("7"));
    assert!(of("8").contains("\n2 nvmlInit_v2 "), "{}", of("8"));
    assert!(of("9").starts_with("0 any"), "{}", of("9"));
}

#[test]
fn the_model_is_switched_on_and_off() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let show = || node.ok(&["latency", "show"]);
    assert!(show().starts_with("off\n"));
    node.ok(&["latency", "on", "--percent", "10"]);
    node.ok(&[
        "latency",
        "set",
        "create-gpu-instance",
        "3000",
        "--gpu",
        "0",
        "--profile",
        "1g.10gb",
    ]);
    // `clear` ends faults; the latencies stay.
    node.ok(&["clear"]);
    let shown = show();
    assert!(shown.starts_with("on, at 10 %\n"), "{shown}");
    assert!(
        shown.contains("create-gpu-instance on GPU 0 of 1g.10gb: 3000 ms"),
        "{shown}"
    );
    assert!(
        shown.contains("destroy-gpu-instance: 1000 ms; nvlib.go"),
        "{shown}"
    );
    node.ok(&["calls", "--start"]);
    drop(node.nvml());
    assert!(calls(&node, "nvmlInit_v2")[0].took >= Duration::from_millis(30));
    node.ok(&["latency", "off"]);
    assert!(show().starts_with("off\n"));
    let refused = node
        .gpusim(&["latency", "set", "no-such-step", "1"])
        .output();
    assert!(common::told(&refused.unwrap()).contains("handle-by-uuid"));
}

#[test]
fn the_documents_have_the_same_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design/tests.md");
    let text = std::fs::read_to_string(path).unwrap();
    for latency in &TABLE {
        let most = match latency.session_ms {
            0 => String::new(),
            _ => latency.most_ms.to_string(),
        };
        let more = match latency.session_ms {
            0 => String::new(),
            ms => ms.to_string(),
        };
        let row = format!(
            "| `{}` | {} | {more} | {most} | {} |",
            latency.name, latency.alone_ms, latency.source
        );
        assert!(text.contains(&row), "docs/design/tests.md lacks {row}");
    }
}
