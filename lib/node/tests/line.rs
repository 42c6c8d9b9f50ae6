//! The queue of a GPU: with many processes, some of which are killed, and with prologs and epilogs on a slow driver.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Ended, Job, LOCK_PATIENCE, World, at_once, job, ready};
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::LeaseState;
use gpufrac_host::files::RootDir;
use gpufrac_node::state::locks::Locks;
use nvidia_ml::disturb::{Rule, What, counted};
use test_seed::Dice;

const GPU: GpuIndex = GpuIndex(0);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);
/// `<run>` of a process that waits in the queue; its name, the number of its turns, and the milliseconds for which it
/// has the GPU.
const RUN: &str = "GPUFRAC_TEST_LINE";
const NAME: &str = "GPUFRAC_TEST_LINE_NAME";
const TURNS: &str = "GPUFRAC_TEST_LINE_TURNS";
const HOLDS: &str = "GPUFRAC_TEST_LINE_HOLDS";

#[test]
fn child() {
    match std::env::var(RUN) {
        Ok(run) => stand_in_line(Path::new(&run)),
        Err(_) => common::child(),
    }
}

/// Writes to `<run>/said` when it waits, when it has the GPU, and when it releases it.
fn stand_in_line(run: &Path) {
    let text = |name: &str| std::env::var(name).unwrap();
    let number = |name: &str| text(name).parse::<u64>().unwrap();
    let mut said = fs::OpenOptions::new()
        .append(true)
        .open(run.join("said"))
        .unwrap();
    let mut say = |word: &str| {
        let line = format!("{word} {}\n", text(NAME));
        said.write_all(line.as_bytes()).unwrap();
    };
    let locks = Locks::open(run).unwrap();
    let mut line = locks.line(GPU).unwrap();
    for _ in 0..number(TURNS) {
        let mut is_said = false;
        let lock = line.turn(|wait| {
            if !is_said {
                say("waits");
                is_said = true;
            }
            wait.still < LONG
        });
        let lock = lock.unwrap();
        say("has");
        sleep(Duration::from_millis(number(HOLDS)));
        lock.step();
        say("gives");
        drop(lock);
        sleep(Duration::from_millis(2));
    }
    std::process::exit(0);
}

/// Processes in the queue of a GPU.
struct Crowd {
    _keep: tempfile::TempDir,
    run: PathBuf,
    locks: Locks,
    children: Vec<(usize, Child)>,
    killed: BTreeSet<usize>,
}

impl Crowd {
    fn new() -> Crowd {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        RootDir::create(&run.join("locks"), 0o700).unwrap();
        fs::write(run.join("said"), "").unwrap();
        Crowd {
            _keep: keep,
            locks: Locks::open(&run).unwrap(),
            run,
            children: Vec::new(),
            killed: BTreeSet::new(),
        }
    }

    fn add(&mut self, turns: u64, holds: u64) -> usize {
        let number = self.children.len() + self.killed.len();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--quiet"])
            .env(RUN, &self.run)
            .env(NAME, number.to_string())
            .env(TURNS, turns.to_string())
            .env(HOLDS, holds.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.children.push((number, child));
        number
    }

    fn kill(&mut self, at: usize) {
        let (number, mut child) = self.children.remove(at);
        self.killed.insert(number);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn said(&self) -> Vec<(String, usize)> {
        let text = fs::read_to_string(self.run.join("said")).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        lines
            .map(|(word, name)| (word.to_owned(), name.parse().unwrap()))
            .collect()
    }

    fn wait_for(&self, word: &str, number: usize) {
        let wanted = (word.to_owned(), number);
        let start = Instant::now();
        while !self.said().contains(&wanted) {
            assert!(start.elapsed() < LONG, "{number} never {word}");
            sleep(Duration::from_millis(2));
        }
    }

    /// Waits until all processes that were not killed have finished, one at a time.
    fn finish(&mut self) {
        for (number, mut child) in std::mem::take(&mut self.children) {
            assert!(child.wait().unwrap().success(), "{number}");
        }
        let mut holder = None;
        for (word, number) in self.said() {
            match word.as_str() {
                "has" => {
                    let free = holder.is_none_or(|other| self.killed.contains(&other));
                    assert!(free, "{number} and {holder:?} have the GPU");
                    holder = Some(number);
                }
                "gives" => {
                    assert_eq!(holder, Some(number));
                    holder = None;
                }
                _ => {}
            }
        }
        // Nothing that was left stops the next program, and it is removed.
        drop(self.locks.gpu(GPU, Duration::ZERO).unwrap());
        let left = fs::read_dir(self.run.join("locks/gpu0.line")).unwrap();
        assert_eq!(left.count(), 0);
    }
}

/// Promise (admins): killed waiters leave no gap in the line, and a stopped waiter stops no other.
/// With `a_crowd_that_comes_goes_and_is_killed_never_shares_a_gpu_nor_stands_still`,
/// `a_prolog_that_waits_for_a_dying_job_stops_nobody`, `a_killed_prolog_leaves_its_place_to_the_next`,
/// `the_driver_is_started_before_the_turn`.
#[test]
fn the_order_holds_and_killed_waiters_leave_no_gap() {
    let mut dice = Dice::new(test_seed::seed());
    let mut crowd = Crowd::new();
    let held = crowd.locks.gpu(GPU, LONG).unwrap();
    let mut order = Vec::new();
    for _ in 0..24 {
        let number = crowd.add(1, 1);
        crowd.wait_for("waits", number);
        order.push(number);
        if dice.one_in(3) {
            let victim = dice.below(crowd.children.len());
            crowd.kill(victim);
        }
    }
    drop(held);
    crowd.finish();
    order.retain(|number| !crowd.killed.contains(number));
    let had = crowd.said().into_iter().filter(|(word, _)| word == "has");
    let had: Vec<usize> = had.map(|(_, number)| number).collect();
    assert_eq!(had, order);
}

#[test]
fn a_crowd_that_comes_goes_and_is_killed_never_shares_a_gpu_nor_stands_still() {
    let mut dice = Dice::new(test_seed::seed());
    let mut crowd = Crowd::new();
    for _ in 0..60 {
        crowd.add(1 + dice.throw(3), dice.throw(12));
        sleep(Duration::from_millis(dice.throw(8)));
        if dice.one_in(3) {
            let victim = dice.below(crowd.children.len());
            crowd.kill(victim);
        }
    }
    crowd.finish();
}

/// Makes functions of the driver take this many milliseconds longer.
fn delay(world: &World, delays: &[(&str, u64)]) {
    world.disturb(|disturbances| {
        disturbances.counting = true;
        disturbances.rules = delays
            .iter()
            .map(|(call, milliseconds)| Rule {
                call: Some((*call).to_owned()),
                first: 1,
                count: 0,
                gpu: None,
                what: What::Delay(*milliseconds),
            })
            .collect();
    });
}

/// Observed times of real GPUs, in milliseconds.
const SLOW: [(&str, u64); 5] = [
    ("nvmlInit_v2", 300),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", 1000),
    ("nvmlGpuInstanceCreateComputeInstance", 500),
    ("nvmlComputeInstanceDestroy", 300),
    ("nvmlGpuInstanceDestroy", 700),
];

/// A running prolog or epilog, with its output.
struct Running(Child);

impl Running {
    fn start(world: &World, action: &str, job: Job, variables: &[(&str, &str)]) -> Running {
        let mut command = world.job_command(action, job);
        command.envs(variables.iter().copied());
        Running(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Reads up to a line with this text.
    fn says(&mut self, text: &str) {
        let stderr = self.0.stderr.as_mut().unwrap();
        // Byte by byte, so that later output stays for the end.
        let mut lines = BufReader::with_capacity(1, stderr).lines();
        assert!(lines.any(|line| line.unwrap().contains(text)), "{text}");
    }

    fn end(self) -> Ended {
        Ended::of(self.0.wait_with_output().unwrap())
    }
}

fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    let start = Instant::now();
    while !probe() {
        assert!(start.elapsed() < LONG, "{what}");
        sleep(Duration::from_millis(5));
    }
}

/// Promise (admins): jobs that start together wait in line, in order, as long as it moves and Slurm lets them; none
/// goes back to the queue.
/// With `a_prolog_gives_up_when_nothing_moves_or_its_time_is_over`, `jobs_that_start_together_wait_in_line`.
#[test]
fn a_burst_of_jobs_waits_in_line_and_none_goes_back() {
    let world = ready();
    delay(&world, &SLOW);
    let jobs: Vec<Job> = (1..=6).map(|id| job(id, id % 2, 13)).collect();
    for action in ["prolog", "epilog"] {
        let start = |job: &Job| Running::start(&world, action, *job, &[]);
        let running: Vec<Running> = jobs.iter().map(start).collect();
        for one in running {
            one.end().ok();
        }
        assert_eq!(world.slurm_was_told(), [""; 0]);
        world.check(&[]);
        let left = if action == "prolog" { jobs.len() } else { 0 };
        assert_eq!(world.leases().len(), left);
    }
}

#[test]
fn a_prolog_gives_up_when_nothing_moves_or_its_time_is_over() {
    enum Holder {
        /// Does nothing.
        Hangs,
        /// Does one step after the other, for this time.
        Works(Duration),
    }
    let seconds = Duration::from_secs_f64;
    at_once(
        [
            // Nothing changes: the time of one step.
            (Holder::Hangs, "6000", None, Some(6.0)),
            // Steps are made, but Slurm gives it 4 seconds, of which it keeps one in reserve.
            (
                Holder::Works(seconds(60.0)),
                "2000",
                Some("4000"),
                Some(3.0),
            ),
            // Steps are made, for longer than one step may take.
            (Holder::Works(seconds(7.0)), "2000", None, None),
        ],
        |(holder, patience, limit, gives_up_after)| {
            let world = ready();
            let one = job(1, 0, 25);
            world.slurm_knows(one);
            if let Some(limit) = limit {
                fs::write(world.root().join("slurm/limit"), limit).unwrap();
            }
            let locks = world.node().locks().unwrap();
            let held = locks.gpu(GPU, LONG).unwrap();
            let start = Instant::now();
            let mut prolog = Running::start(&world, "prolog", one, &[(LOCK_PATIENCE, patience)]);
            if let Holder::Works(long) = holder {
                while start.elapsed() < long && prolog.0.try_wait().unwrap().is_none() {
                    held.step();
                    sleep(Duration::from_millis(20));
                }
                drop(held);
            } else {
                prolog.0.wait().unwrap();
                drop(held);
            }
            let ended = prolog.end().ok();
            let explained = world.root().join("slurm/1.explained");
            let explained = fs::read_to_string(explained).unwrap_or_default();
            let Some(least) = gives_up_after else {
                assert_eq!(world.slurm_was_told(), [""; 0]);
                assert_eq!(world.leases_of(one).len(), 1);
                // Shown, and removed.
                assert_eq!(explained, "the job waits on n1 for its turn at GPU 0\n\n");
                return;
            };
            let ended = ended.says("stayed locked by another prolog or epilog");
            assert!(start.elapsed() >= seconds(least), "{}", ended.stderr);
            assert_eq!(world.slurm_was_told(), ["requeue 1"]);
            assert!(world.leases().is_empty());
            if least > 5.0 {
                let mut lines = explained.lines();
                assert_eq!(
                    lines.next(),
                    Some("the job waits on n1 for its turn at GPU 0")
                );
                let last = lines.next().unwrap();
                assert!(
                    last.starts_with("the job did not start on n1: GPU 0"),
                    "{last}"
                );
            }
        },
    );
}

#[test]
fn a_prolog_that_waits_for_a_dying_job_stops_nobody() {
    let world = ready();
    let (old, new, other) = (job(1, 0, 50), job(2, 0, 50), job(3, 1, 50));
    world.prolog(old).ok();
    world.slurm_says(1, "completing - 0");
    let mut waiting = Running::start(&world, "prolog", new, &[]);
    waiting.says("waiting: ");
    world.prolog(other).ok();
    assert!(waiting.0.try_wait().unwrap().is_none());
    world.epilog(old).ok();
    waiting.end().ok();
    assert_eq!(world.slurm_was_told(), [""; 0]);
    assert_eq!(world.leases().len(), 2);
    world.check(&[]);
}

#[test]
fn the_driver_is_started_before_the_turn() {
    at_once(["prolog", "epilog"], |action| {
        let world = ready();
        let one = job(1, 0, 25);
        if action == "epilog" {
            world.prolog(one).ok();
        }
        world.count_calls();
        let starts = || counted(&world.sim.counters().unwrap(), Some("nvmlInit_v2"));
        let before = starts();
        let held = world.node().locks().unwrap().gpu(GPU, LONG).unwrap();
        let mut running = Running::start(&world, action, one, &[]);
        eventually("the driver is started", || starts() > before);
        assert!(running.0.try_wait().unwrap().is_none());
        drop(held);
        running.end().ok();
        assert_eq!(starts(), before + 1);
        world.check(&[]);
    });
}

#[test]
fn the_slice_of_a_job_whose_epilog_waits_is_left_to_it() {
    let world = ready();
    let (ended, next) = (job(1, 0, 25), job(2, 0, 25));
    world.prolog(ended).ok();
    let held = world.node().locks().unwrap().gpu(GPU, LONG).unwrap();
    let line = world.root().join("run/locks/gpu0.line");
    let in_line = || {
        let names = fs::read_dir(&line).unwrap().flatten();
        let tickets = names.map(|entry| entry.file_name().into_string().unwrap());
        tickets.filter(|name| name.starts_with('0')).count()
    };
    // The prolog is before the epilog, which has marked its lease.
    let prolog = Running::start(&world, "prolog", next, &[]);
    eventually("the prolog stands in line", || in_line() == 2);
    let epilog = Running::start(&world, "epilog", ended, &[]);
    eventually("the epilog stands in line", || in_line() == 3);
    assert_eq!(world.lease(ended).unwrap().state, LeaseState::Releasing);
    drop(held);
    let prolog = prolog.end().ok();
    assert!(!prolog.stderr.contains("ended the lease"), "{prolog:?}");
    epilog.end().ok().says("released");
    world.check(&[]);
    // The lease of a killed program is repaired.
    let held = world.node().locks().unwrap().gpu(GPU, LONG).unwrap();
    let mut epilog = Running::start(&world, "epilog", next, &[]);
    eventually("the epilog stands in line", || in_line() == 2);
    epilog.0.kill().unwrap();
    epilog.0.wait().unwrap();
    drop(held);
    let third = world.prolog(job(3, 0, 50)).ok();
    third.says("ended the lease of job 2");
    world.check(&[]);
    assert_eq!(fs::read_dir(&line).unwrap().count(), 0);
}

#[test]
fn a_killed_prolog_leaves_its_place_to_the_next() {
    let world = ready();
    let held = world.node().locks().unwrap().gpu(GPU, LONG).unwrap();
    let line = world.root().join("run/locks/gpu0.line");
    let tickets = || fs::read_dir(&line).unwrap().count();
    let mut running: Vec<Running> = Vec::new();
    for id in 1..=3 {
        running.push(Running::start(&world, "prolog", job(id, 0, 13), &[]));
        eventually("it stands in line", || tickets() == id as usize + 1);
    }
    let mut first = running.remove(0);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    drop(held);
    for one in running {
        one.end().ok();
    }
    assert_eq!((tickets(), world.leases().len()), (0, 2));
    world.check(&[]);
}
