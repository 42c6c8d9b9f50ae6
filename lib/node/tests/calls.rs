//! The number and kind of NVML calls in the life of a job, because a driver that many programs use at the same time
//! answers some calls after seconds.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::shares::{Control, Kind};
use common::{Job, World, at_once, job, ready};
use nvidia_ml::disturb::What;
use nvidia_ml::latency::Latencies;
use nvidia_ml::node::MigDeviceBy;

/// The most calls of a job without faults.
const MOST: usize = 20;
/// Calls that are slow if many programs make them at the same time.
const SLOW: [&str; 2] = [
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMigDeviceHandleByIndex",
];

#[test]
fn child() {
    common::child();
}

fn ready_where(by: MigDeviceBy) -> World {
    let world = ready();
    tells(&world, by);
    world
}

fn tells(world: &World, by: MigDeviceBy) {
    world.on_node(|node| node.mig_device_by = by);
}

/// The calls of a job's prolog and epilog, in their order.
fn life(world: &World, one: Job) -> Vec<String> {
    world.note_calls();
    world.prolog(one).ok();
    world.check(&[]);
    world.epilog(one).ok();
    world.check(&[]);
    let calls = world.calls_of(one);
    let calls: Vec<String> = calls.into_iter().map(|entry| entry.call).collect();
    println!(
        "{:?}, {} units: {} calls",
        world.kind,
        one.units,
        calls.len()
    );
    for call in &calls {
        println!("  {call}");
    }
    calls
}

fn count(calls: &[String], name: &str) -> usize {
    calls.iter().filter(|call| *call == name).count()
}

/// Promise (never): a job's life takes at most 20 calls of NVML, and none that is slow where many ask at once.
/// With `the_other_mechanisms_take_no_more`, `a_job_pays_for_nothing_that_is_slow_where_many_ask`.
#[test]
fn a_jobs_life_takes_at_most_twenty_calls() {
    let world = ready_where(MigDeviceBy::Info);
    for units in [13, 25, 50] {
        let calls = life(&world, job(1, 0, units));
        assert!(calls.len() <= MOST, "{} calls", calls.len());
        assert_eq!(count(&calls, "nvmlInit_v2"), 2);
        for slow in SLOW {
            assert_eq!(count(&calls, slow), 0, "{slow}");
        }
    }
    // The same number if other jobs have the rest of the GPU.
    for (id, device) in [(2, 0), (3, 0), (4, 1), (5, 1), (6, 1)] {
        world.prolog(job(id, device, 13)).ok();
    }
    let calls = life(&world, job(7, 0, 13));
    assert!(calls.len() <= MOST, "{} calls", calls.len());
}

#[test]
fn the_other_mechanisms_take_no_more() {
    let expected = BTreeMap::from([
        ("mps", 15),
        ("mig+mps", MOST),
        ("timeslice", 12),
        ("hami", 12),
    ]);
    at_once(
        [Kind::MpsShared, Kind::MigMps, Kind::Timeslice, Kind::Hami],
        |kind| {
            let world = World::shared(kind, Control::Standin("{}"));
            world.setup().ok();
            let calls = life(&world, job(1, 0, 25));
            let most = expected[kind.mechanism()];
            assert!(calls.len() <= most, "{kind:?}: {} calls", calls.len());
        },
    );
}

/// The ways to the MIG device that are not available.
#[test]
fn the_mig_device_is_found_by_the_quickest_way_that_there_is() {
    let ways = [
        (MigDeviceBy::Info, [false, false]),
        (MigDeviceBy::Name, [true, false]),
        (MigDeviceBy::Walk, [true, true]),
    ];
    at_once(ways, |(by, slow)| {
        let world = ready_where(by);
        // Other MIG devices before and after it in an enumeration.
        world.prolog(job(2, 0, 13)).ok();
        world.prolog(job(3, 1, 13)).ok();
        let calls = life(&world, job(1, 0, 13));
        let found = SLOW.map(|name| count(&calls, name) > 0);
        assert_eq!(found, slow, "{by:?}");
        // The prolog runs again for a job that has its slice.
        let one = job(4, 0, 13);
        world.prolog(one).ok();
        world.prolog(one).ok().says("kept");
        world.check(&[]);
        // No place of another job.
        let place = world.lease(one).unwrap().slice.mig().unwrap().placement;
        let gi = world.lease(one).unwrap().slice.instance().unwrap().gi_id;
        world
            .sim
            .update(|node| {
                node.gpus[0].instances.retain(|instance| instance.id != gi);
                Ok(())
            })
            .unwrap();
        let foreign = world.foreign(19, place.start.into(), place.size.into(), Some(0));
        assert_eq!(foreign, gi, "the id is used again");
        world.epilog(one).ok().says("another stands in its place");
        world.check(&[foreign]);
    });
}

#[test]
fn a_fault_on_any_way_to_the_mig_device_is_what_it_was() {
    let ways = [
        (MigDeviceBy::Info, "nvmlComputeInstanceGetInfo_v2"),
        (MigDeviceBy::Info, "nvmlDeviceGetUUID"),
        (MigDeviceBy::Name, "nvmlDeviceGetHandleByUUID"),
        (MigDeviceBy::Walk, "nvmlDeviceGetMaxMigDeviceCount"),
        (MigDeviceBy::Walk, "nvmlDeviceGetMigDeviceHandleByIndex"),
        (MigDeviceBy::Walk, "nvmlDeviceGetGpuInstanceId"),
        (MigDeviceBy::Walk, "nvmlDeviceGetComputeInstanceId"),
    ];
    at_once(ways, |(by, call)| {
        let world = ready_where(by);
        let one = job(1, 0, 25);
        // A temporary error is retried.
        world.next_calls(call, 1, What::Fail(999));
        world.prolog(one).ok().says("waiting");
        world.check(&[]);
        world.calm();
        world.epilog(one).ok();
        // A permanent error drains the node, and leaves nothing without a record.
        world.next_calls(call, 0, What::Fail(15));
        let ended = world.prolog(one);
        assert_eq!(ended.code, Some(1), "{call}: {}", ended.stderr);
        world.calm();
        world.epilog(one).ok();
        world.check(&[]);
        assert!(world.slurm_was_told().is_empty() && world.leases().is_empty());
    });
}

#[test]
fn a_fault_on_the_way_to_an_instance_that_ends_is_what_it_was() {
    let calls = [
        "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceById",
    ];
    at_once(calls, |call| {
        let world = ready_where(MigDeviceBy::Info);
        let one = job(1, 0, 25);
        for (count, code, status) in [(1, 999, 0), (0, 15, 1)] {
            world.prolog(one).ok();
            world.count_calls();
            world.next_calls(call, count, What::Fail(code));
            let ended = world.epilog(one);
            assert_eq!(ended.code, Some(status), "{call}: {}", ended.stderr);
            world.calm();
            world.epilog(one).ok();
            world.check(&[]);
            assert!(world.leases().is_empty());
        }
        assert!(world.slurm_was_told().is_empty());
    });
}

/// Changes the record of node-setup as text.
fn change_record(
    world: &World,
    change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
) {
    let path = world.root().join("run/fence");
    let text = fs::read_to_string(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    change(record.as_object_mut().unwrap());
    fs::write(&path, record.to_string()).unwrap();
}

const PROFILE: &str = "nvmlDeviceGetGpuInstanceProfileInfoV";

/// Promise (never): the record of node-setup is believed for its driver alone, and what it does not hold is asked; an
/// instance that nobody leased is never destroyed for it.
/// With `an_instance_that_proc_does_not_show_is_avoided_and_stays`,
/// `a_gpu_that_has_another_index_now_is_found_by_its_uuid`,
/// `the_mig_device_is_found_by_the_quickest_way_that_there_is`, `a_fault_on_any_way_to_the_mig_device_is_what_it_was`.
#[test]
fn facts_missing_in_the_record_are_read_from_the_driver() {
    type Change = fn(&World);
    let changes: [(&str, Change); 4] = [
        ("a record of an earlier version", |world| {
            change_record(world, |record| assert!(record.remove("driver").is_some()));
        }),
        ("another driver", |world| {
            world.on_node(|node| node.driver = "570.172.08".into());
        }),
        ("a driver that does not say who it is", |world| {
            let version = world.root().join("gpus/proc/driver/nvidia/version");
            fs::remove_file(version).unwrap();
        }),
        ("a geometry that is not the pool's", |world| {
            change_record(world, |record| {
                let profiles = record["driver"]["geometries"][0]["profiles"].as_array_mut();
                profiles.unwrap().clear();
            });
        }),
    ];
    at_once(changes, |(what, change)| {
        let world = ready_where(MigDeviceBy::Info);
        let calls = life(&world, job(1, 0, 25));
        assert_eq!(count(&calls, PROFILE), 0, "{what}");
        change(&world);
        let calls = life(&world, job(2, 0, 25));
        assert!(count(&calls, PROFILE) > 0, "{what}");
        // The next setup records it again.
        world.setup().ok();
        let calls = life(&world, job(3, 0, 25));
        assert_eq!(count(&calls, PROFILE), 0, "{what}");
    });
}

#[test]
fn an_instance_that_proc_does_not_show_is_avoided_and_stays() {
    let world = ready_where(MigDeviceBy::Info);
    // At the first choice for an eighth.
    let foreign = world.foreign(19, 0, 1, Some(0));
    let mig = world
        .root()
        .join("gpus/proc/driver/nvidia/capabilities/gpu0/mig");
    fs::remove_dir_all(mig.join(format!("gi{foreign}"))).unwrap();
    world.note_calls();
    let one = job(1, 0, 13);
    world.prolog(one).ok();
    let refused = world.calls_of(one);
    let refused = refused.iter().filter(|entry| entry.code == 23).count();
    assert_eq!(refused, 1, "the first place was tried");
    world.check(&[foreign]);
    world.epilog(one).ok();
    world.check(&[foreign]);
    // Also if /proc has no data at all.
    fs::rename(&mig, mig.with_file_name("hidden")).unwrap();
    fs::write(&mig, "").unwrap();
    world.note_calls();
    let view = gpufrac_node::gpu::capability_files::Caps::new(&world.root().join("gpus"));
    assert_eq!(view.gpu_instances(gpufrac_core::ids::DeviceMinor(0)), None);
}

#[test]
fn a_gpu_that_has_another_index_now_is_found_by_its_uuid() {
    let world = World::with(&["H100-80", "H100-80"], "halves", true);
    world.setup().ok();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    world.on_node(|node| node.gpus.swap(0, 1));
    // Also for the next job, because the driver's files tell the PCI address of the GPU that Slurm means.
    let two = job(2, 0, 25);
    world.prolog(two).ok().says("carved");
    let uuids: Vec<_> = world
        .leases()
        .into_iter()
        .map(|lease| lease.slice.gpu_uuid)
        .collect();
    assert_eq!(uuids[0], uuids[1]);
    assert_eq!(world.instances(1).len(), 2);
    // If they have no data, no job starts on another GPU.
    fs::remove_dir_all(world.root().join("gpus/proc/driver/nvidia/gpus")).unwrap();
    let ended = world.prolog(job(3, 1, 25)).says("at boot it was");
    assert_eq!(ended.code, Some(1));
    for one in [one, two] {
        world.epilog(one).ok().says("released");
    }
    assert!(world.leases().is_empty() && world.instances(1).is_empty());
}

/// With a real driver's times a job costs only two starts, and what is created and destroyed for it.
#[test]
fn a_job_pays_for_nothing_that_is_slow_where_many_ask() {
    let world = ready_where(MigDeviceBy::Info);
    let percent = 5;
    world.disturb(|all| {
        all.latencies = Some(Latencies {
            percent,
            ..Latencies::default()
        });
    });
    let jobs = [job(1, 0, 13), job(2, 0, 13), job(3, 1, 13), job(4, 1, 13)];
    world.note_calls();
    let run = |action: &str| {
        let started = jobs.map(|one| world.job_command(action, one).spawn().unwrap());
        for mut child in started {
            assert!(child.wait().unwrap().success());
        }
        world.check(&[]);
    };
    run("prolog");
    run("epilog");
    for one in jobs {
        let calls = world.calls_of(one);
        assert!(calls.len() <= MOST, "{} calls", calls.len());
        assert!(
            calls
                .iter()
                .all(|entry| !SLOW.contains(&entry.call.as_str()))
        );
        // At least the times of the model: two starts, and an instance created and destroyed.
        let took: u128 = calls.iter().map(|entry| entry.took.as_millis()).sum();
        let least = (2 * 300 + 1000 + 500 + 300 + 1000) * u128::from(percent) / 100;
        assert!(took >= least, "{took} ms");
    }
}
