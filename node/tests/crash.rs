//! Prolog and epilog killed at every step, and every call of NVML failing once: nothing leaks,
//! nothing foreign is touched, the next run repairs.

mod common;

use common::{Job, World, job, may_run};
use gpufrac_node::failpoint;
use nvidia_ml::disturb::{Rule, What};

#[test]
fn child() {
    common::child();
}

const VICTIM: u32 = 7;

/// A node with a running job and a foreign instance.
fn busy_node() -> (World, Vec<u32>, Job) {
    let world = World::new();
    world.setup().ok();
    let foreign = vec![world.foreign(19, 0, 1, Some(0))];
    world.prolog(job(1, 1, 25)).ok();
    (world, foreign, job(VICTIM, 0, 25))
}

/// The ways in which life goes on after a death.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// Slurm runs the epilog.
    Epilog,
    /// Slurm runs the prolog again, then the epilog.
    Again,
    /// Another job comes first, to the same half.
    Another,
    /// To the other half of the GPU.
    Other,
    /// The node is set up again.
    Setup,
}

const NEXT: [Next; 5] = [
    Next::Epilog,
    Next::Again,
    Next::Another,
    Next::Other,
    Next::Setup,
];

/// After a prolog died: all is well again, and when the victim has ended nothing is left of it.
fn recover(world: &World, foreign: &[u32], victim: Job, next: Next) {
    match next {
        Next::Epilog => drop(world.epilog(victim).ok()),
        Next::Again => {
            world.prolog(victim).ok();
            world.check(foreign);
            assert!(world.lease(victim).is_some());
        }
        Next::Another | Next::Other => {
            let device = u32::from(matches!(next, Next::Other));
            world.prolog(job(8, device, 13)).ok();
            world.check(foreign);
            world.epilog(job(8, device, 13)).ok();
        }
        Next::Setup => drop(world.setup().ok()),
    }
    world.check(foreign);
    world.epilog(victim).ok();
    world.check(foreign);
    assert_eq!(world.leases().len(), 1, "only the running job is left");
    assert!(world.slurm_was_told().is_empty());
}

#[test]
fn prolog_killed_at_every_step() {
    if !may_run() {
        return;
    }
    let (world, foreign, victim) = busy_node();
    for point in failpoint::CARVE {
        for next in NEXT {
            world.killed_at(point, "prolog", victim);
            recover(&world, &foreign, victim, next);
        }
    }
}

#[test]
fn epilog_killed_at_every_step() {
    if !may_run() {
        return;
    }
    let (world, foreign, victim) = busy_node();
    let mut ended = 0;
    for point in failpoint::RELEASE {
        for next in NEXT {
            // Without the way that carves the victim anew: Slurm never does.
            if matches!(next, Next::Again) {
                continue;
            }
            // A new life each time, as usage records are told apart by job and start.
            let victim = Job {
                id: victim.id + 10 * (1 + ended),
                ..victim
            };
            world.prolog(victim).ok();
            world.killed_at(point, "epilog", victim);
            recover(&world, &foreign, victim, next);
            ended += 1;
            let records = world
                .usage()
                .iter()
                .filter(|record| record["job"] == victim.id)
                .count();
            assert_eq!(records, 1, "{point} {next:?}");
        }
    }
}

/// How many calls a run makes.
fn calls_of(world: &World, run: impl FnOnce()) -> u64 {
    world.count_calls();
    let before = world.calls();
    run();
    world.calls() - before
}

fn every_call_of_carving(what: What) {
    if !may_run() {
        return;
    }
    let (world, foreign, victim) = busy_node();
    let calls = calls_of(&world, || drop(world.prolog(victim).ok()));
    world.epilog(victim).ok();
    assert!(calls > 30, "{calls}");
    for nth in 1..=calls {
        world.nth_call(nth, what);
        world.prolog(victim);
        world.calm();
        let next = NEXT[(nth % 5) as usize];
        recover(&world, &foreign, victim, next);
    }
}

fn every_call_of_release(what: What) {
    if !may_run() {
        return;
    }
    let (world, foreign, victim) = busy_node();
    world.prolog(victim).ok();
    let calls = calls_of(&world, || drop(world.epilog(victim).ok()));
    assert!(calls > 5, "{calls}");
    for nth in 1..=calls {
        world.prolog(victim).ok();
        world.nth_call(nth, what);
        world.epilog(victim);
        world.calm();
        recover(&world, &foreign, victim, Next::Another);
    }
}

#[test]
fn carving_when_any_call_fails_for_a_moment() {
    every_call_of_carving(What::Fail(999));
}

#[test]
fn carving_when_any_call_works_and_says_that_it_failed() {
    every_call_of_carving(What::FailAfter(999));
}

#[test]
fn carving_when_any_call_loses_the_gpu() {
    every_call_of_carving(What::Fail(15));
}

#[test]
fn carving_when_any_call_kills() {
    every_call_of_carving(What::KillAfter);
}

#[test]
fn release_when_any_call_fails_for_a_moment() {
    every_call_of_release(What::Fail(999));
}

#[test]
fn release_when_any_call_works_and_says_that_it_failed() {
    every_call_of_release(What::FailAfter(999));
}

#[test]
fn release_when_any_call_kills() {
    every_call_of_release(What::KillAfter);
}

/// The GPU goes away for good at any call: also the cleaning up fails, and the lease keeps what
/// is to be done.
#[test]
fn carving_when_the_gpu_goes_away() {
    if !may_run() {
        return;
    }
    let (world, foreign, victim) = busy_node();
    let calls = calls_of(&world, || drop(world.prolog(victim).ok()));
    world.epilog(victim).ok();
    for nth in 1..=calls {
        let first = world.calls() + nth;
        world.disturb(|d| {
            d.rules = vec![Rule {
                call: None,
                first,
                count: 0,
                what: What::Fail(15),
            }];
        });
        let ended = world.prolog(victim);
        // nvmlShutdown is the last call, and nobody minds its answer.
        let code = if nth == calls { 0 } else { 1 };
        assert_eq!(ended.code, Some(code), "{nth} of {calls}: {}", ended.stderr);
        world.calm();
        recover(&world, &foreign, victim, NEXT[(nth % 5) as usize]);
    }
}
