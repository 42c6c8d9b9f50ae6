//! Kept instances for the next job of the same user (`reuse` of a pool): which jobs get one, and which never do.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::reuse::{KEEPS, eventually, instance, job_of, ready, run};
use common::{Ended, Job, World, at_once, job};
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::{Lease, LeaseState};
use nvidia_ml::disturb::What;
use nvidia_ml::node::MigDeviceBy;
use test_seed::Dice;

#[test]
fn child() {
    common::child();
}

fn kept(world: &World) -> Vec<Lease> {
    let mut leases = world.leases();
    leases.retain(|lease| lease.state == LeaseState::Kept);
    leases
}

/// Promise (admins): with `reuse` the next job of the same user and size has the instance of the one before, if it is
/// clean and in time; nobody else has it, and it takes no place from anybody.
/// With `nobody_else_has_it`, `reuse.rs::an_instance_that_is_not_clean_is_never_taken_over`,
/// `a_kept_instance_is_not_taken_over_while_somebody_else_holds_its_files`,
/// `an_instance_is_kept_for_the_time_of_its_pool`, `kept_instances_never_take_a_jobs_place`,
/// `concurrent_jobs_never_share_a_kept_instance`, `killed_at_every_step_with_an_instance_that_is_kept`,
/// `an_array_has_its_instances_made_once_and_nobody_else_has_them`.
#[test]
fn the_next_job_of_the_user_has_the_same_instance() {
    let world = ready(KEEPS);
    let first = job_of(1, 1001);
    world.prolog(first).ok();
    let held = instance(&world, first);
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
    assert_eq!(instance(&world, second), held);
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
    let world = ready(KEEPS);
    let held = run(&world, job_of(1, 1001));
    let other = run(&world, job_of(2, 1002));
    assert_ne!(held, other);
    // The other one has its place beside it.
    assert_eq!(kept(&world).len(), 2);
    // The same user does not get it either, with another size, or in another run of the job.
    let larger = Job {
        units: 50,
        ..job_of(3, 1002)
    };
    assert_ne!(run(&world, larger), other);
    let again = Job {
        restarts: 1,
        ..larger
    };
    let first = instance(&world, larger);
    assert_ne!(run(&world, again), first);
    assert_eq!(world.usage().len(), 4);
}

/// Promise (admins): with `reuse` a job has its user's own instance wherever on its device that stands, and destroys
/// no kept instance while a place with the same compute is left, if no later job can lose its place by that.
/// With `what_cannot_be_destroyed_costs_no_other_kept_instance`,
/// `warm.rs::a_kept_instance_costs_no_job_its_compute`.
#[test]
fn a_job_has_the_place_where_the_driver_has_least_to_do() {
    let world = ready(KEEPS);
    let held = run(&world, job_of(1, 1001));
    let other = run(&world, job_of(2, 1002));
    let calls = |job| {
        world.note_calls();
        world.prolog(job).ok();
        let mut names = world.calls_of(job).into_iter().map(|entry| entry.call);
        names.any(|name| name.contains("Create") || name.contains("Destroy"))
    };
    // Both stand: the second user's is not at the place that a GPU without instances would give.
    let (again, back) = (job_of(3, 1002), job_of(4, 1001));
    assert!(!calls(again) && !calls(back));
    assert_eq!(
        (instance(&world, again), instance(&world, back)),
        (other, held)
    );
    world.check(&[]);
    world.epilog(again).ok();
    world.epilog(back).ok();
    // A third user's job needs one of the places; a half needs both.
    assert!(calls(job_of(5, 1003)));
    assert_eq!(kept(&world).len(), 1);
    let half = Job {
        units: 50,
        ..job_of(6, 1003)
    };
    world.epilog(job_of(5, 1003)).ok();
    assert!(calls(half));
    assert_eq!(kept(&world).len(), 0);
    world.check(&[]);
}

/// A user can leave a process on the own instance.
#[test]
fn what_cannot_be_destroyed_costs_no_other_kept_instance() {
    let world = ready(KEEPS);
    let (first, next) = (job_of(1, 1001), job_of(3, 1001));
    let other = Job {
        uid: 1002,
        ..job(2, 1, 25)
    };
    let (held, others) = (run(&world, first), run(&world, other));
    drop(world.use_slice(first, std::process::id()));
    world.prolog(next).ok();
    assert_ne!(instance(&world, next), held);
    assert!(world.instances(0).iter().any(|it| it.serial == others));
    assert!(kept(&world).iter().any(|lease| lease.user_id.0 == 1002));
}

#[test]
fn an_instance_that_is_not_clean_is_never_taken_over() {
    at_once(["memory", "process", "gone", "silent"], |what| {
        let world = ready(KEEPS);
        let first = job_of(1, 1001);
        let held = run(&world, first);
        match what {
            "memory" => world.on_gpu(|gpu| gpu.instances[0].leaked_mib = 300),
            "process" => drop(world.use_slice(first, std::process::id())),
            "gone" => world.on_gpu(|gpu| gpu.instances.clear()),
            _ => {
                world.count_calls();
                world.next_calls("nvmlDeviceGetMemoryInfo_v2", 1, What::Fail(999));
            }
        }
        let second = job_of(2, 1001);
        world.prolog(second).ok();
        assert_ne!(instance(&world, second), held, "{what}");
        let stands = world.instances(0).iter().any(|it| it.serial == held);
        // While a process uses it, it cannot be destroyed; its place is taken.
        assert_eq!(stands, what == "process", "{what}");
    });
}

/// Promise (reaper): the memory that the driver itself uses of an unused instance does not keep it from the next job.
#[test]
fn the_drivers_own_memory_on_an_instance_does_not_count_as_used() {
    let world = ready(KEEPS);
    // On two slices of 20 GB: 64 MiB and one percent.
    world.on_gpu(|gpu| gpu.idle_mib = 120);
    let held = run(&world, job_of(1, 1001));
    assert_eq!(run(&world, job_of(2, 1001)), held);
}

#[test]
fn reuse_works_with_each_way_to_find_the_mig_device() {
    at_once(
        [MigDeviceBy::Info, MigDeviceBy::Name, MigDeviceBy::Walk],
        |by| {
            let world = ready(KEEPS);
            world.on_node(|node| node.mig_device_by = by);
            let held = run(&world, job_of(1, 1001));
            assert_eq!(run(&world, job_of(2, 1001)), held);
        },
    );
}

#[test]
fn an_instance_is_kept_for_the_time_of_its_pool() {
    let world = ready("reuse = \"1s\"");
    let held = run(&world, job_of(1, 1001));
    sleep(Duration::from_millis(2100));
    let second = run(&world, job_of(2, 1001));
    assert_ne!(second, held);
    sleep(Duration::from_millis(2100));
    world.setup().ok();
    assert_eq!((world.instances(0).len(), world.leases().len()), (0, 0));
    // Without the key, or in another pool, no instance is kept, and kept ones are destroyed with the next job on the
    // GPU.
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
    let world = ready(KEEPS);
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
        let instances = leases.iter().map(|lease| world.serial(lease));
        held.push(instances.collect::<Vec<_>>());
        world.epilog(job).ok();
        world.check(&[]);
    }
    assert_eq!(held[0], held[1]);
    assert_eq!((kept(&world).len(), world.usage().len()), (2, 4));
}

/// Slurm's count stays enough: whatever is kept, each admitted job has a place at once.
#[test]
fn kept_instances_never_take_a_jobs_place() {
    let world = ready(KEEPS);
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

/// The tickets in the queue of the first GPU, without the test's own.
fn waiting(world: &World) -> usize {
    let own = format!(".{}.", std::process::id());
    let entries = fs::read_dir(world.node().run.join("locks/gpu0.line")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_ticket = |name: &String| name.starts_with('0') && !name.contains(&own);
    names.filter(is_ticket).count()
}

#[test]
fn the_driver_is_started_before_the_turn_of_what_is_not_kept() {
    let world = ready(KEEPS);
    let locks = world.node().locks().unwrap();
    let lock = || locks.gpu(GpuIndex(0), Duration::from_secs(60)).unwrap();
    // A lease whose prolog died.
    let half_made = job_of(1, 1001);
    world.prolog(half_made).ok();
    let held = lock();
    let mut lease = world.lease(half_made).unwrap();
    lease.state = LeaseState::Carving;
    world.node().leases().unwrap().write(&held, &lease).unwrap();
    world.note_calls();
    let epilog = world.start("epilog", Some(half_made));
    eventually("in line", || waiting(&world) > 0);
    let started = |job| {
        world
            .calls_of(job)
            .iter()
            .any(|it| it.call == "nvmlInit_v2")
    };
    assert!(started(half_made));
    drop(held);
    Ended::of(epilog.wait_with_output().unwrap()).ok();
    assert!(world.leases().is_empty());
    // An instance that cannot be kept: something else is at the path of its file.
    let other = job_of(2, 1001);
    world.prolog(other).ok();
    let lease = world.lease(other).unwrap();
    let minor = lease.slice.instance().unwrap().gi_cap_minor;
    let file = world
        .root()
        .join(format!("gpus/dev/nvidia-caps/nvidia-cap{minor}"));
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    fs::write(&file, "").unwrap();
    world.count_calls();
    world.next_calls("nvmlInit_v2", 1, What::Delay(1500));
    world.note_calls();
    let held = lock();
    let epilog = world.start("epilog", Some(other));
    eventually("in line", || waiting(&world) > 0);
    assert!(!started(other));
    let mut next = locks.line(GpuIndex(0)).unwrap();
    drop(held);
    // The program behind it has the GPU while the driver starts.
    let held = next.turn(|_| true).unwrap();
    assert_eq!(world.lease(other).unwrap().state, LeaseState::Releasing);
    fs::rename(&aside, &file).unwrap();
    drop(held);
    let ended = Ended::of(epilog.wait_with_output().unwrap());
    ended.ok().says("keeping ").says("released GPU 0");
    assert!(world.leases().is_empty());
    world.check(&[]);
}

/// Prologs, epilogs, the reaper and node-setup at the same time, some of them killed: no instance passes from one
/// user to another or belongs to two jobs, and each job has its own.
#[test]
fn concurrent_jobs_never_share_a_kept_instance() {
    let keys = ["reuse = \"1s\"", KEEPS];
    at_once(keys, |reuse| {
        let world = ready(reuse);
        crowds(&world, Dice::new(test_seed::seed()));
    });
}

fn crowds(world: &World, mut dice: Dice) {
    let mut running: Vec<Job> = Vec::new();
    let mut owners: BTreeMap<u64, u32> = BTreeMap::new();
    let mut id = 0;
    for _ in 0..12 {
        // An ending job keeps its place until its epilog is over, as in Slurm's count.
        let mut used = [0; 4];
        for job in &running {
            used[job.device as usize] += job.units;
        }
        let ending = dice.below(running.len() + 1);
        let mut tasks: Vec<(&str, Option<Job>)> = Vec::new();
        for job in running.drain(..ending) {
            tasks.push(("epilog", Some(job)));
        }
        for _ in 0..dice.below(6) {
            id += 1;
            let job = Job {
                uid: 1001 + dice.below(3) as u32,
                ..job(id, dice.below(4) as u32, [13, 25, 50][dice.below(3)])
            };
            if used[job.device as usize] + job.units <= 50 {
                used[job.device as usize] += job.units;
                tasks.push(("prolog", Some(job)));
            }
        }
        tasks.extend(
            [("setup", None), ("reap", None)]
                .into_iter()
                .take(dice.below(3)),
        );
        let mut started = Vec::new();
        while !tasks.is_empty() {
            let (action, job) = tasks.remove(dice.below(tasks.len()));
            let kill = (dice.below(4) == 0).then(|| dice.below(60) as u64);
            started.push((action, job, kill, world.start(action, job)));
        }
        let start = Instant::now();
        started.sort_by_key(|(_, _, kill, _)| kill.is_none());
        let mut again = Vec::new();
        let mut is_any_killed = false;
        for (action, job, kill, mut child) in started {
            if let Some(kill) = kill {
                sleep(Duration::from_millis(kill).saturating_sub(start.elapsed()));
                child.kill().unwrap();
            }
            let ended = Ended::of(child.wait_with_output().unwrap());
            is_any_killed |= ended.killed;
            match (action, job, ended.killed) {
                ("prolog", Some(job), false) => {
                    ended.ok();
                    running.push(job);
                }
                // As slurmd does: the job has ended.
                (_, Some(job), true) => again.push(job),
                (_, _, true) => {}
                _ => drop(ended.ok()),
            }
        }
        for job in again {
            world.epilog(job).ok();
        }
        if is_any_killed {
            // An instance of another user that was half destroyed is left to the next repair.
            world.setup().ok();
        }
        world.check(&[]);
        let leases = world.leases();
        for lease in &leases {
            let instance = world.serial(lease);
            let owner = owners.entry(instance).or_insert(lease.user_id.0);
            assert_eq!(*owner, lease.user_id.0, "{lease:?}");
        }
        let active = leases.iter().filter(|it| it.state == LeaseState::Active);
        let mut active: Vec<u32> = active.map(|lease| lease.job_id.0).collect();
        active.sort_unstable();
        let mut jobs: Vec<u32> = running.iter().map(|job| job.id).collect();
        jobs.sort_unstable();
        assert_eq!(active, jobs);
    }
    assert_eq!(world.slurm_was_told(), [""; 0]);
}
