//! Instances that are kept for the next job of the same user (`reuse` of a pool): who gets one, and who never does.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{Job, World, at_once, job};
use gpufrac_core::lease::{Lease, LeaseState};
use nvidia_ml::disturb::What;
use nvidia_ml::node::MigDeviceBy;
use test_seed::Dice;

#[test]
fn child() {
    common::child();
}

const KEEPS: &str = "reuse = \"1h\"";

fn ready(more: &str) -> Option<World> {
    common::ready_with(&["H100-80", "H100-80"], more)
}

/// A quarter on the first half, for a user.
fn job_of(id: u32, uid: u32) -> Job {
    Job {
        uid,
        ..job(id, 0, 25)
    }
}

/// The MIG device of a job's lease, in whatever state.
fn device(world: &World, job: Job) -> String {
    let lease = world.lease(job).unwrap();
    lease.slice.cuda_device().unwrap().to_owned()
}

fn kept(world: &World) -> Vec<Lease> {
    let mut leases = world.leases();
    leases.retain(|lease| lease.state == LeaseState::Kept);
    leases
}

/// Runs a job; its MIG device.
fn run(world: &World, job: Job) -> String {
    world.prolog(job).ok();
    world.check(&[]);
    let device = device(world, job);
    world.epilog(job).ok();
    world.check(&[]);
    device
}

#[test]
fn the_next_job_of_the_user_has_the_same_instance() {
    let Some(world) = ready(KEEPS) else { return };
    let first = job_of(1, 1001);
    world.prolog(first).ok();
    let held = device(&world, first);
    world.note_calls();
    world.epilog(first).ok().says("keeps GPU 0 2g.20gb");
    assert_eq!(world.calls_of(first), [], "calls of the epilog");
    world.check(&[]);
    // Slurm may run it again.
    world.epilog(first).ok();
    assert_eq!((kept(&world).len(), world.usage().len()), (1, 1));
    let second = job_of(2, 1001);
    world.note_calls();
    world.prolog(second).ok();
    world.check(&[]);
    let calls = world.calls_of(second);
    let made = |name: &&String| name.contains("Create") || name.contains("Destroy");
    let names: Vec<&String> = calls.iter().map(|entry| &entry.call).collect();
    assert_eq!(names.iter().copied().find(made), None, "{names:?}");
    assert!(names.len() <= 20, "{names:?}");
    assert_eq!(device(&world, second), held);
    assert_eq!(world.leases().len(), 1);
    world.epilog(second).ok();
    let jobs: Vec<u64> = world
        .usage()
        .iter()
        .map(|record| record["job"].as_u64().unwrap())
        .collect();
    assert_eq!(jobs, [1, 2]);
}

#[test]
fn nobody_else_has_it() {
    let Some(world) = ready(KEEPS) else { return };
    let held = run(&world, job_of(1, 1001));
    let other = run(&world, job_of(2, 1002));
    assert_ne!(held, other);
    assert_eq!(kept(&world).len(), 1, "only the last one stands");
    // Nor has the user, at another size, or as another run of the job.
    let larger = Job {
        units: 50,
        ..job_of(3, 1002)
    };
    assert_ne!(run(&world, larger), other);
    let again = Job {
        restarts: 1,
        ..larger
    };
    let first = device(&world, larger);
    assert_ne!(run(&world, again), first);
    assert_eq!(world.usage().len(), 4);
}

#[test]
fn an_instance_that_is_not_clean_is_never_taken_over() {
    at_once(["memory", "process", "gone", "silent"], |what| {
        let Some(world) = ready(KEEPS) else { return };
        let first = job_of(1, 1001);
        let held = run(&world, first);
        match what {
            "memory" => world.on_gpu(|gpu| gpu.instances[0].leaked_mib = 100),
            "process" => drop(world.use_slice(first, std::process::id())),
            "gone" => world.on_gpu(|gpu| gpu.instances.clear()),
            _ => {
                world.count_calls();
                world.next_calls("nvmlDeviceGetMemoryInfo_v2", 1, What::Fail(999));
            }
        }
        let second = job_of(2, 1001);
        world.prolog(second).ok();
        assert_ne!(device(&world, second), held, "{what}");
        let stands = world.instances(0).iter().any(|instance| {
            let mut compute = instance.compute.iter();
            compute.any(|compute| compute.uuid == held)
        });
        // While a process runs on it nothing can destroy it; its place is taken.
        assert_eq!(stands, what == "process", "{what}");
    });
}

#[test]
fn it_works_whatever_way_leads_to_the_mig_device() {
    at_once(
        [MigDeviceBy::Info, MigDeviceBy::Name, MigDeviceBy::Walk],
        |by| {
            let Some(world) = ready(KEEPS) else { return };
            let change = |node: &mut nvidia_ml::node::Node| {
                node.mig_device_by = by;
                Ok(())
            };
            world.sim.update(change).unwrap();
            let held = run(&world, job_of(1, 1001));
            assert_eq!(run(&world, job_of(2, 1001)), held);
        },
    );
}

#[test]
fn it_is_kept_for_its_time_and_as_long_as_the_pool_says_so() {
    let Some(world) = ready("reuse = \"1s\"") else {
        return;
    };
    let held = run(&world, job_of(1, 1001));
    sleep(Duration::from_millis(2100));
    let second = run(&world, job_of(2, 1001));
    assert_ne!(second, held);
    sleep(Duration::from_millis(2100));
    world.setup().ok();
    assert_eq!((world.instances(0).len(), world.leases().len()), (0, 0));
    // Without the key, or in another pool, none is kept, and those that were go with the next job on the GPU.
    for more in ["", "gpus = [1]\nreuse = \"1h\""] {
        world.configure("halves", "H100-80", KEEPS);
        run(&world, job_of(3, 1001));
        assert_eq!(kept(&world).len(), 1);
        world.configure("halves", "H100-80", more);
        world.setup().ok();
        assert_eq!(world.instances(0), [], "{more}");
        assert!(world.leases().is_empty());
    }
    world.configure("halves", "H100-80", "");
    world.setup().ok();
    run(&world, job_of(4, 1001));
    assert!(world.leases().is_empty());
}

#[test]
fn a_slice_for_each_task_is_taken_over_too() {
    let Some(world) = ready(KEEPS) else { return };
    let tasks = |id| Job {
        uid: 1001,
        ..common::job_of_tasks(id, 0, 13, 2)
    };
    let mut held = Vec::new();
    for id in [1, 2] {
        let job = tasks(id);
        world.slurm_counts(job);
        world.prolog(job).ok();
        world.check(&[]);
        let leases = world.leases_of(job);
        let devices = leases.iter().map(|lease| lease.slice.cuda_device());
        held.push(devices.map(|it| it.unwrap().to_owned()).collect::<Vec<_>>());
        world.epilog(job).ok();
        world.check(&[]);
    }
    assert_eq!(held[0], held[1]);
    assert_eq!((kept(&world).len(), world.usage().len()), (2, 4));
}

/// Counting stays enough: whatever is kept, each job that Slurm admits has a place at once.
#[test]
fn whatever_is_kept_each_job_has_a_place() {
    let Some(world) = ready(KEEPS) else { return };
    let mut dice = Dice::new(test_seed::seed());
    let mut running: Vec<Job> = Vec::new();
    let mut ended = 0;
    for id in 1..=90 {
        let sizes = [13, 25, 50];
        let job = Job {
            uid: 1000 + dice.below(3) as u32,
            ..job(id, dice.below(2) as u32, sizes[dice.below(3)])
        };
        let used = |device| -> u32 {
            let on = running.iter().filter(|one| one.device == device);
            on.map(|one| one.units).sum()
        };
        if used(job.device) + job.units > 50 {
            let over = running.remove(dice.below(running.len()));
            world.epilog(over).ok();
            ended += 1;
        } else {
            world.prolog(job).ok();
            running.push(job);
        }
        world.check(&[]);
        assert_eq!(world.leases().len(), running.len() + kept(&world).len());
    }
    assert_eq!(world.usage().len(), ended);
    assert_eq!(world.slurm_was_told(), [""; 0]);
}
