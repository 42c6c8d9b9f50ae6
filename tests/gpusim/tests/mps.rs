//! The stand-in for NVIDIA's MPS control program, and the real one from Debian.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::mps::Mps;

fn lives(pid: u32) -> bool {
    nvidia_ml::processes::start_ticks(pid).is_some()
}

/// The common behaviour of the real program and the stand-in.
fn behaves(mps: &Mps, flags: &[&str]) {
    let refused = mps.run(&[], "get_server_list");
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(refused.stderr, b"Cannot find MPS control daemon process\n");
    mps.start(flags);
    let pid = fs::read_to_string(mps.pipe("nvidia-cuda-mps-control.pid")).unwrap();
    assert!(lives(pid.parse().unwrap()));
    for (name, mode) in [
        ("control", 0o140_666),
        ("control_privileged", 0o140_755),
        ("control_lock", 0o100_666),
        ("log", 0o010_777),
        ("nvidia-cuda-mps-control.pid", 0o100_666),
    ] {
        let found = fs::symlink_metadata(mps.pipe(name)).unwrap();
        assert_eq!(found.mode(), mode, "{name}");
    }
    let again = mps.run(flags, "");
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(
        again.stdout,
        b"An instance of this daemon is already running\n"
    );

    for (command, answer) in [
        ("get_server_list", ""),
        ("get_server_status 123", "Server 123 not found\n"),
        ("get_client_list 123", "Server 123 not found\n"),
        ("shutdown_server 123 -f", "Server 123 not found\n"),
        ("get_default_active_thread_percentage", "100.0\n"),
        ("set_default_active_thread_percentage 25.5", "25.5\n"),
        ("set_default_active_thread_percentage x", "25.5\n"),
        ("set_default_device_pinned_mem_limit 0 20000M", ""),
        ("get_default_device_pinned_mem_limit 0", "19G\n"),
        ("bla", "Unknown command \"bla\"\n"),
        (
            "get_server_list\nget_default_active_thread_percentage",
            "25.5\n",
        ),
    ] {
        assert_eq!(mps.tell(command), answer, "{command}");
    }
    mps.tell("quit");
    let begun = Instant::now();
    while lives(pid.parse().unwrap()) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    for (name, there) in [
        ("control", true),
        ("control_privileged", true),
        ("control_lock", true),
        ("log", false),
        ("nvidia-cuda-mps-control.pid", false),
    ] {
        assert_eq!(mps.pipe(name).exists(), there, "{name}");
    }
    mps.start(flags);
}

/// Promise (admins): the stand-in for MPS's control daemon does what the real one does.
/// With `the_real_one`.
#[test]
fn the_standin_behaves_as_the_real_one() {
    let mps = Mps::standin("{}");
    behaves(&mps, &["-d", "-multiuser-server"]);
    let record = fs::read_to_string(mps.folder.path().join("commands")).unwrap();
    let pipe = mps.pipe("");
    let first = format!("{}\t-d -multiuser-server\n", pipe.display());
    assert!(record.starts_with(&first), "{record}");
    assert!(record.contains("\tset_default_active_thread_percentage 25.5\n"));
}

#[test]
fn the_real_one() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let program = test_seed::needed(debian::mps_control(&cache));
    let folder = program.ancestors().nth(3).unwrap();
    for path in [
        "",
        "usr",
        "usr/bin",
        "usr/bin/nvidia-cuda-mps-control",
        "usr/sbin/nvidia-cuda-mps-server",
    ] {
        let found = fs::metadata(folder.join(path)).unwrap();
        assert_eq!(
            (found.uid(), found.permissions().mode() & 0o022),
            (0, 0),
            "{path}"
        );
    }
    let mps = Mps::with(tempfile::tempdir().unwrap(), program);
    behaves(&mps, &["-d", "-multiuser-server"]);
}

#[test]
fn servers_clients_and_faults() {
    let mps = Mps::standin("{}");
    mps.start(&["-d"]);
    let server = mps.server();
    let tell = |command: &str| mps.tell(&command.replace("PID", &server.to_string()));
    let command = fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert_eq!(command, b"nvidia-cuda-mps-server\0");
    let program = fs::read_link(format!("/proc/{server}/exe")).unwrap();
    assert!(program.ends_with("nvidia-cuda-mps-server"));
    let environment = fs::read(format!("/proc/{server}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let pipe = format!("CUDA_MPS_PIPE_DIRECTORY={}", mps.pipe("").display());
    assert!(environment.contains(&pipe));

    assert_eq!(tell("get_server_status PID"), "ACTIVE\n");
    let mut program = Command::new("sleep").arg("60").spawn().unwrap();
    let made_up = 4_000_000;
    tell(&format!("standin client PID {} {made_up}", program.id()));
    assert_eq!(
        tell("get_client_list PID"),
        format!("{}\n{made_up}\n", program.id())
    );
    tell("standin status PID FAULT");
    assert_eq!(tell("get_server_status PID"), "FAULT\n");
    assert_eq!(tell(&format!("terminate_client PID {made_up}")), "0\n");
    assert_eq!(tell("get_client_list PID"), format!("{}\n", program.id()));
    // A client that dies is removed from the list, and the fault ends.
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(tell("get_client_list PID"), "");
    assert_eq!(tell("get_server_status PID"), "ACTIVE\n");

    tell("standin client PID 4000000");
    tell("shutdown_server PID");
    assert!(lives(server), "a client hinders it");
    tell("shutdown_server PID -f");
    assert!(!lives(server));
    assert_eq!(tell("get_server_list"), "");
    let other = mps.server();
    mps.tell(&format!("standin client {other} 4000000"));
    mps.tell("quit -t 0");
    assert!(!lives(other));
}

#[test]
fn partitions() {
    let mps = Mps::standin(r#"{"chunks": 7}"#);
    mps.start(&["-d", "-S"]);
    assert_eq!(mps.tell("sm_partition add GPU-1 4"), "GPU-1/1\n");
    assert!(
        mps.tell("sm_partition add GPU-1 4")
            .starts_with("Not enough")
    );
    assert!(mps.tell("sm_partition add GPU-2 4").contains("not found"));
    assert_eq!(mps.tell("sm_partition add GPU-1 3"), "GPU-1/2\n");
    assert_eq!(mps.tell("sm_partition rm GPU-1/1"), "");
    assert!(
        mps.tell("lspart")
            .contains("GPU-1  -  4  3\nGPU-1  2  0  3\n")
    );
    assert_eq!(mps.tell("device_query"), "GPU-1\n");
}

#[test]
fn programs_that_fail_or_hang_are_named() {
    let mps = Mps::standin(r#"{"version": 12040, "multiuser": false, "partitions": false}"#);
    assert_eq!(mps.run(&["-v"], "").stdout, b"12040\n");
    for flag in ["-multiuser-server", "-S"] {
        assert_eq!(mps.run(&["-d", flag], "").status.code(), Some(1), "{flag}");
    }
    mps.start(&["-d"]);
    assert!(mps.tell("lspart").starts_with("Unknown command"));
    let options = mps.folder.path().join("standin.json");
    fs::write(&options, r#"{"hang": ["get_server_list"]}"#).unwrap();
    let mut hung = mps.spawn(&[], "get_server_list");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(hung.try_wait().unwrap(), None);
    assert_eq!(mps.tell("get_default_active_thread_percentage"), "100.0\n");
    hung.kill().unwrap();
    hung.wait().unwrap();
}

#[test]
fn servers_that_several_daemons_start_at_once_live() {
    for _ in 0..5 {
        let first = Mps::standin("{}");
        let all: Vec<Mps> = (0..8).map(|_| first.beside()).collect();
        for mps in &all {
            mps.start(&["-d"]);
        }
        let servers: Vec<u32> = std::thread::scope(|scope| {
            let started: Vec<_> = all.iter().map(|mps| scope.spawn(|| mps.server())).collect();
            started.into_iter().map(|one| one.join().unwrap()).collect()
        });
        std::thread::sleep(Duration::from_millis(50));
        for (mps, server) in all.iter().zip(servers) {
            assert_eq!(mps.tell("get_server_list"), format!("{server}\n"));
        }
    }
}
