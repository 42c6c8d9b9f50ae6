//! Jobs with several whole GPUs: all of them or none.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::scene::gpus;
use common::shares::{Control, Kind};
use common::{Job, World, job, job_of_gpus, ready_in};
use gpufrac_core::ids::{DeviceIndex, GpuIndex};
use gpufrac_core::lease::{Held, LeaseState};
use gpufrac_node::state::stuck::{self, Lost};
use nvidia_ml::disturb::{Rule, What};

#[test]
fn child() {
    common::child();
}

/// Four GPUs, given in quarters or whole.
fn world() -> World {
    ready_in("uniform", &["H100-80"; 4], "menu = [\"1/4\"]")
}

/// The indexes of a job's GPUs, by the number of the lease.
fn held(world: &World, job: Job) -> Vec<usize> {
    let leases = world.leases_of(job);
    let numbers: Vec<u32> = leases.iter().map(|lease| lease.number).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u32));
    leases
        .iter()
        .map(|lease| lease.slice.gpu_index.position())
        .collect()
}

#[test]
fn several_gpus_are_carved_and_go_together() {
    let world = world();
    let piece = job(1, 0, 25);
    world.prolog(piece).ok();
    let three = job_of_gpus(7, 1, 3);
    world.slurm_counts(three);
    world.prolog(three).ok();
    world.check(&[]);
    assert_eq!(held(&world, three), [1, 2, 3]);
    for lease in world.leases_of(three) {
        assert!(lease.units.0 == 100 && lease.whole_device && lease.confirmed);
        assert_eq!(world.instances(lease.slice.gpu_index.position())[0].size, 8);
    }
    let before = world.leases();
    world.prolog(three).ok().says("kept");
    assert_eq!(world.leases(), before);
    world.epilog(three).ok();
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
    let records = world.usage();
    assert_eq!(records.len(), 3, "{records:?}");
    assert!(records.iter().all(|record| record["units"] == 100));
    world.epilog(piece).ok();
    // All of the node, by the same GPUs that pieces had.
    let four = job_of_gpus(8, 0, 4);
    world.slurm_counts(four);
    world.prolog(four).ok();
    world.check(&[]);
    assert_eq!(held(&world, four), [0, 1, 2, 3]);
    world.epilog(four).ok();
    assert!(world.leases().is_empty() && world.slurm_was_told().is_empty());
}

#[test]
fn several_gpus_of_every_kind() {
    for kind in [
        Kind::MpsShared,
        Kind::MpsPrivate,
        Kind::Timeslice,
        Kind::Hami,
    ] {
        let scene = gpus(kind);
        let (world, victim) = (&scene.world, scene.victim);
        world.prolog(victim).ok();
        world.check(&[]);
        assert_eq!(held(world, victim), [0, 1, 2], "{kind:?}");
        world.prolog(victim).ok().says("kept");
        world.epilog(victim).ok();
        world.check(&[]);
        assert_eq!(world.leases().len(), 1, "{kind:?}");
    }
}

#[test]
fn one_of_several_gpus_that_fails_gives_the_others_back() {
    let world = world();
    let three = job_of_gpus(7, 0, 3);
    world.slurm_counts(three);
    // Nothing else can be made beside an instance of an admin.
    world.foreign_on(2);
    let ended = world
        .prolog(three)
        .ok()
        .says("requeued, because the node is drained");
    assert!(world.leases().is_empty(), "{}", ended.stderr);
    assert!(world.instances(0).is_empty() && world.instances(1).is_empty());
    assert_eq!(world.instances(2).len(), 1);
    assert!(world.usage().is_empty(), "nobody had a GPU");
}

#[test]
fn one_of_several_gpus_that_the_driver_refuses_gives_the_others_back() {
    let world = world();
    let three = job_of_gpus(7, 0, 3);
    world.slurm_counts(three);
    world.disturb(|d| {
        d.rules = vec![Rule {
            call: Some("nvmlDeviceCreateGpuInstanceWithPlacement".into()),
            gpu: Some(2),
            first: 1,
            count: 0,
            // Insufficient resources.
            what: What::Fail(23),
        }];
    });
    let ended = world.prolog(three);
    assert!(world.leases().is_empty(), "{}", ended.stderr);
    for gpu in 0..3 {
        assert!(world.instances(gpu).is_empty(), "{}", ended.stderr);
    }
    world.calm();
    world.prolog(three).ok();
    world.check(&[]);
    assert_eq!(held(&world, three), [0, 1, 2]);
}

#[test]
fn any_call_of_several_gpus_that_fails_leaves_all_or_nothing() {
    let world = world();
    let two = job_of_gpus(7, 0, 2);
    world.slurm_counts(two);
    world.count_calls();
    let before = world.calls();
    world.prolog(two).ok();
    let calls = world.calls() - before;
    world.epilog(two).ok();
    assert!(calls > 10, "{calls}");
    for nth in 1..=calls {
        world.nth_call(nth, What::FailAfter(999));
        world.prolog(two);
        world.calm();
        let leases = world.leases_of(two);
        let active = |lease: &&gpufrac_core::lease::Lease| lease.state == LeaseState::Active;
        let count = leases.iter().filter(active).count();
        assert!(count == 0 || count == 2, "{nth}: {leases:?}");
        world.prolog(two).ok();
        world.check(&[]);
        assert_eq!(held(&world, two), [0, 1], "{nth}");
        world.epilog(two).ok();
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    }
}

/// Promise (placement): no job of several GPUs has more or fewer than slurmctld counted; a step has those that Slurm
/// gave to it.
/// With `several_gpus_are_those_that_slurm_gave`, `steps_have_some_of_their_jobs_gpus`.
#[test]
fn slurms_count_of_several_gpus_decides() {
    let world = world();
    let three = job_of_gpus(7, 0, 3);
    let tres = "gres/gpu:uniform:3,gres/gpufrac:300";
    for (said, held) in [
        // Fewer than the text says, and a text that says less than is held.
        (tres, "gpu:uniform:2(IDX:0-1),gpufrac(CNT:300)"),
        (tres, "gpu:uniform:3(IDX:0-2),gpufrac(CNT:200)"),
        (
            "gres/gpu:uniform:3,gres/gpufrac:100",
            "gpu:uniform:3(IDX:0-2),gpufrac(CNT:100)",
        ),
        (tres, "shard:uniform:300(IDX:0)"),
    ] {
        world.slurm_says(7, &format!("running {said} 0 - {held}"));
        world.prolog(three).ok().says("requeued and held");
        assert!(world.leases().is_empty(), "{held}");
    }
    // Changed while it waited: job_submit wrote another text.
    let text =
        "running gres/gpu:uniform:2,gres/gpufrac:200 0 - gpu:uniform:2(IDX:0-1),gpufrac(CNT:200)";
    world.slurm_says(7, text);
    let two = Job { gpus: 2, ..three };
    world.prolog(two).ok();
    assert_eq!(held_of(&world, two), 2);
    world.epilog(two).ok();
    // With `--exclusive` Slurm counts all devices of the node.
    let text = format!("running {tres} 0 - gpu:uniform:4(IDX:0-3),gpufrac(CNT:400)");
    world.slurm_says(7, &text);
    world.prolog(three).ok();
    world.check(&[]);
    assert_eq!(held(&world, three), [0, 1, 2, 3]);
    world.epilog(three).ok();
    assert!(world.leases().is_empty());
}

fn held_of(world: &World, job: Job) -> usize {
    held(world, job).len()
}

#[test]
fn without_slurms_answer_the_entry_of_several_gpus_must_agree() {
    let world = world();
    let three = job_of_gpus(7, 0, 3);
    world.prolog(three).ok();
    assert_eq!(held(&world, three), [0, 1, 2]);
    assert!(world.leases().iter().all(|lease| !lease.confirmed));
    world.epilog(three).ok();
    for gpus in [1, 2, 4] {
        let other = Job { gpus, ..three };
        world.prolog(other).says("whole GPUs");
        assert!(world.leases().is_empty());
    }
}

#[test]
fn parts_of_several_gpus_are_refused() {
    let world = common::ready();
    // Two halves, by a raw request.
    let halves = Job {
        gpus: 2,
        ..job(7, 0, 50)
    };
    world.slurm_says(7, "running gres/gpu:half:2 0");
    world.prolog(halves).ok().says("not all of them are whole");
    assert!(world.leases().is_empty());
}

#[test]
fn another_run_on_several_gpus_gets_new_slices() {
    let world = world();
    let first = job_of_gpus(7, 1, 3);
    world.slurm_counts(first);
    world.prolog(first).ok();
    // Its epilog never came: the numbers of its leases stand for other GPUs now.
    for (restarts, device, gpus) in [(1, 0, 3), (2, 2, 2), (3, 0, 4), (4, 1, 1)] {
        let next = Job {
            restarts,
            ..job_of_gpus(7, device, gpus)
        };
        world.slurm_counts(next);
        world.prolog(next).ok();
        world.check(&[]);
        let expected: Vec<usize> = (device as usize..(device + gpus) as usize).collect();
        assert_eq!(held(&world, next), expected);
    }
    world.epilog(first).ok();
    assert!(world.leases().is_empty());
}

/// Prologs and epilogs of jobs whose GPUs overlap one after the other, at the same time.
#[test]
fn jobs_of_several_gpus_do_not_wait_for_each_other() {
    let world = World::shared_on(&["H100-80"; 4], Kind::Timeslice, Control::Real);
    world.setup().ok();
    for round in 0..3_u32 {
        let old = [job_of_gpus(10, 0, 2), job_of_gpus(11, 2, 2)];
        let new = job_of_gpus(12, 1, 2);
        for job in old.iter().chain([&new]) {
            world.slurm_counts(*job);
        }
        let prologs = old.map(|job| world.start("prolog", Some(job)));
        for child in prologs {
            let ended = child.wait_with_output().unwrap();
            assert!(ended.status.success(), "{round}: {ended:?}");
        }
        world.check(&[]);
        let two = world.start("epilog", Some(old[0]));
        let other = world.start("epilog", Some(old[1]));
        // It waits for what both of them have.
        world.prolog(new).ok();
        for child in [two, other] {
            let ended = child.wait_with_output().unwrap();
            assert!(ended.status.success(), "{round}: {ended:?}");
        }
        world.check(&[]);
        assert_eq!(held(&world, new), [1, 2]);
        world.epilog(new).ok();
        assert!(world.leases().is_empty(), "{round}");
    }
}

/// Four GPUs, given in quarters, or whole with MIG off.
fn bare() -> World {
    let keys = "menu = [\"1/4\"]\nwhole = \"bare\"";
    ready_in("uniform", &["H100-80"; 4], keys)
}

/// Whether each GPU is in MIG mode.
fn modes(world: &World) -> Vec<bool> {
    let node = world.sim.node().unwrap();
    node.gpus.iter().map(|gpu| gpu.mig).collect()
}

#[test]
fn several_gpus_without_mig() {
    let world = bare();
    let piece = job(1, 0, 25);
    world.prolog(piece).ok();
    let three = job_of_gpus(7, 1, 3);
    world.slurm_counts(three);
    world.prolog(three).ok();
    world.check(&[]);
    assert_eq!(held(&world, three), [1, 2, 3]);
    assert_eq!(modes(&world), [true, false, false, false]);
    let leases = world.leases_of(three);
    assert!(leases.iter().all(|lease| lease.slice.held == Held::Bare));
    world.prolog(three).ok().says("kept");
    assert_eq!(world.leases_of(three), leases);
    world.epilog(three).ok();
    world.check(&[]);
    // Pieces come from the same GPUs afterwards.
    for gpu in 1..4 {
        world.prolog(job(10 + gpu, gpu, 25)).ok();
    }
    world.check(&[]);
    assert_eq!(modes(&world), [true; 4]);
}

#[test]
fn one_of_several_gpus_that_keeps_its_mode_gives_the_others_back() {
    let world = bare();
    let three = job_of_gpus(7, 0, 3);
    world.slurm_counts(three);
    world.disturb(|d| {
        d.rules = vec![Rule {
            call: Some("nvmlDeviceSetMigMode".into()),
            gpu: Some(2),
            first: 1,
            count: 0,
            // In use by another client.
            what: What::Fail(19),
        }];
    });
    world.prolog(three).ok().says("requeued");
    assert!(world.leases().is_empty());
    world.check(&[]);
    // The GPU at fault counts as failing, no other.
    let failing = stuck::list(&world.node()).unwrap();
    let failing: Vec<_> = failing
        .iter()
        .map(|it| (it.place.as_str(), &it.lost))
        .collect();
    assert_eq!(failing, [("GPU 2", &Lost::Device(DeviceIndex(2)))]);
    world.calm();
    world.prolog(three).ok();
    world.check(&[]);
    assert_eq!(held(&world, three), [0, 1, 2]);
    assert_eq!(modes(&world), [false, false, false, true]);
}

/// Promise (admins): a GPU outside of all pools that NVML counts and cannot open keeps no other GPU from its jobs.
#[test]
fn a_broken_gpu_of_no_pool_keeps_no_job_away() {
    let world = World::with(&["H100-80"; 2], "halves", true);
    world.configure("halves", "H100-80", "gpus = [1]");
    world.disturb(|d| {
        d.rules = vec![Rule {
            call: Some("nvmlDeviceGetHandleByIndex_v2".into()),
            gpu: Some(0),
            first: 1,
            count: 0,
            // The GPU is lost.
            what: What::Fail(15),
        }];
    });
    world
        .setup()
        .ok()
        .says("GPU 0, which no pool has, does not answer");
    world.run_check().ok();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    assert_eq!(world.lease(one).unwrap().slice.gpu_index, GpuIndex(1));
    world.epilog(one).ok();
    assert!(world.leases().is_empty());
    // A pool with it says which one is broken.
    world.configure("halves", "H100-80", "");
    assert_eq!(world.setup().says("GPU is lost").code, Some(1));
}
