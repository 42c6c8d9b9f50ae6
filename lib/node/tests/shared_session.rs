//! Prologs that take a kept instance over ask the daemon's session with NVML in place of one of their own.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::reuse::{KEEPS, eventually, instance, job_of, ready, run};
use common::{Job, World, at_once, job};
use gpufrac_core::lease::LeaseState;
use gpufrac_node::gpu::shared_session;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvidia_ml::disturb::What;
use test_seed::Dice;

#[test]
fn child() {
    common::child();
}

/// A process that answers questions as gpufrac-reaperd does, until it is dropped.
struct Daemon(Child);

impl Daemon {
    fn start(world: &World) -> Daemon {
        let daemon = Daemon(world.command("answer").spawn().unwrap());
        eventually("an answer", || shared_session::is_there(&world.node().run));
        daemon
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The calls of the daemon since the journal was cleared.
fn calls_of_daemon(world: &World) -> Vec<String> {
    let calls = nvidia_ml::journal::read(world.sim.root()).unwrap();
    let own = calls.into_iter().filter(|entry| entry.job.is_none());
    own.map(|entry| entry.call).collect()
}

/// Promise (admins): while the daemon runs, a prolog that takes an instance over does not start NVML; a daemon that is
/// stopped, dead or without an answer changes no outcome.
/// With `shared_session.rs::an_instance_that_is_not_clean_is_never_taken_over`,
/// `without_an_answer_a_prolog_asks_nvml_itself`, `a_stopped_daemon_with_a_full_queue_holds_nobody`,
/// `the_session_ends_where_the_driver_refuses_to_destroy_an_instance`,
/// `a_daemon_that_comes_and_goes_changes_no_outcome`.
#[test]
fn a_prolog_that_takes_an_instance_over_makes_no_call_of_nvml() {
    let world = ready(KEEPS);
    let _daemon = Daemon::start(&world);
    let held = run(&world, job_of(1, 1001));
    for id in 2..5 {
        let next = job_of(id, 1001);
        world.note_calls();
        assert_eq!(run(&world, next), held);
        assert_eq!(world.calls_of(next), []);
        // One session answers them all.
        let starts = calls_of_daemon(&world);
        let starts = starts.iter().filter(|call| call.contains("nvmlInit"));
        assert_eq!(starts.count(), usize::from(id == 2));
    }
    // Another size, and another user: there is nothing to take over.
    let larger = Job {
        units: 50,
        ..job_of(5, 1001)
    };
    for other in [larger, job_of(6, 1002)] {
        world.note_calls();
        assert_ne!(run(&world, other), held);
        assert!(!world.calls_of(other).is_empty());
    }
}

#[test]
fn an_instance_that_is_not_clean_is_never_taken_over() {
    at_once(["memory", "process", "gone", "silent"], |what| {
        let world = ready(KEEPS);
        let _daemon = Daemon::start(&world);
        let first = job_of(1, 1001);
        let held = run(&world, first);
        match what {
            "memory" => world.on_gpu(|gpu| gpu.instances[0].leaked_mib = 1000),
            "process" => drop(world.use_slice(first, std::process::id())),
            "gone" => world.on_gpu(|gpu| gpu.instances.clear()),
            // The daemon's question fails, and then that of the prolog's own session.
            _ => {
                world.count_calls();
                world.next_calls("nvmlDeviceGetMemoryInfo_v2", 2, What::Fail(999));
            }
        }
        let second = job_of(2, 1001);
        world.prolog(second).ok();
        assert_ne!(instance(&world, second), held, "{what}");
    });
}

/// A session that shows what it saw first does not take another user's used instance for the one that stood there
/// before.
#[test]
fn an_older_session_does_not_speak_for_a_newer_instance() {
    let world = ready(KEEPS);
    world.on_node(|node| node.manners.stale_sessions = true);
    let _daemon = Daemon::start(&world);
    let held = run(&world, job_of(1, 1001));
    world.note_calls();
    assert_eq!(run(&world, job_of(2, 1001)), held);
    assert!(!calls_of_daemon(&world).is_empty(), "its session is open");
    // At the same place, with the same ids and UUID.
    let third = job_of(3, 1002);
    let newer = run(&world, third);
    assert_ne!(newer, held);
    world.use_slice(third, std::process::id());
    let fourth = job_of(4, 1002);
    world.prolog(fourth).ok();
    assert_ne!(instance(&world, fourth), newer);
    world.epilog(fourth).ok();
}

#[test]
fn without_an_answer_a_prolog_asks_nvml_itself() {
    at_once(["stopped", "killed", "driver", "folder"], |what| {
        let world = ready(KEEPS);
        let daemon = Daemon::start(&world);
        let held = run(&world, job_of(1, 1001));
        let folder = world.node().run.join("session");
        match what {
            "stopped" => daemon.signal(Signal::SIGSTOP),
            "killed" => daemon.signal(Signal::SIGKILL),
            "driver" => {
                world.count_calls();
                world.next_calls("nvmlDeviceGetMemoryInfo_v2", 1, What::Fail(999));
            }
            // Others could listen there.
            _ => fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap(),
        }
        let second = job_of(2, 1001);
        world.note_calls();
        assert_eq!(run(&world, second), held, "{what}");
        assert!(!world.calls_of(second).is_empty(), "{what}");
    });
}

#[test]
fn a_stopped_daemon_with_a_full_queue_holds_nobody() {
    let world = ready(KEEPS);
    let daemon = Daemon::start(&world);
    let held = run(&world, job_of(1, 1001));
    daemon.signal(Signal::SIGSTOP);
    let socket = world.node().run.join("session/socket");
    // More than the queue of a socket takes.
    let mut callers: Vec<Child> = Vec::new();
    while shared_session::is_there(&world.node().run) {
        assert!(callers.len() < 100, "the queue is never full");
        let script = "use IO::Socket::UNIX; my @all; \
             for (1..100) { push @all, IO::Socket::UNIX->new(Peer => $ARGV[0], Timeout => 1) } sleep 60";
        let mut caller = Command::new("perl");
        let caller = caller.args(["-e", script]).arg(&socket).spawn();
        callers.push(caller.unwrap());
        sleep(Duration::from_millis(100));
    }
    let start = Instant::now();
    assert_eq!(run(&world, job_of(2, 1001)), held);
    assert!(start.elapsed() < Duration::from_secs(60));
    for mut caller in callers {
        caller.kill().unwrap();
        caller.wait().unwrap();
    }
}

#[test]
fn the_session_ends_where_the_driver_refuses_to_destroy_an_instance() {
    let world = ready(KEEPS);
    let _daemon = Daemon::start(&world);
    let held = run(&world, job_of(1, 1001));
    assert_eq!(run(&world, job_of(2, 1001)), held);
    // The other place of the half has a kept instance, too.
    run(&world, job_of(6, 1003));
    world.note_calls();
    world.next_calls("nvmlGpuInstanceDestroy", 1, What::Fail(19));
    world.disturb(|d| d.journal = true);
    let other = job_of(3, 1002);
    // The instance stays for the next repair, and the job has another place.
    world.prolog(other).ok();
    let theirs = instance(&world, other);
    assert_ne!(theirs, held);
    assert_eq!(calls_of_daemon(&world), ["nvmlShutdown"]);
    world.epilog(other).ok();
    // For a while the daemon opens none, and prologs use their own.
    world.note_calls();
    let again = run(&world, job_of(4, 1002));
    let last = job_of(5, 1002);
    assert_eq!(run(&world, last), again);
    assert_eq!(calls_of_daemon(&world), [""; 0]);
    assert!(!world.calls_of(last).is_empty());
}

/// After the death of any process and any answer of the driver each job has its own instance, and nothing stays behind.
#[test]
fn a_daemon_that_comes_and_goes_changes_no_outcome() {
    let world = ready(KEEPS);
    let mut dice = Dice::new(test_seed::seed());
    let mut daemon = None;
    let mut running: Vec<Job> = Vec::new();
    for id in 1..=60 {
        match dice.below(4) {
            0 => daemon = None,
            1 if daemon.is_none() => daemon = Some(Daemon::start(&world)),
            _ => {}
        }
        let sizes = [13, 25, 50];
        let job = Job {
            uid: 1000 + dice.below(2) as u32,
            ..job(id, dice.below(2) as u32, sizes[dice.below(3)])
        };
        let used = |device| -> u32 {
            let on = running.iter().filter(|one| one.device == device);
            on.map(|one| one.units).sum()
        };
        if used(job.device) + job.units > 50 {
            let over = running.remove(dice.below(running.len()));
            world.epilog(over).ok();
        } else {
            world.prolog(job).ok();
            running.push(job);
        }
        world.check(&[]);
    }
    let leases = world.leases();
    let kept = leases.iter().filter(|it| it.state == LeaseState::Kept);
    assert_eq!(leases.len(), running.len() + kept.count());
    assert_eq!(world.slurm_was_told(), [""; 0]);
}
