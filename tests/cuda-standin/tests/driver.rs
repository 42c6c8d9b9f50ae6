//! Clients on simulated GPUs: what they see, hold, compute, and may open.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::World;
use gpufrac_compute::client::{Client, Program, Setting};
use gpufrac_compute::load;
use gpufrac_compute::order::Failure;
use gpufrac_fence::Closed;
use gpufrac_host::files::DeviceRule;
use gpufrac_host::syscalls::device_behind;
use gpusim::admin;
use nvidia_ml::node::GpuInstance;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes;
use nvidia_ml::tree::Capability;

const MOMENT: Duration = Duration::from_millis(100);

/// Makes an instance; returns its GPU instance and its MIG UUID.
fn instance(world: &World, profile: &str) -> (GpuInstance, String) {
    let (_, uuid) = admin::create(&world.store, 0, profile, None, true).unwrap();
    let (node, uuid) = (world.store.node().unwrap(), uuid.unwrap());
    let mut found = node.gpus[0].mig_devices();
    let (gi, _) = found.find(|(_, ci)| ci.uuid == uuid).unwrap();
    (gi.clone(), uuid)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_sees_and_uses_its_own_instance() {
    let world = World::new("H100-80:mig");
    let (_, uuid) = instance(&world, "1g.10gb");
    instance(&world, "2g.20gb");
    let mut client = world.client(&Setting::on(&uuid));
    let seen = client.list_devices().unwrap();
    let device = &seen.devices[0];
    assert_eq!((seen.devices.len(), device.uuid.as_str()), (1, &*uuid));
    assert_eq!((device.multiprocessors, device.compute_mode), (16, 0));
    assert!(device.name.contains("1g.10gb"), "{}", device.name);
    let free = || admin::destroy(&world.store, &uuid, false).is_ok();
    assert!(
        processes::live(world.root()).unwrap().is_empty(),
        "no context"
    );

    let begun = client.begin().unwrap();
    assert_eq!(begun.multiprocessors, 16);
    assert_eq!(begun.memory_mib, device.memory_mib);
    assert!(!free(), "a context holds the instance");
    assert_eq!(client.blocks().unwrap(), 16);
    let largest = client.largest().unwrap();
    let almost = device.memory_mib - 2..device.memory_mib;
    assert!(almost.contains(&largest.single_mib), "{largest:?}");
    assert!(almost.contains(&largest.pieces_mib), "{largest:?}");
    client.hold(1000).unwrap();
    let own = || processes::live(world.root()).unwrap().remove(0);
    assert_eq!((own().pid, own().memory_mib), (client.pid(), 1001));
    let refused = client.hold(device.memory_mib).unwrap_err();
    assert_eq!(refused.code(), Some(2));

    client.start_computing(MOMENT).unwrap();
    assert_eq!(own().pattern, Pattern::Busy);
    let computed = client.finish().unwrap();
    assert!(
        computed.tflops > 0.0 && computed.seconds >= 0.1,
        "{computed:?}"
    );
    until("the client is idle", || own().pattern == Pattern::Idle);

    let fault = client.fault().unwrap_err();
    assert_eq!(fault.code(), Some(700));
    assert!(
        fault.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{fault}"
    );
    assert_eq!(client.work().unwrap_err().code(), Some(700));
    assert_eq!(client.end(), "status 0");
    assert!(free());
}

#[test]
fn the_time_from_a_kill_to_a_free_instance_is_measured() {
    let world = World::new("A100-80:mig");
    let (_, uuid) = instance(&world, "3g.40gb");
    let mut client = world.client(&Setting::on(&uuid));
    client.begin().unwrap();
    client.start_computing(Duration::from_secs(60)).unwrap();
    let free = || admin::destroy(&world.store, &uuid, false).is_ok();
    let killed = load::kill(client, Duration::from_secs(60), free);
    assert!(
        killed.ended_ms.is_some() && killed.free_ms.is_some(),
        "{killed:?}"
    );

    let (_, uuid) = instance(&world, "3g.40gb");
    let client = world.client(&Setting::on(&uuid));
    let stuck = load::kill(client, MOMENT, || false);
    assert!(stuck.free_ms.is_none() && stuck.tries > 0, "{stuck:?}");
}

#[test]
fn cuda_is_started_until_the_system_is_ready() {
    let world = World::new("H100-80");
    let setting = Setting::on(&world.gpu());
    world.lie(&["not_ready"]);
    // The system is ready when the second process starts.
    let client = world.program().arguments.join(" ");
    let script = "cd $0; test -e second && rm -f cuda.json; touch second; exec env $1";
    let program = Program {
        path: "/bin/sh".into(),
        arguments: vec![
            "-c".into(),
            script.into(),
            world.root().display().to_string(),
            client,
        ],
    };
    let answers = load::start(&program, &setting, Duration::from_secs(60));
    let codes: Vec<_> = answers
        .iter()
        .map(|answer| answer.devices.as_ref().map_err(Failure::code))
        .collect();
    assert_eq!(codes, [Err(Some(802)), Ok(&1)], "{answers:?}");
    assert!(answers[0].ms < answers[1].ms);

    world.lie(&["no_device"]);
    let answers = load::start(&world.program(), &setting, Duration::ZERO);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].devices.as_ref().unwrap_err().code(), Some(100));
}

#[test]
fn a_client_that_ends_or_is_silent_is_said_to() {
    let world = World::new("T4-16");
    let mut client = world.client(&Setting::on(&world.gpu()));
    client.kill();
    assert_eq!(
        client.list_devices(),
        Err(Failure::Ended("signal 9".into()))
    );

    let mut client = world.client(&Setting::on(&world.gpu()));
    client.limit = Duration::ZERO;
    assert_eq!(client.begin(), Err(Failure::Silent { seconds: 0 }));
    client.limit = Duration::from_secs(60);
    assert_eq!(client.begun_late().unwrap().multiprocessors, 40);

    let (world_of_thread, setting) = (&world, Setting::on(&world.gpu()));
    let pid = std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            let mut client = world_of_thread.client(&setting);
            client.begin().unwrap();
            let pid = client.pid();
            std::mem::forget(client);
            pid
        });
        started.join().unwrap()
    });
    until("the client of a thread ends with it", || {
        processes::start_ticks(pid).is_none()
    });

    let mut bare = world.client(&Setting::on(&world.gpu()));
    assert!(
        matches!(bare.work(), Err(Failure::Process(_))),
        "no context"
    );
    let nowhere = Program {
        path: "/nonexistent".into(),
        arguments: Vec::new(),
    };
    let missing = Client::start(&nowhere, &Setting::default());
    assert!(matches!(missing, Err(Failure::Process(_))));
}

#[test]
fn a_fenced_client_opens_its_own_instance_and_no_other() {
    test_seed::needs_root();
    let world = World::new("H100-80:2:mig");
    let (own, own_uuid) = instance(&world, "1g.10gb");
    let (other, other_uuid) = instance(&world, "1g.10gb");
    let nodes = |gi: &GpuInstance| {
        let (gpu, ci) = (world.store.node().unwrap().gpus[0].minor, gi.compute[0].id);
        [
            Capability::GpuInstance(gpu, gi.id),
            Capability::ComputeInstance(gpu, gi.id, ci),
        ]
        .map(|capability| {
            nvidia_ml::tree::modprobe(world.root(), capability).unwrap();
            capability.node(world.root())
        })
    };
    let (open, closed) = (nodes(&own), nodes(&other));
    let second_gpu = world.root().join("dev/nvidia1");
    let rule = |path: &Path| DeviceRule::Device(device_behind(path).unwrap().unwrap());
    let rules = closed.iter().chain([&second_gpu]).map(|path| rule(path));
    let rules = Closed::alike(rules.collect());
    let fenced = |device: &str| Setting {
        closed: Some(rules.clone()),
        ..Setting::on(device)
    };
    let group = |pid: u32| {
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        own.contains(&format!(
            "gpufrac-prove-{pid}_slurmstepd.scope/job_0/step_0"
        ))
    };
    let pid = {
        let mut client = world.client(&fenced(&own_uuid));
        assert!(group(client.pid()));
        client.begin().unwrap();
        for path in &open {
            assert!(!client.open(path, false).unwrap().is_denied());
        }
        for path in closed.iter().chain([&second_gpu]) {
            assert!(
                client.open(path, false).unwrap().is_denied(),
                "{}",
                path.display()
            );
        }
        let missing = world.root().join("dev/nvidia7");
        assert!(client.open(&missing, true).unwrap().is_missing());
        // Another process that is not fenced opens them.
        let mut outside = world.client(&Setting::on(&other_uuid));
        assert!(!group(outside.pid()));
        assert!(!outside.open(&closed[0], false).unwrap().is_denied());
        outside.begin().unwrap();
        client.pid()
    };
    let refused = world
        .client(&fenced(&other_uuid))
        .list_devices()
        .unwrap_err();
    assert_eq!(refused.code(), Some(100));
    for hierarchy in ["devices", "unified", "."] {
        let group = format!("/sys/fs/cgroup/{hierarchy}/gpufrac-prove-{pid}_slurmstepd.scope");
        assert!(!Path::new(&group).exists(), "{group} stays");
    }
}
