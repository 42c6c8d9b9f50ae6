//! Prolog and epilog killed at every step, and every call of NVML failing once: nothing leaks, foreign instances
//! stay, and the next run repairs.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::scene::{NEXT, Next, Scene, VICTIM, gpus, kept, mig, shared, switched, tasks};
use common::shares::{Control, Kind};
use common::{Job, World, at_once, job, job_of_tasks};
use gpufrac_core::lease::LeaseState;
use gpufrac_node::slice::failpoint;
use nvidia_ml::disturb::{Rule, What};
use test_seed::Dice;

#[test]
fn child() {
    common::child();
}

impl Scene {
    fn carving_killed_at(&self, points: &[&str]) {
        for point in points {
            for (turn, next) in NEXT.into_iter().enumerate() {
                self.before_life(turn as u32);
                self.world.killed_at(point, "prolog", self.victim);
                self.recover(self.victim, next);
            }
        }
    }

    fn release_killed_at(&self, points: &[&str]) {
        let mut ended = 0;
        for point in points {
            for next in NEXT {
                // Without the case that makes the victim's slice again, which Slurm never does.
                if matches!(next, Next::Again) {
                    continue;
                }
                // A new start each time, because usage records are distinguished by job and start.
                let victim = Job {
                    id: self.victim.id + 10 * (1 + ended),
                    ..self.victim
                };
                if victim.slices() > 1 {
                    self.world.slurm_counts(victim);
                }
                self.world.prolog(victim).ok();
                self.world.killed_at(point, "epilog", victim);
                self.recover(victim, next);
                ended += 1;
                let records = self
                    .world
                    .usage()
                    .iter()
                    .filter(|record| record["job"] == victim.id)
                    .count();
                assert_eq!(records, victim.slices(), "{point} {next:?}");
            }
        }
    }

    /// The number of calls of a run.
    fn calls_of(&self, run: impl FnOnce()) -> u64 {
        self.world.count_calls();
        let before = self.world.calls();
        run();
        self.world.calls() - before
    }

    fn calls_of_carving(&self) -> u64 {
        self.before_life(0);
        let calls = self.calls_of(|| drop(self.world.prolog(self.victim).ok()));
        self.world.epilog(self.victim).ok();
        calls
    }

    fn every_call_of_carving(&self, what: What, least: u64) {
        let calls = self.calls_of_carving();
        assert!(calls > least, "{calls}");
        for nth in 1..=calls {
            self.before_life(nth as u32);
            self.world.nth_call(nth, what);
            self.world.prolog(self.victim);
            self.world.calm();
            self.recover(self.victim, NEXT[(nth % 5) as usize]);
        }
    }

    fn every_call_of_release(&self, what: What, least: u64) {
        let (world, victim) = (&self.world, self.victim);
        world.prolog(victim).ok();
        let calls = self.calls_of(|| drop(world.epilog(victim).ok()));
        assert!(calls > least, "{calls}");
        for nth in 1..=calls {
            world.prolog(victim).ok();
            world.nth_call(nth, what);
            world.epilog(victim);
            world.calm();
            self.recover(victim, Next::Another);
        }
    }

    /// The GPU disappears at any call and does not come back: the cleanup fails, too, and the lease records what must
    /// be done.
    fn gpu_goes_away(&self) {
        let (world, victim) = (&self.world, self.victim);
        let calls = self.calls_of_carving();
        for nth in 1..=calls {
            self.before_life(nth as u32);
            let first = world.calls() + nth;
            world.disturb(|d| {
                d.rules = vec![Rule {
                    call: None,
                    gpu: None,
                    first,
                    count: 0,
                    what: What::Fail(15),
                }];
            });
            let ended = world.prolog(victim);
            // nvmlShutdown is the last call, and its result does not matter.
            let code = if nth == calls { 0 } else { 1 };
            assert_eq!(ended.code, Some(code), "{nth} of {calls}: {}", ended.stderr);
            world.calm();
            self.recover(victim, NEXT[(nth % 5) as usize]);
        }
    }
}

/// Promise (never): prolog or epilog killed at any step: the next run repairs.
/// With `epilog_killed_at_every_step`.
#[test]
fn prolog_killed_at_every_step() {
    let scene = mig();
    scene.carving_killed_at(failpoint::CARVE);
}

#[test]
fn epilog_killed_at_every_step() {
    let scene = mig();
    scene.release_killed_at(failpoint::RELEASE);
}

#[test]
fn killed_at_every_step_with_an_instance_that_is_kept() {
    at_once(["carving", "keeping"], |what| {
        let scene = kept();
        match what {
            "carving" => scene.carving_killed_at(failpoint::CARVE_KEPT),
            _ => scene.release_killed_at(failpoint::KEEP),
        }
    });
}

#[test]
fn any_call_fails_with_an_instance_that_is_kept() {
    at_once([FAILS, FAILS_AFTER, What::KillAfter], |what| {
        let scene = kept();
        scene.every_call_of_carving(what, 8);
    });
}

/// Promise (placement): a prolog that is killed while the MIG mode changes is repaired.
/// With `killed_at_any_call_with_a_mode_that_changes`.
#[test]
fn killed_at_every_step_with_a_mode_that_changes() {
    at_once([true, false], |is_whole| {
        let scene = switched(is_whole);
        let carve: Vec<&str> = match is_whole {
            // No instance is made.
            true => vec!["carve.locked", "carve.lease_written", "carve.active"],
            false => failpoint::CARVE.to_vec(),
        };
        scene.carving_killed_at(&[&carve, failpoint::CARVE_SWITCHED].concat());
        let release = failpoint::RELEASE.iter().copied().filter(|point| {
            let of_instance = ["release.caps_revoked", "release.compute_instance_gone"];
            !is_whole || !of_instance.contains(point)
        });
        scene.release_killed_at(&release.collect::<Vec<_>>());
    });
}

#[test]
fn any_call_fails_with_a_mode_that_changes() {
    let cases = [FAILS, FAILS_AFTER, What::KillAfter].map(|what| [(what, true), (what, false)]);
    at_once(cases.concat(), |(what, is_whole)| {
        let scene = switched(is_whole);
        scene.every_call_of_carving(what, 5);
    });
}

#[test]
fn the_gpu_goes_away_while_its_mode_changes() {
    at_once([true, false], |is_whole| {
        let scene = switched(is_whole);
        scene.gpu_goes_away();
    });
}

#[test]
fn killed_before_an_instance_is_recorded_where_absent_ids_are_invalid() {
    let scene = mig();
    scene.world.on_node(|node| node.manners.invalid_ids = true);
    scene.carving_killed_at(&["carve.gpu_instance_made", "carve.compute_instance_made"]);
}

/// Promise (never): a destroy that the driver reports and that leaves the instance keeps the lease.
// The driver says that an instance is destroyed, and the instance goes later, or stays.
#[test]
fn an_instance_stands_after_its_end_was_reported() {
    const DESTROY: &str = "nvmlGpuInstanceDestroy";
    at_once([true, false], |goes| {
        let scene = mig();
        let (world, victim) = (&scene.world, scene.victim);
        let later = |ms| {
            world.on_node(|node| node.manners.destroyed_after_ms = ms);
        };
        // An epilog waits for one that stays.
        for next in NEXT.into_iter().take(if goes { NEXT.len() } else { 2 }) {
            world.prolog(victim).ok();
            if goes {
                later(Some(300));
                world.epilog(victim).ok();
                assert!(world.lease(victim).is_none());
                later(None);
            } else {
                world.next_calls(DESTROY, 0, What::Fail(0));
                let ended = world.epilog(victim).ok();
                ended.says("still stands, although the driver reported its end");
                // Its lease and its place stay.
                let beside = job(8, 0, 13);
                world.prolog(beside).ok().says("failed for now");
                assert_eq!(world.lease(victim).unwrap().state, LeaseState::Releasing);
                world.calm();
                world.epilog(beside).ok();
            }
            scene.recover(victim, next);
        }
    });
}

/// At a step of the first slice, and of the second.
fn of_both(points: &[&'static str]) -> Vec<&'static str> {
    let second = points.iter().map(|point| &*format!("{point}@2").leak());
    // The GPU is locked once for both slices.
    let second = second.filter(|point| *point != "carve.locked@2");
    points.iter().copied().chain(second).collect()
}

#[test]
fn killed_at_every_step_of_two_slices() {
    at_once(["carving", "release"], |what| {
        let scene = tasks(Kind::Mig);
        match what {
            "carving" => scene.carving_killed_at(&of_both(failpoint::CARVE)),
            _ => scene.release_killed_at(&of_both(failpoint::RELEASE)),
        }
    });
}

#[test]
fn killed_at_every_step_of_two_slices_in_one_instance() {
    let scene = tasks(Kind::MigMps);
    let first = points(
        Kind::MigMps,
        false,
        [failpoint::CARVE, failpoint::CARVE_SHARED],
    );
    let second = points(
        Kind::MigMps,
        true,
        [failpoint::CARVE, failpoint::CARVE_SHARED],
    );
    let second = of_both(&second);
    let second = second.into_iter().filter(|point| point.ends_with("@2"));
    let all: Vec<&str> = first.into_iter().chain(second).collect();
    scene.carving_killed_at(&all);
}

/// At the steps on the first GPU, and on the last.
fn of_gpus(points: &[&'static str]) -> Vec<&'static str> {
    let last = points.iter().map(|point| &*format!("{point}@3").leak());
    points.iter().copied().chain(last).collect()
}

#[test]
fn killed_at_every_step_of_several_gpus() {
    at_once(["carving", "release"], |what| {
        let scene = gpus(Kind::Mig);
        match what {
            "carving" => scene.carving_killed_at(&of_gpus(failpoint::CARVE)),
            _ => scene.release_killed_at(&of_gpus(failpoint::RELEASE)),
        }
    });
}

#[test]
fn any_call_of_several_gpus_fails() {
    at_once(["carving", "release"], |what| {
        let scene = gpus(Kind::Mig);
        match what {
            "carving" => scene.every_call_of_carving(What::Fail(999), 10),
            _ => scene.every_call_of_release(What::KillAfter, 10),
        }
    });
}

#[test]
fn any_call_of_two_slices_fails() {
    at_once(["carving", "release"], |what| {
        let scene = tasks(Kind::Mig);
        match what {
            "carving" => scene.every_call_of_carving(What::Fail(999), 10),
            _ => scene.every_call_of_release(What::KillAfter, 10),
        }
    });
}

fn every_call_of_carving(what: What) {
    let scene = mig();
    scene.every_call_of_carving(what, 8);
}

fn every_call_of_release(what: What) {
    let scene = mig();
    scene.every_call_of_release(what, 5);
}

/// Promise (never): any call of NVML fails, lies or kills: nothing leaks.
/// With `carving_when_any_call_works_and_says_that_it_failed`, `carving_when_any_call_kills`,
/// `release_when_any_call_fails_for_a_moment`, `release_when_any_call_works_and_says_that_it_failed`,
/// `release_when_any_call_kills`.
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

#[test]
fn carving_when_the_gpu_goes_away() {
    let scene = mig();
    scene.gpu_goes_away();
}

/// The points, out of `all`, that a mechanism reaches. `beside`: another job is on the same device, so shared
/// resources stay.
fn points(kind: Kind, beside: bool, all: [&[&'static str]; 2]) -> Vec<&'static str> {
    let comes_to = |point: &str| match point.split_once('.').unwrap().1 {
        // Jobs join an existing instance.
        "gpu_instance_made" | "compute_instance_made" | "instance_recorded" => {
            kind == Kind::MigMps && !beside
        }
        "caps_revoked" | "compute_instance_gone" => kind == Kind::MigMps && !beside,
        "caps_granted" => kind == Kind::MigMps,
        "mode_held" => !kind.uses_mig(),
        "mode_restored" => !kind.uses_mig() && !beside,
        "daemon_entered" | "daemon_left" => kind.uses_mps(),
        "cache_made" | "cache_removed" => kind == Kind::Hami,
        _ => true,
    };
    all.concat().into_iter().filter(|p| comes_to(p)).collect()
}

fn killed_at_every_step(kind: Kind) {
    at_once([false, true], |beside| {
        let scene = shared(kind, beside);
        let carve = [failpoint::CARVE, failpoint::CARVE_SHARED];
        scene.carving_killed_at(&points(kind, beside, carve));
        let release = [failpoint::RELEASE, failpoint::RELEASE_SHARED];
        scene.release_killed_at(&points(kind, beside, release));
    });
}

/// Promise (never): prolog or epilog killed at any step with MPS, time slices or HAMi-core: the next run repairs.
/// With `killed_at_every_step_with_a_daemon_for_each_job`, `killed_at_every_step_with_a_daemon_in_an_instance`,
/// `killed_at_every_step_with_time_slices`, `killed_at_every_step_with_a_library`.
#[test]
fn killed_at_every_step_with_a_shared_daemon() {
    killed_at_every_step(Kind::MpsShared);
}

#[test]
fn killed_at_every_step_with_a_daemon_for_each_job() {
    killed_at_every_step(Kind::MpsPrivate);
}

#[test]
fn killed_at_every_step_with_a_daemon_in_an_instance() {
    killed_at_every_step(Kind::MigMps);
}

#[test]
fn killed_at_every_step_with_time_slices() {
    killed_at_every_step(Kind::Timeslice);
}

#[test]
fn killed_at_every_step_with_a_library() {
    killed_at_every_step(Kind::Hami);
}

/// Faults of NVML calls, for one mechanism.
fn any_call(kind: Kind, beside: bool, befalls: &[What]) {
    at_once(befalls, |what| {
        let scene = shared(kind, beside);
        scene.every_call_of_carving(*what, 5);
        scene.every_call_of_release(*what, 3);
    });
}

const FAILS: What = What::Fail(999);
const FAILS_AFTER: What = What::FailAfter(999);

/// Promise (never): any call of NVML fails, lies or kills, with MPS and HAMi-core: nothing leaks.
/// With `any_call_with_a_shared_daemon_that_others_use`, `any_call_with_a_daemon_for_each_job`,
/// `any_call_with_a_daemon_in_an_instance`, `any_call_with_a_library`.
#[test]
fn any_call_with_a_shared_daemon() {
    any_call(
        Kind::MpsShared,
        false,
        &[FAILS, FAILS_AFTER, What::KillAfter],
    );
    let scene = shared(Kind::MpsShared, false);
    scene.every_call_of_carving(What::Fail(15), 5);
    scene.gpu_goes_away();
}

#[test]
fn any_call_with_a_shared_daemon_that_others_use() {
    any_call(Kind::MpsShared, true, &[FAILS_AFTER, What::KillAfter]);
}

#[test]
fn any_call_with_a_daemon_for_each_job() {
    any_call(Kind::MpsPrivate, false, &[FAILS, What::KillAfter]);
}

#[test]
fn any_call_with_a_daemon_in_an_instance() {
    any_call(Kind::MigMps, false, &[FAILS_AFTER, What::KillAfter]);
}

#[test]
fn any_call_with_a_library() {
    any_call(Kind::Hami, false, &[FAILS_AFTER, What::KillAfter]);
}

/// A lease names its partition after its creation; a partition in a lease is removed with the lease.
#[test]
fn a_partition_goes_with_its_lease() {
    let world = World::shared(Kind::MpsShared, Control::Standin("{}"));
    let keys = format!("{}\nsm_chunks = 15", Kind::MpsShared.keys(world.root()));
    world.configure("shares", "H100-80", &keys);
    world.setup().ok();
    let (running, victim, next) = (job(1, 0, 20), job(VICTIM, 0, 20), job(8, 0, 30));
    world.prolog(running).ok();
    let pipe = world.pipe(running);
    let before = world.partitions(&pipe);
    assert_eq!(before.len(), 1);
    for point in ["carve.daemon_entered", "carve.active"] {
        world.killed_at(point, "prolog", victim);
        let made = usize::from(point == "carve.active");
        assert_eq!(world.partitions(&pipe).len(), 1 + made, "{point}");
        world.prolog(next).ok();
        world.epilog(victim).ok();
        world.epilog(next).ok();
        assert_eq!(world.partitions(&pipe), before, "{point}");
    }
    world.prolog(victim).ok();
    world.killed_at("release.daemon_left", "epilog", victim);
    assert_eq!(world.partitions(&pipe), before);
    world.epilog(victim).ok();
    world.check(&[]);
}

/// A node on which jobs of three users start and end, and where any program may be killed.
struct Traffic {
    world: World,
    dice: Dice,
    /// All jobs whose epilog did not finish; Slurm counts their units as used.
    jobs: Vec<Job>,
    /// Jobs with a killed program; their remains show when they are repaired.
    torn: Vec<u32>,
    /// Killed daemons; the next job replaces them.
    killed: BTreeMap<PathBuf, i32>,
    came: u32,
}

const POINTS: [&[&str]; 4] = [
    failpoint::CARVE,
    failpoint::CARVE_SHARED,
    failpoint::RELEASE,
    failpoint::RELEASE_SHARED,
];

impl Traffic {
    /// Runs a program to its end, or kills it at some point; returns whether it finished.
    fn run(&mut self, action: &str, job: Job) -> bool {
        let mut command = self.world.job_command(action, job);
        let how = self.dice.below(8);
        if how == 0 {
            let points = POINTS.concat();
            let point = points[self.dice.below(points.len())];
            eprintln!("until {point}");
            command.env(failpoint::ENV, point);
        }
        if how == 1 {
            let pause = Duration::from_millis(self.dice.below(40) as u64);
            eprintln!("for {pause:?}");
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(pause);
            child.kill().unwrap();
            return child.wait().unwrap().success();
        }
        let output = command.output().unwrap();
        let killed = output.status.code().is_none();
        assert!(killed || output.status.success(), "{output:?}");
        !killed
    }

    fn come(&mut self) {
        let device = self.dice.below(2) as u32;
        let capacity = self.world.kind.capacity();
        let here = self.jobs.iter().filter(|job| job.device == device);
        let free = capacity - here.map(|job| job.units).sum::<u32>();
        if free < 3 {
            return;
        }
        let units = match self.dice.one_in(3) {
            true => free,
            false => 3 + self.dice.below(free as usize - 2) as u32,
        };
        self.came += 1;
        let job = Job {
            uid: 2000 + self.dice.below(3) as u32,
            ..job(self.came, device, units)
        };
        eprintln!("job {} of {} to {device}: {units}", job.id, job.uid);
        self.jobs.push(job);
        if !self.run("prolog", job) {
            self.torn.push(job.id);
        }
    }

    fn go(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let torn = self.jobs.iter().position(|job| self.torn.contains(&job.id));
        let index = match torn {
            Some(index) if !self.dice.one_in(3) => index,
            _ => self.dice.below(self.jobs.len()),
        };
        let job = self.jobs[index];
        eprintln!("job {} ends", job.id);
        self.torn.retain(|torn| *torn != job.id);
        match self.run("epilog", job) {
            true => drop(self.jobs.remove(index)),
            false => self.torn.push(job.id),
        }
    }

    fn kill_a_daemon(&mut self) {
        let mut daemons = self.world.mps();
        daemons.retain(|process| process.control);
        if daemons.is_empty() {
            return;
        }
        let victim = daemons.swap_remove(self.dice.below(daemons.len()));
        eprintln!("daemon of {} dies", victim.pipe.display());
        let pid = victim.pid.to_string();
        assert!(
            Command::new("kill")
                .args(["-9", &pid])
                .status()
                .unwrap()
                .success()
        );
        self.killed.insert(victim.pipe, victim.pid);
    }

    fn check(&mut self) {
        self.world.check_units();
        let found = self.world.mps();
        self.killed.retain(|pipe, pid| {
            let replaced = found.iter().any(|p| p.pipe == *pipe && p.pid != *pid);
            pipe.exists() && !replaced
        });
        if self.torn.is_empty() && self.killed.is_empty() {
            self.world.check(&[]);
            assert_eq!(self.world.leases().len(), self.jobs.len());
        }
    }
}

fn traffic(kind: Kind, seed: u64) {
    let world = World::shared(kind, Control::Real);
    world.setup().ok();
    let mut traffic = Traffic {
        world,
        dice: Dice::new(seed),
        jobs: Vec::new(),
        torn: Vec::new(),
        killed: BTreeMap::new(),
        came: 0,
    };
    for step in 0..200 {
        eprint!("{step}: ");
        match traffic.dice.below(20) {
            0 => traffic.kill_a_daemon(),
            1 => drop(traffic.world.setup().ok()),
            2..11 => traffic.come(),
            _ => traffic.go(),
        }
        traffic.check();
    }
    for job in traffic.jobs {
        traffic.world.epilog(job).ok();
    }
    traffic.world.check(&[]);
    assert_eq!(traffic.world.leases(), []);
    assert_eq!(traffic.world.slurm_was_told(), [""; 0]);
}

/// Promise (never): jobs that come and go at random, runs and daemons that are killed: daemons, limits, access and
/// leases agree.
/// With `traffic_with_a_daemon_for_each_job`, `traffic_with_a_daemon_in_an_instance`.
#[test]
fn traffic_with_a_shared_daemon() {
    traffic(Kind::MpsShared, test_seed::seed());
}

#[test]
fn traffic_with_a_daemon_for_each_job() {
    traffic(Kind::MpsPrivate, test_seed::seed());
}

#[test]
fn traffic_with_a_daemon_in_an_instance() {
    traffic(Kind::MigMps, test_seed::seed());
}

/// Promise (admins): of a job that is over all slices go: also when its epilog is killed, never comes, or one lease is
/// damaged.
/// With `a_damaged_lease_does_not_keep_the_others`, `all_slices_of_a_job_whose_epilog_never_came_are_ended`.
#[test]
fn an_epilog_that_is_killed_leaves_no_lease_active() {
    let world = World::new();
    world.setup().ok();
    let job = job_of_tasks(7, 0, 25, 2);
    world.slurm_counts(job);
    world.prolog(job).ok();
    world.killed_at("release.locked", "epilog", job);
    let left = world.leases_of(job);
    let marked = left
        .iter()
        .filter(|lease| lease.state == LeaseState::Releasing);
    assert_eq!(marked.count(), 2, "{left:?}");
    world.epilog(job).ok();
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
    assert_eq!(world.usage().len(), 2);
}
