//! The fake CUDA program, as NVML and other programs see it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{NOBODY, Running, SimNode, told};
use nvml_wrapper::error::NvmlError;

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn the_program_takes_the_device_that_cuda_would_take() {
    let node = SimNode::new(&["H100-80:2"], &["--mig"]);
    node.ok(&["mig", "1", "off"]);
    let view: serde_json::Value = serde_json::from_str(&node.ok(&["show", "--json"])).unwrap();
    let gpu = |index: usize| view["gpus"][index]["uuid"].as_str().unwrap().to_owned();
    let (first, second) = (node.create("1g.10gb"), node.create("2g.20gb"));
    // GPU instances by id: 2g is before 1g.
    let taken = |device: Option<&str>| {
        let mut command = node.gpusim(&["run", "--seconds", "0"]);
        if let Some(device) = device {
            command.env("CUDA_VISIBLE_DEVICES", device);
        }
        let output = command.output().unwrap();
        let text = told(&output);
        println!("{device:?}: {text}");
        let uuid = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("uuid="));
        uuid.map(str::to_owned).ok_or(output.status.code())
    };
    assert_eq!(taken(None), Ok(second.clone()));
    assert_eq!(taken(Some("0")), Ok(second.clone()));
    assert_eq!(taken(Some("1")), Ok(gpu(1)));
    assert_eq!(taken(Some("1,0")), Ok(gpu(1)));
    assert_eq!(taken(Some(&first)), Ok(first.clone()));
    assert_eq!(taken(Some(&first[..14])), Ok(first.clone()));
    assert_eq!(taken(Some(&gpu(0))), Ok(second));
    assert_eq!(taken(Some(&format!("MIG-{}/13/0", gpu(0)))), Ok(first));
    for nothing in ["", "-1", "2", "MIG-", "MIG-00000000", "GPU-0000", "x"] {
        assert_eq!(taken(Some(nothing)), Err(Some(100)), "{nothing}");
    }
    node.ok(&["mig", "0", "on"]);
    assert_eq!(
        taken(Some("0")),
        Err(Some(100)),
        "a GPU in MIG mode without an instance"
    );
}

#[test]
fn memory_is_the_instances() {
    let node = SimNode::new(&["A30-24"], &["--mig"]);
    let uuid = node.create("1g.6gb");
    assert_eq!(node.status(Some(&uuid), &["--memory", "5952M"]), Some(0));
    assert_eq!(node.status(Some(&uuid), &["--memory", "5953M"]), Some(2));
    let mut half = node.gpusim(&["run", "--memory", "4G"]);
    half.env("CUDA_VISIBLE_DEVICES", &uuid);
    let half = Running::start(half);
    assert!(
        half.line
            .contains("memory_mib=5952 sms=14 holding_mib=4096"),
        "{}",
        half.line
    );
    assert_eq!(node.status(Some(&uuid), &["--memory", "2G"]), Some(2));
    let nvml = node.nvml();
    let mig = nvml.device_by_uuid(uuid.as_str()).unwrap();
    assert_eq!(mig.memory_info().unwrap().used, 4096 << 20);
    drop(half);
    assert_eq!(
        mig.memory_info().unwrap().used,
        0,
        "a killed program holds nothing"
    );
    assert_eq!(node.status(Some(&uuid), &["--memory", "2G"]), Some(0));
}

#[test]
fn nvml_sees_it_on_its_instance_and_will_not_destroy_that() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let (busy, idle) = (node.create("3g.40gb"), node.create("1g.10gb"));
    let mut program = node.gpusim(&["run", "--memory", "1G", "--name", "train"]);
    program.env("CUDA_VISIBLE_DEVICES", &busy);
    let mut program = Running::start(program);
    let nvml = node.nvml();
    let on = |uuid: &str| {
        let device = nvml.device_by_uuid(uuid).unwrap();
        let all = device.running_compute_processes().unwrap();
        all.iter()
            .map(|process| {
                (
                    process.pid,
                    process.gpu_instance_id,
                    process.compute_instance_id,
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(on(&busy), [(program.child.id(), Some(2), Some(0))]);
    assert_eq!(on(&idle), []);
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.running_compute_processes().unwrap().len(), 1);
    assert_eq!(gpu.mps_running_compute_processes().unwrap().len(), 0);

    let refused = node.gpusim(&["destroy", &busy]).output().unwrap();
    assert!(told(&refused).contains("IN_USE (19"), "{}", told(&refused));
    signal(&program.child, "TERM");
    assert_eq!(program.child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(on(&busy), []);
    node.ok(&["destroy", &busy]);
    assert_eq!(node.status(Some(&busy), &[]), Some(100));
}

#[test]
fn other_users_reach_devices_by_the_modes_of_the_nodes() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let uuid = node.create("1g.10gb");
    let as_nobody = |arguments: &[&str]| {
        let output = node
            .gpusim_of_nobody(arguments)
            .env("CUDA_VISIBLE_DEVICES", &uuid)
            .output()
            .unwrap();
        println!("nobody {arguments:?}: {}", told(&output));
        output.status.code()
    };
    let run = ["run", "--seconds", "0"];
    assert_eq!(as_nobody(&run), Some(100), "no capability nodes yet");
    // For root the nodes are created, readable for all users, as the driver does.
    assert_eq!(node.status(Some(&uuid), &[]), Some(0));
    assert_eq!(as_nobody(&run), Some(0));
    assert_eq!(as_nobody(&["destroy", &uuid]), Some(1));
    assert_eq!(as_nobody(&["show"]), Some(0));

    let caps: Vec<_> = [120, 121]
        .iter()
        .map(|minor| {
            node.root()
                .join(format!("dev/nvidia-caps/nvidia-cap{minor}"))
        })
        .collect();
    let close = || {
        for cap in &caps {
            std::fs::set_permissions(cap, std::fs::Permissions::from_mode(0o400)).unwrap();
        }
    };
    close();
    assert_eq!(as_nobody(&run), Some(100), "closed");
    // Any program of root that lists MIG devices opens them again ...
    node.nvml()
        .device_by_index(0)
        .unwrap()
        .mig_device_by_index(0)
        .unwrap();
    assert_eq!(
        as_nobody(&run),
        Some(0),
        "opened by nvidia-modprobe's manners"
    );
    // ... unless the driver is told not to change them.
    for capability in ["access", "ci0/access"] {
        let file = node
            .root()
            .join("proc/driver/nvidia/capabilities/gpu0/mig/gi13")
            .join(capability);
        std::fs::write(file, "DeviceFileModify: 0\n").unwrap();
    }
    close();
    node.nvml()
        .device_by_index(0)
        .unwrap()
        .mig_device_by_index(0)
        .unwrap();
    assert_eq!(as_nobody(&run), Some(100), "left alone");
    for cap in &caps {
        chown(cap, Some(NOBODY), None).unwrap();
    }
    assert_eq!(as_nobody(&run), Some(0), "the owner");
    node.ok(&["destroy", &uuid]);
    assert!(caps[0].exists(), "nodes stay behind");
    assert!(
        !node
            .root()
            .join("proc/driver/nvidia/capabilities/gpu0/mig/gi13")
            .exists()
    );
}

#[test]
fn utilisation_follows_the_pattern() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let program = Running::start(node.gpusim(&["run", "--pattern", "burst:0.2:0.5"]));
    std::thread::sleep(Duration::from_millis(1400));
    let rate = gpu.utilization_rates().unwrap().gpu;
    assert!((45..=55).contains(&rate), "{rate}");
    let of_process = gpu.process_utilization_stats(None).unwrap();
    assert_eq!(of_process[0].pid, program.child.id());
    let end = Instant::now();
    drop(program);
    // There was activity in the last second.
    let rate = gpu.utilization_rates().unwrap().gpu;
    assert!(rate > 0 || end.elapsed() > Duration::from_millis(900));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(gpu.utilization_rates().unwrap().gpu, 0);
    assert!(matches!(gpu.gpm_support(), Ok(false)));
}

#[test]
fn gpm_tells_the_activity_of_an_instance() {
    use nvml_wrapper::enums::gpm::GpmMetricId;
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let (worked, rested) = (node.create("3g.40gb"), node.create("3g.40gb"));
    let mut program = node.gpusim(&["run", "--pattern", "burst:0.05:0.3"]);
    program.env("CUDA_VISIBLE_DEVICES", &worked);
    let _program = Running::start(program);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let utilization = |gi: u32| {
        let first = gpu.gpm_mig_sample(gi).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let second = gpu.gpm_mig_sample(gi).unwrap();
        let got = nvml_wrapper::gpm::gpm_metrics_get(
            &nvml,
            &first,
            &second,
            &[GpmMetricId::GraphicsUtil],
        )
        .unwrap();
        got[0].as_ref().unwrap().value
    };
    // The 3g instance has the id 2.
    assert!((utilization(2) - 30.0).abs() < 5.0);
    assert_eq!(utilization(1), 0.0);
    assert!(gpu.gpm_mig_sample(7).is_err());
    node.ok(&["destroy", &rested]);
}

#[test]
fn faults_delays_and_counts() {
    let node = SimNode::new(&["T4-16"], &[]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let uuid = || gpu.uuid();
    node.ok(&[
        "fault",
        "--call",
        "nvmlDeviceGetUUID",
        "--nth",
        "2",
        "--count",
        "2",
        "--code",
        "IN_USE",
    ]);
    let answers: Vec<_> = (0..4).map(|_| uuid().is_ok()).collect();
    assert_eq!(answers, [true, false, false, true]);
    assert!(matches!(gpu.minor_number(), Ok(0)));

    node.ok(&["clear"]);
    node.ok(&[
        "fault",
        "--call",
        "any",
        "--nth",
        "3",
        "--code",
        "GPU_IS_LOST",
    ]);
    assert!(uuid().is_ok() && gpu.minor_number().is_ok());
    assert!(matches!(gpu.minor_number(), Err(NvmlError::GpuLost)));
    assert!(uuid().is_ok());

    node.ok(&["clear"]);
    node.ok(&["delay", "--call", "nvmlDeviceGetUUID", "--ms", "150"]);
    let begun = Instant::now();
    uuid().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(150));
    node.ok(&["calls", "--start"]);
    let fastest = (0..3).map(|_| {
        let begun = Instant::now();
        uuid().unwrap();
        begun.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(
        fastest < Duration::from_millis(150),
        "counting ends a delay"
    );
    assert_eq!(node.ok(&["calls"]), "3 any\n3 nvmlDeviceGetUUID\n");
    node.ok(&[
        "fault",
        "--call",
        "nvmlDeviceGetUUID",
        "--code",
        "999",
        "--after",
    ]);
    assert!(uuid().is_err() && uuid().is_ok());
    let wrong = node
        .gpusim(&["fault", "--call", "nvmlNothing", "--code", "3"])
        .output()
        .unwrap();
    assert!(told(&wrong).contains("no function"));
}

#[test]
fn a_killed_writer_leaves_a_whole_state() {
    let node = SimNode::new(&["A100-40"], &["--mig"]);
    for _ in 0..60 {
        let mut child = node
            .gpusim(&["create", "0", "1g.5gb"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At any moment of its short life.
        std::thread::sleep(Duration::from_micros(u64::from(child.id() % 37) * 100));
        let _ = child.kill();
        let _ = child.wait();
        let view: serde_json::Value = serde_json::from_str(&node.ok(&["show", "--json"])).unwrap();
        let listed = view["gpus"][0]["instances"].as_array().unwrap().len();
        if listed == 7 {
            node.ok(&["reset", "0"]);
        }
    }
    node.ok(&["reset", "0"]);
    node.ok(&["create", "0", "7g.40gb"]);
    let entries = std::fs::read_dir(node.root().join("proc/driver/nvidia/capabilities/gpu0/mig"));
    assert_eq!(
        entries.unwrap().count(),
        1,
        "the next writer puts the tree right"
    );
}

#[test]
fn what_monitoring_holds_stays_until_it_ends() {
    let node = SimNode::new(&["H100-80"], &["--mig", "--idle-memory", "100"]);
    let (id, uuid) = node.create_numbered("2g.20gb");
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let sample = || gpu.gpm_mig_sample(id).map(drop);
    assert!(sample().is_ok());
    let used = nvml.device_by_uuid(uuid.as_str()).unwrap();
    assert_eq!(used.memory_info().unwrap().used >> 20, 200);

    let hold = |arguments: &[&str], device: &str| {
        let holder = Running {
            child: node
                .gpusim(&[&["hold"], arguments].concat())
                .spawn()
                .unwrap(),
            line: String::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !nvidia_ml::processes::is_held(node.root(), device) {
            assert!(Instant::now() < deadline, "{arguments:?} holds nothing");
            std::thread::yield_now();
        }
        holder
    };
    let counters = nvidia_ml::processes::profiling(&gpu.uuid().unwrap());
    let profiling = hold(&["0", "--profiling"], &counters);
    assert!(matches!(sample(), Err(NvmlError::UnexpectedVariant(29))));
    drop(profiling);
    assert!(sample().is_ok());

    let holder = hold(&[&uuid], &uuid);
    let destroy = || {
        let output = node.gpusim(&["destroy", &uuid]).output().unwrap();
        (output.status.success(), told(&output))
    };
    let (gone, said) = destroy();
    assert!(!gone && said.contains("In use"), "{said}");
    assert_eq!(gpu.running_compute_processes().unwrap(), [], "on no list");
    drop(holder);
    assert!(destroy().0);
}
