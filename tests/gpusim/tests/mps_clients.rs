//! Fake CUDA programs that are clients of the stand-in for MPS.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use common::mps::Mps;
use common::{NOBODY, Running, SimNode, told};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

const MIB: u64 = 1 << 20;

fn daemon(device: &str, flags: &[&str]) -> Mps {
    let mut mps = Mps::standin("{}");
    device.clone_into(&mut mps.device);
    // Other users may pass, as far as the pipe directory allows it.
    for (path, mode) in [(mps.folder.path().to_owned(), 0o755), (mps.pipe(""), 0o711)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    mps.start(flags);
    mps
}

fn client(mps: &Mps, mut command: Command, more: &[&str]) -> Command {
    command
        .args(more)
        .env("CUDA_MPS_PIPE_DIRECTORY", mps.pipe(""));
    command
}

fn run(node: &SimNode) -> Command {
    node.gpusim(&["run", "--memory", "100M"])
}

fn pids(text: &str) -> Vec<u32> {
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn rows(found: Vec<ProcessInfo>) -> Vec<(u32, u64, Option<u32>, Option<u32>)> {
    let row = |process: ProcessInfo| {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else {
            panic!("{process:?}")
        };
        let (gi, ci) = (process.gpu_instance_id, process.compute_instance_id);
        (process.pid, bytes / MIB, gi, ci)
    };
    found.into_iter().map(row).collect()
}

fn compute(device: &Device<'_>) -> Vec<(u32, u64, Option<u32>, Option<u32>)> {
    rows(device.running_compute_processes().unwrap())
}

fn of_mps(device: &Device<'_>) -> Vec<(u32, u64, Option<u32>, Option<u32>)> {
    rows(device.mps_running_compute_processes().unwrap())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_becomes_a_client_for_its_life() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let nvml = node.nvml();
    let mut gpu = nvml.device_by_index(0).unwrap();
    gpu.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap();
    let mps = daemon(&gpu.uuid().unwrap(), &["-d", "-multiuser-server"]);
    assert_eq!(mps.tell("get_server_list"), "");
    let mut first = Running::start(client(&mps, run(&node), &[]));
    let server = pids(&mps.tell("get_server_list"))[0];
    assert!(
        first.line.contains(&format!("mps_server={server}")),
        "{}",
        first.line
    );
    let idle = ["--pattern", "idle"];
    let of_nobody = node.gpusim_of_nobody(&["run", "--memory", "200M"]);
    let second = Running::start(client(&mps, of_nobody, &idle));
    let clients = || {
        let mut found = pids(&mps.tell(&format!("get_client_list {server}")));
        found.sort_unstable();
        found
    };
    let mut both = [first.pid(), second.pid()];
    both.sort_unstable();
    assert_eq!(clients(), both);
    assert_eq!(pids(&mps.tell("get_server_list")), [server], "one for all");
    let mut wanted = vec![
        (first.pid(), 100, None, None),
        (second.pid(), 200, None, None),
    ];
    wanted.sort_unstable();
    assert_eq!(of_mps(&gpu), wanted);
    assert_eq!(compute(&gpu), [(server, 30, None, None)]);
    let used = || gpu.memory_info().unwrap().used / MIB;
    let idle_used = used() - 330;

    std::thread::sleep(Duration::from_millis(200));
    let workers = gpu.process_utilization_stats(None).unwrap();
    let workers: Vec<_> = workers.iter().map(|row| row.pid).collect();
    assert_eq!(workers, [server], "the server works for its clients");
    assert!(
        node.ok(&["show"])
            .contains(&format!("by MPS server {server}\n"))
    );

    // The server has the GPU, with or without clients.
    let outside = || node.status(None, &[]);
    assert_eq!(outside(), Some(46));
    drop(first);
    until("the first client goes", || clients() == [second.pid()]);
    drop(second);
    until("the second client goes", || clients().is_empty());
    assert_eq!(of_mps(&gpu), []);
    assert_eq!(compute(&gpu), [(server, 30, None, None)]);
    assert_eq!(used(), idle_used + 30);
    assert_eq!(outside(), Some(46));
    mps.tell("quit -t 0");
    assert_eq!(compute(&gpu), []);
    assert_eq!(used(), idle_used);
    assert_eq!(outside(), Some(0));
    // Without a daemon the result is the same as without the variable.
    let mut alone = Running::start(client(&mps, run(&node), &[]));
    assert!(!alone.line.contains("mps_server"));
    assert_eq!(compute(&gpu), [(alone.pid(), 100, None, None)]);
    let mut refused = Running::start(client(&mps, run(&node), &[]));
    assert_eq!(refused.status(), Some(46));
    alone.child.kill().unwrap();
    alone.status();
    first = Running::start(client(&mps, run(&node), &["--seconds", "0"]));
    assert_eq!(first.status(), Some(0));
}

#[test]
fn another_process_keeps_the_server_out() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let nvml = node.nvml();
    let mut gpu = nvml.device_by_index(0).unwrap();
    gpu.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap();
    let mps = daemon("0", &["-d"]);
    let other = Running::start(run(&node));
    let status = || Running::start(client(&mps, run(&node), &["--seconds", "0"])).status();
    assert_eq!(status(), Some(46));
    drop(other);
    assert_eq!(status(), Some(0));
    gpu.set_compute_mode(ComputeMode::Prohibited).unwrap();
    assert_eq!(status(), Some(46));
}

#[test]
fn memory_is_limited_by_daemon_and_program() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let uuid = node.nvml().device_by_index(0).unwrap().uuid().unwrap();
    let mps = daemon(&uuid, &["-d"]);
    mps.tell("set_default_device_pinned_mem_limit 0 2G");
    let status = |memory: &str, own: Option<&str>| {
        let mut command = client(&mps, node.gpusim(&["run", "--seconds", "0"]), &[]);
        command.args(["--memory", memory]);
        if let Some(own) = own {
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", own);
        }
        let output = command.output().unwrap();
        println!("{memory} {own:?}: {}", told(&output));
        output.status.code()
    };
    assert_eq!(status("2G", None), Some(0));
    assert_eq!(status("2049M", None), Some(2));
    assert_eq!(status("2G", Some("0=1000M")), Some(2));
    assert_eq!(status("1000M", Some("0=1000M")), Some(0));
    assert_eq!(status("2049M", Some("0=3G")), Some(2), "the lesser holds");
    assert_eq!(status("2G", Some("1=1G")), Some(0), "another device");
    assert_eq!(status("1M", Some("1G")), Some(1), "no limit at all");
    let server = pids(&mps.tell("get_server_list"))[0];
    mps.tell(&format!("set_device_pinned_mem_limit {server} 0 3G"));
    assert_eq!(status("3G", None), Some(0));
    assert_eq!(status("3073M", None), Some(2));
    // Two clients, each within its limit.
    let mut held = client(&mps, node.gpusim(&["run", "--memory", "3G"]), &[]);
    held.env("CUDA_VISIBLE_DEVICES", "0");
    let _held = Running::start(held);
    assert_eq!(status("3G", None), Some(0));
    node.ok(&["leak", "0", "--memory", "40G"]);
    assert_eq!(status("3G", None), Some(2), "what is free limits, too");
}

#[test]
fn a_client_sees_the_multiprocessors_of_the_lesser_limit() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let uuid = node.nvml().device_by_index(0).unwrap().uuid().unwrap();
    let mps = daemon(&uuid, &["-d"]);
    mps.tell("set_default_active_thread_percentage 50");
    let seen = |own: Option<&str>| {
        let mut command = client(&mps, run(&node), &["--seconds", "0"]);
        if let Some(own) = own {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", own);
        }
        let line = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let number = line.split_once(" sms=").unwrap().1;
        number.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    // Of 142, rounded down.
    assert_eq!(seen(None), 71);
    assert_eq!(seen(Some("25")), 35);
    assert_eq!(seen(Some("75")), 71, "the lesser holds");
    let server = pids(&mps.tell("get_server_list"))[0];
    mps.tell(&format!("set_active_thread_percentage {server} 75"));
    assert_eq!(seen(None), 106);
    assert_eq!(seen(Some("75")), 106);
    assert_eq!(seen(Some("25")), 35);
}

#[test]
fn devices_are_numbered_as_the_daemon_has_them() {
    let node = SimNode::new(&["L40S-48:2"], &[]);
    let uuid = node.nvml().device_by_index(1).unwrap().uuid().unwrap();
    let mps = daemon("1", &["-d"]);
    for (visible, status) in [("0", 0), (&*uuid, 0), ("1", 100), ("", 100)] {
        let mut command = client(&mps, run(&node), &["--seconds", "0"]);
        command.env("CUDA_VISIBLE_DEVICES", visible);
        let mut program = Running::start(command);
        assert_eq!(program.status(), Some(status), "{visible}");
        assert_eq!(program.line.contains(&uuid), status == 0, "{visible}");
    }
}

#[test]
fn clients_share_an_instance() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let (gi, own) = node.create_numbered("3g.40gb");
    let other = node.create("3g.40gb");
    let nvml = node.nvml();
    let mig = nvml.device_by_uuid(own.as_str()).unwrap();
    let place = (Some(gi), Some(0));
    let mps = daemon(&own, &["-d", "-multiuser-server"]);
    // The daemon's device, whatever name the program uses.
    let mut clients = Vec::new();
    for visible in [None, Some("0"), Some(own.as_str())] {
        let mut command = client(&mps, run(&node), &["--pattern", "burst:0.05:0.1"]);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let program = Running::start(command);
        assert!(program.line.contains(&own), "{visible:?} {}", program.line);
        clients.push(program);
    }
    for visible in [other.as_str(), "1"] {
        let mut command = client(&mps, run(&node), &[]);
        command.env("CUDA_VISIBLE_DEVICES", visible);
        assert_eq!(Running::start(command).status(), Some(100), "{visible}");
    }
    let server = pids(&mps.tell("get_server_list"))[0];
    assert_eq!(compute(&mig), [(server, 30, place.0, place.1)]);
    let mut wanted: Vec<_> = clients
        .iter()
        .map(|client| (client.pid(), 100, place.0, place.1))
        .collect();
    wanted.sort_unstable();
    assert_eq!(of_mps(&mig), wanted);
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(of_mps(&gpu), wanted);
    let of_other = nvml.device_by_uuid(other.as_str()).unwrap();
    assert_eq!((of_mps(&of_other), compute(&of_other)), (vec![], vec![]));
    let busy = node.gpusim(&["destroy", &own]).output().unwrap();
    assert!(told(&busy).contains("IN_USE"));

    let first = gpu.gpm_mig_sample(gi).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let second = gpu.gpm_mig_sample(gi).unwrap();
    let metric = nvml_wrapper::enums::gpm::GpmMetricId::GraphicsUtil;
    let got = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &first, &second, &[metric]).unwrap();
    let value = got[0].as_ref().unwrap().value;
    assert!((value - 30.0).abs() < 10.0, "{value}");
    drop(clients);
    mps.tell("quit");
    node.ok(&["destroy", &own]);
}

#[test]
fn a_server_is_its_users() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let mps = daemon("0", &["-d"]);
    let of_nobody = || node.gpusim_of_nobody(&["run", "--memory", "100M"]);
    let first = Running::start(client(&mps, of_nobody(), &[]));
    let server = pids(&mps.tell("get_server_list"))[0];
    let owner = fs::metadata(format!("/proc/{server}")).unwrap().uid();
    assert_eq!(owner, NOBODY);
    // Another user waits until this user has no client left.
    let mut command = client(&mps, run(&node), &["--seconds", "0"]);
    let mut waiting = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiting.try_wait().unwrap(), None);
    drop(first);
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
    let other = pids(&mps.tell("get_server_list"))[0];
    assert_ne!(server, other);
    assert_eq!(fs::metadata(format!("/proc/{other}")).unwrap().uid(), 0);

    // A user who may not enter the folder works without MPS.
    fs::set_permissions(mps.pipe(""), Permissions::from_mode(0o700)).unwrap();
    let outside = Running::start(client(&mps, of_nobody(), &[]));
    assert!(!outside.line.is_empty() && !outside.line.contains("mps_server"));
}

#[test]
fn a_client_ends_with_its_server() {
    let node = SimNode::new(&["L40S-48"], &[]);
    let mps = daemon("0", &["-d", "-multiuser-server"]);
    let start = || Running::start(client(&mps, run(&node), &[]));
    let (mut first, mut second) = (start(), start());
    let server = pids(&mps.tell("get_server_list"))[0];
    let terminate = format!("terminate_client {server} {}", first.pid());
    assert_eq!(mps.tell(&terminate), "0\n");
    assert_eq!(first.status(), Some(810 & 0xff));
    mps.tell(&format!("standin status {server} FAULT"));
    assert_eq!(start().status(), Some(807 & 0xff), "not ready");
    mps.tell(&format!("shutdown_server {server} -f"));
    assert_eq!(second.status(), Some(806 & 0xff));
    let third = start();
    assert!(third.line.contains("mps_server="));
    fs::write(
        mps.folder.path().join("standin.json"),
        r#"{"servers_end": true}"#,
    )
    .unwrap();
    assert!(start().line.contains("mps_server="), "there is one");
}
