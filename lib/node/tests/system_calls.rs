//! Prolog and epilog killed before and after each of their system calls that change something: nothing leaks, foreign
//! instances stay, and the next run repairs.
//!
//! `GPUFRAC_KILLED_CALLS` and `GPUFRAC_TEST_SEED` set the number of cases of each kind, and the seed.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use common::scene::{NEXT, Next, Scene, gpus, kept, mig, shared, switched, tasks};
use common::shares::Kind;
use common::{Job, at_once};
use test_seed::Dice;
use tracer::{Death, Moment};

#[test]
fn child() {
    common::child();
}

/// The default number of cases for each scene and program.
const CASES: usize = 30;

fn wanted() -> usize {
    let text = std::env::var("GPUFRAC_KILLED_CALLS").ok();
    text.map_or(CASES, |text| text.parse().unwrap())
}

/// The program that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Prolog,
    Epilog,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Prolog => "prolog",
            Program::Epilog => "epilog",
        }
    }

    /// Slurm never makes slices again for a job whose epilog died.
    fn ways(self) -> Vec<Next> {
        let all = NEXT.into_iter();
        all.filter(|next| self == Program::Prolog || !matches!(next, Next::Again))
            .collect()
    }
}

/// A death, and the next event.
#[derive(Debug, Clone, Copy)]
struct Case {
    death: Death,
    next: Next,
}

impl Case {
    /// The case with this number, of all cases.
    fn numbered(number: usize, ways: &[Next]) -> Case {
        let moment = match number / ways.len() % 2 {
            0 => Moment::Before,
            _ => Moment::After,
        };
        let nth = number / ways.len() / 2 + 1;
        Case {
            death: Death { nth, moment },
            next: ways[number % ways.len()],
        }
    }
}

/// The current case, printed if the test fails.
struct Now {
    what: String,
    case: Case,
    call: String,
}

impl fmt::Display for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            death: Death { nth, moment },
            next,
        } = self.case;
        write!(
            f,
            "{}: killed {} call {nth}, `{}`, then {next:?}",
            self.what,
            match moment {
                Moment::Before => "before",
                Moment::After => "after",
            },
            self.call
        )
    }
}

impl Drop for Now {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{self}");
        }
    }
}

/// Kills a program that works on a scene.
struct Kills<'a> {
    scene: &'a Scene,
    program: Program,
    what: String,
    /// The number of runs, killed or not.
    lives: u32,
}

impl Kills<'_> {
    /// The next victim. Usage records are distinguished by job and start, so each epilog has a separate number.
    fn victim(&mut self) -> Job {
        self.lives += 1;
        let victim = self.scene.victim;
        let victim = match self.program {
            Program::Prolog => victim,
            Program::Epilog => Job {
                id: victim.id + 10 * self.lives,
                ..victim
            },
        };
        if victim.slices() > 1 {
            self.scene.world.slurm_counts(victim);
        }
        self.scene.before_life(self.lives);
        if self.program == Program::Epilog {
            self.scene.world.prolog(victim).ok();
        }
        victim
    }

    /// Runs the program to its end; returns the number of calls that change something.
    fn count(&mut self) -> usize {
        let (scene, victim) = (self.scene, self.victim());
        let world = &scene.world;
        let run = world.traced(self.program.name(), victim, None);
        let said = fs::read_to_string(world.root().join("said")).unwrap();
        assert_eq!(run.code, Some(0), "{}: {said}", self.what);
        world.epilog(victim).ok();
        world.check(&scene.foreign);
        run.calls.len()
    }

    /// Whether the call was reached.
    fn kill(&mut self, case: Case) -> bool {
        let (scene, victim) = (self.scene, self.victim());
        let world = &scene.world;
        let mut now = Now {
            what: self.what.clone(),
            case,
            call: "?".into(),
        };
        let run = world.traced(self.program.name(), victim, Some(case.death));
        let said = fs::read_to_string(world.root().join("said")).unwrap();
        assert!(matches!(run.code, None | Some(0)), "{:?}: {said}", run.code);
        let call = run.code.is_none().then(|| run.calls.last());
        now.call = call.flatten().map_or("none".into(), ToString::to_string);
        scene.recover(victim, case.next);
        scene.check_files();
        if self.program == Program::Epilog {
            let records = world.usage();
            let own = records.iter().filter(|record| record["job"] == victim.id);
            assert_eq!(own.count(), victim.slices(), "usage records");
        }
        run.code.is_none()
    }
}

/// Kills a program that works on a scene: at random calls, or at all calls.
fn kill(scene: &Scene, program: Program, about: &str, seed: u64) {
    let what = format!(
        "{}, {about}, {} (GPUFRAC_TEST_SEED={seed})",
        scene.world.kind.mechanism(),
        program.name()
    );
    let mut kills = Kills {
        scene,
        program,
        what: what.clone(),
        lives: 0,
    };
    let ways = program.ways();
    let calls = kills.count();
    let all = calls * 2 * ways.len();
    let mut dice = Dice::new(seed);
    let mut drawn = BTreeSet::new();
    while drawn.len() < wanted().min(all) {
        drawn.insert(if wanted() < all { dice.below(all) } else { drawn.len() });
    }
    let cases = drawn.iter().map(|number| Case::numbered(*number, &ways));
    let killed = cases.filter(|case| kills.kill(*case)).count();
    println!(
        "{what}: {calls} system calls change something; killed in {killed} of {all} cases (before and after each, {} ways to go on)",
        ways.len()
    );
    // A run after a crash may have less to do than the counted one.
    assert!(killed * 2 > drawn.len(), "{what}: most runs ended first");
}

/// Kills both programs on one of the scenes; in the long run on all of them.
fn killed(scenes: &[(&str, &(dyn Fn() -> Scene + Sync))]) {
    let seed = test_seed::seed();
    let mut dice = Dice::new(seed);
    let chosen = if wanted() > CASES { scenes } else { &scenes[dice.below(scenes.len())..][..1] };
    for (about, make) in chosen {
        at_once([Program::Prolog, Program::Epilog], |program| {
            kill(&make(), program, about, seed);
        });
    }
}

/// Promise (never): prolog or epilog killed before and after every system call that changes something, with every
/// mechanism: the next run repairs.
/// With `killed_at_any_call_with_a_shared_daemon`, `killed_at_any_call_with_a_daemon_for_each_job`,
/// `killed_at_any_call_with_a_daemon_in_an_instance`, `killed_at_any_call_with_time_slices`,
/// `killed_at_any_call_with_a_library`.
#[test]
fn killed_at_any_call_with_instances() {
    killed(&[
        ("beside a foreign instance", &mig),
        ("two slices", &|| tasks(Kind::Mig)),
        ("an instance that is kept", &kept),
        ("several GPUs", &|| gpus(Kind::Mig)),
    ]);
}

#[test]
fn killed_at_any_call_with_a_mode_that_changes() {
    killed(&[
        ("a whole GPU", &|| switched(true)),
        ("half a GPU", &|| switched(false)),
    ]);
}

fn killed_with(kind: Kind) {
    killed(&[
        ("alone", &|| shared(kind, false)),
        ("beside a job", &|| shared(kind, true)),
    ]);
}

#[test]
fn killed_at_any_call_with_a_shared_daemon() {
    killed_with(Kind::MpsShared);
}

#[test]
fn killed_at_any_call_with_a_daemon_for_each_job() {
    killed_with(Kind::MpsPrivate);
}

#[test]
fn killed_at_any_call_with_a_daemon_in_an_instance() {
    let kind = Kind::MigMps;
    killed(&[
        ("alone", &|| shared(kind, false)),
        ("beside a job", &|| shared(kind, true)),
        ("two slices", &|| tasks(kind)),
    ]);
}

#[test]
fn killed_at_any_call_with_time_slices() {
    let kind = Kind::Timeslice;
    killed(&[
        ("alone", &|| shared(kind, false)),
        ("beside a job", &|| shared(kind, true)),
        ("several GPUs", &|| gpus(kind)),
    ]);
}

#[test]
fn killed_at_any_call_with_a_library() {
    killed_with(Kind::Hami);
}
