//! Jobs with a slice for each task: all of them or none.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;

use common::shares::{Control, Kind};
use common::{Job, World, at_once, job, job_of_tasks, ready};
use gpufrac_core::lease::LeaseState;
use nvidia_ml::disturb::{Rule, What};

#[test]
fn child() {
    common::child();
}

#[test]
fn each_task_has_an_instance_and_the_epilog_takes_all() {
    let world = ready();
    for (units, tasks) in [(25, 1), (25, 2), (13, 3)] {
        for device in [0, 1] {
            let job = job_of_tasks(7, device, units, tasks);
            world.slurm_counts(job);
            world.prolog(job).ok();
            world.check(&[]);
            let leases = world.leases_of(job);
            let numbers: Vec<u32> = leases.iter().map(|lease| lease.number).collect();
            assert_eq!(numbers, (0..tasks).collect::<Vec<_>>());
            assert!(
                leases
                    .iter()
                    .all(|lease| lease.units.0 == units && lease.confirmed)
            );
            // Slurm runs the prolog again: all slices stay the same.
            world.prolog(job).ok().says("kept");
            assert_eq!(world.leases_of(job), leases);
            world.epilog(job).ok();
            assert!(world.leases().is_empty() && world.instances(0).is_empty());
            let records = world.usage();
            assert!(records.iter().all(|record| record["job"] == 7));
            // The record of the first slice has no number.
            let number = |record: &serde_json::Value| match record.get("slice") {
                None => 0,
                Some(number) => number.as_u64().unwrap(),
            };
            let mut slices: Vec<u64> = records.iter().map(number).collect();
            slices.sort_unstable();
            let expected: Vec<u64> = (0..tasks.into()).collect();
            assert_eq!(slices, expected, "{records:?}");
            fs::remove_file(world.root().join("state/usage.jsonl")).unwrap();
        }
    }
    assert!(world.slurm_was_told().is_empty());
}

#[test]
fn jobs_beside_have_their_place() {
    let world = ready();
    let (one, tasks) = (job(1, 0, 13), job_of_tasks(7, 0, 13, 2));
    world.prolog(one).ok();
    world.slurm_counts(tasks);
    world.prolog(tasks).ok();
    world.check(&[]);
    world.epilog(one).ok();
    world.check(&[]);
    assert_eq!(world.leases_of(tasks).len(), 2);
    world.prolog(job(2, 0, 13)).ok();
    world.epilog(tasks).ok();
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
}

/// Promise (admins): a job with a slice for each task has all of its slices or none, with every mechanism.
/// With `a_second_slice_that_the_driver_refuses_takes_the_first_with_it`, `any_call_that_fails_leaves_all_or_nothing`,
/// `shares_of_every_kind`, `killed_at_every_step_of_two_slices`.
#[test]
fn a_second_slice_that_fails_takes_the_first_with_it() {
    let world = ready();
    let job = job_of_tasks(7, 0, 25, 2);
    world.slurm_counts(job);
    // An instance outside of Slurm's count takes the half.
    world.foreign(14, 0, 2, Some(1));
    let before = world.instances(0);
    let ended = world.prolog(job).says("no position is free");
    ended.ok().says("requeued, because the node is drained");
    assert!(world.leases().is_empty());
    assert_eq!(world.instances(0), before);
    assert!(world.usage().is_empty(), "nobody had a slice");
}

#[test]
fn a_second_slice_that_the_driver_refuses_takes_the_first_with_it() {
    let world = ready();
    let job = job_of_tasks(7, 0, 25, 2);
    world.slurm_counts(job);
    world.disturb(|d| {
        d.rules = vec![Rule {
            call: Some("nvmlDeviceCreateGpuInstanceWithPlacement".into()),
            gpu: None,
            first: 2,
            count: 0,
            // Insufficient resources.
            what: What::Fail(23),
        }];
    });
    let ended = world.prolog(job);
    assert!(world.leases().is_empty(), "{}", ended.stderr);
    assert!(world.instances(0).is_empty(), "{}", ended.stderr);
    world.calm();
    world.prolog(job).ok();
    world.check(&[]);
    assert_eq!(world.leases_of(job).len(), 2);
}

#[test]
fn any_call_that_fails_leaves_all_or_nothing() {
    let world = ready();
    let job = job_of_tasks(7, 0, 13, 2);
    world.slurm_counts(job);
    world.count_calls();
    let before = world.calls();
    world.prolog(job).ok();
    let calls = world.calls() - before;
    world.epilog(job).ok();
    assert!(calls > 10, "{calls}");
    for nth in 1..=calls {
        world.nth_call(nth, What::FailAfter(999));
        world.prolog(job);
        world.calm();
        let leases = world.leases_of(job);
        let whole = leases.iter().all(|lease| lease.state == LeaseState::Active);
        assert!(
            leases.is_empty() || !whole || leases.len() == 2,
            "{nth}: {leases:?}"
        );
        world.prolog(job).ok();
        world.check(&[]);
        assert_eq!(world.leases_of(job).len(), 2, "{nth}");
        world.epilog(job).ok();
        assert!(
            world.leases().is_empty() && world.instances(0).is_empty(),
            "{nth}"
        );
    }
}

/// Promise (admins): if Slurm does not report the number of tasks, nothing is carved.
#[test]
fn without_slurms_answer_nothing_is_carved() {
    let world = ready();
    let job = job_of_tasks(7, 0, 25, 2);
    // An answer without the number of slices: from a Slurm with another text, or without one.
    for held in ["gpu:half:1(IDX:0)", ""] {
        let tres = "gres/gpufrac:25,gres/shard:25";
        world.slurm_says(7, &format!("running - 0 {tres} {held}"));
        world
            .prolog(job)
            .ok()
            .says("reading the job's allocation on this node");
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    }
    assert_eq!(world.slurm_was_told(), ["requeue 7"; 2]);
    // The next answer has it.
    world.slurm_counts(job);
    fs::write(world.root().join("slurm/uncounted"), "5").unwrap();
    world.prolog(job).ok();
    world.check(&[]);
    assert_eq!(world.leases_of(job).len(), 2);
    assert_eq!(world.slurm_was_told().len(), 2);
}

/// Promise (admins): a silent slurmctld drains no node.
/// With `a_job_for_which_there_is_no_place_goes_back_to_the_queue`,
/// `a_silent_slurmctld_drains_no_node_while_a_job_is_given_back`.
#[test]
fn a_slurmctld_that_is_silent_for_a_while_drains_no_node() {
    at_once([15, 30, 42, 1000], |seconds| {
        let world = ready();
        let job = job_of_tasks(7, 0, 25, 2);
        world.slurm_counts(job);
        world.slurm_is_silent_for(seconds);
        let ended = world.prolog(job);
        match seconds {
            // Too late to make slices: the job is requeued.
            42 => {
                ended.ok().says("reading the job's allocation on this node");
                assert_eq!(world.slurm_was_told(), ["requeue 7"]);
            }
            // Slurm cannot be told that the job must not run: without a lease it starts no task.
            1000 => drop(
                ended
                    .ok()
                    .says("the job's tasks do not start without a slice"),
            ),
            _ => {
                ended.ok();
                world.check(&[]);
                assert_eq!(world.leases_of(job).len(), 2, "{seconds} s");
                world.epilog(job).ok();
                assert!(world.slurm_was_told().is_empty());
            }
        }
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    });
}

#[test]
fn a_damaged_lease_does_not_keep_the_others() {
    let world = ready();
    let job = job_of_tasks(7, 0, 13, 3);
    for damaged in ["7", "7.1", "7.2"] {
        world.slurm_counts(job);
        world.prolog(job).ok();
        let path = world.root().join("run/leases").join(damaged);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let ended = world.epilog(job).says(&format!("leases/{damaged}`"));
        assert_eq!(ended.code, Some(1));
        let leases = fs::read_dir(world.root().join("run/leases")).unwrap();
        let names: Vec<_> = leases.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [damaged]);
        assert_eq!(world.instances(0).len(), 1);
        fs::write(&path, text).unwrap();
        world.epilog(job).ok();
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    }
}

#[test]
fn slurms_allocation_of_tasks_overrides_the_entry() {
    let world = ready();
    // Submitted per task, and changed to one slice for the node.
    let changed = job_of_tasks(7, 0, 25, 2);
    world.slurm_says(7, "running gres/gpufrac:50,gres/shard:50 0");
    world.prolog(changed).ok();
    assert_eq!(world.leases_of(changed).len(), 1);
    assert_eq!(world.leases()[0].units.0, 50);
    world.epilog(changed).ok();
    // Both: `scontrol update gres=` does not remove the request of the tasks.
    let tres = "gres/gpufrac:25,gres/shard:25";
    world.slurm_says(7, &format!("running {tres} 0 {tres} shard:50(50/50)"));
    world.prolog(changed).ok().says("both per node");
    // Nothing is lost: its user reads why, and cancels it.
    assert!(world.slurm_was_told().contains(&"requeuehold 7".to_owned()));
    assert!(world.leases().is_empty());
}

#[test]
fn another_run_with_other_tasks_gets_new_slices() {
    let world = ready();
    let first = job_of_tasks(7, 0, 13, 3);
    world.slurm_counts(first);
    world.prolog(first).ok();
    let second = Job {
        restarts: 1,
        tasks: 2,
        ..first
    };
    world.slurm_counts(second);
    world.prolog(second).ok().says("an earlier run");
    world.check(&[]);
    assert_eq!(world.leases_of(second).len(), 2);
    // Now on the other half.
    let third = Job {
        restarts: 2,
        device: 1,
        ..second
    };
    world.slurm_counts(third);
    world.prolog(third).ok();
    world.check(&[]);
    let leases = world.leases_of(third);
    assert!(leases.len() == 2 && leases.iter().all(|lease| lease.restart_count == 2));
    world.epilog(third).ok();
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

/// Promise (admins): a job that is refused on several nodes at once drains none of them.
#[test]
fn a_refusal_that_comes_second_does_not_drain_the_node() {
    let world = ready();
    let job = job_of_tasks(7, 0, 25, 2);
    let tres = "gres/gpufrac:25,gres/shard:25";
    // Another node of the job refused it before, so Slurm is ending it already.
    fs::write(world.root().join("slurm/late"), "").unwrap();
    world.slurm_says(7, &format!("completing {tres} 0 {tres} shard:50(50/50)"));
    world.prolog(job).ok();
    // Slurm says that it runs, and does not end it.
    world.slurm_says(7, &format!("running {tres} 0 {tres} shard:50(50/50)"));
    world
        .prolog(job)
        .ok()
        .says("the job's tasks do not start without a slice");
    assert!(world.leases().is_empty());
}

#[test]
fn shares_of_every_kind() {
    for kind in [
        Kind::MpsShared,
        Kind::MpsPrivate,
        Kind::MigMps,
        Kind::Timeslice,
        Kind::Hami,
    ] {
        let world = World::shared(kind, Control::Real);
        world.setup().ok();
        let (beside, tasks) = (job(1, 0, 12), job_of_tasks(7, 0, 12, 3));
        world.prolog(beside).ok();
        world.slurm_counts(tasks);
        world.prolog(tasks).ok();
        world.check(&[]);
        assert_eq!(world.leases_of(tasks).len(), 3, "{kind:?}");
        world.prolog(tasks).ok().says("kept");
        world.check(&[]);
        world.epilog(beside).ok();
        world.check(&[]);
        world.epilog(tasks).ok();
        world.check(&[]);
        assert!(world.leases().is_empty(), "{kind:?}");
    }
}
