//! The measurements of MPS, on the stand-ins: what they say of stand-ins that behave as NVIDIA's documents describe,
//! and that they say something else when an answer is falsified.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{World, copy};
use gpufrac_compute::mps::{After, Outcome, Pace, Plan, Record, State, measure};
use gpufrac_compute::order::Failure;
use serde_json::Value;

const PACE: Pace = Pace {
    compute: Duration::from_millis(60),
    interrupted: Duration::from_millis(200),
    answer: Duration::from_secs(60),
    wait: Duration::from_secs(3),
    all: Duration::from_secs(300),
};

/// Installs the stand-in for the control program.
fn control(world: &World, options: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let built = this.ancestors().map(|folder| folder.join("mps-standin"));
    let built = built.clone().find(|path| path.is_file());
    let built = built.expect("cargo build -p gpusim --bin mps-standin");
    let folder = world.root().join("control");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("standin.json"), options).unwrap();
    let program = folder.join("nvidia-cuda-mps-control");
    copy(&built, &program);
    program
}

/// Measures the steps whose numbers `wanted` accepts; step 0 is the device without MPS, 1 the shares under one server.
fn record(world: &World, options: &str, wanted: impl Fn(usize) -> bool) -> Record {
    paced(world, options, PACE, wanted)
}

fn paced(world: &World, options: &str, pace: Pace, wanted: impl Fn(usize) -> bool) -> Record {
    let step = Cell::new(0);
    let stop = || !wanted(step.replace(step.get() + 1));
    measure(&Plan {
        program: &world.program(),
        control: &control(world, options),
        folder: &world.root().join("prove"),
        device: &world.gpu(),
        pace,
        stop: &stop,
    })
}

fn measured<T>(outcome: &Outcome<T>) -> &T {
    match outcome {
        Outcome::Measured(it) => it,
        Outcome::NotMeasured(reason) => panic!("{reason}"),
    }
}

fn code<T: std::fmt::Debug>(result: &Result<T, Failure>) -> Option<i32> {
    result.as_ref().err().and_then(Failure::code)
}

/// CUDA's numbers after an event: of the victim, of the neighbour, and of newcomers.
fn codes(after: &After) -> [Option<i32>; 4] {
    [
        code(&after.victim),
        code(&after.neighbour),
        code(&after.newcomer),
        code(&after.newcomer_alone),
    ]
}

#[test]
fn shares_and_limits_are_measured() {
    let world = World::new("H100-80");
    let record = record(&world, "{}", |step| step < 5);
    let without = measured(&record.without);
    let (all, total) = (132, without.alone.memory_mib);
    assert_eq!(without.alone.multiprocessors, all);
    assert!(total - without.alone.largest.single_mib <= 2);
    assert!(without.beside.iter().all(Result::is_ok));

    let shares = measured(&record.one_server.shares);
    for (got, percent) in [(&shares.quarter, 25), (&shares.half, 50)] {
        let got = got.as_ref().unwrap();
        let count = all * percent / 100;
        assert_eq!((got.multiprocessors, got.blocks_on), (count, count));
        assert_eq!(got.affinity, Some(count));
        let limit = total * u64::from(percent) / 100;
        assert!(limit - got.largest.single_mib <= 3, "{got:?}");
        assert!(
            limit - got.free_mib <= 1 && got.memory_mib == total,
            "{got:?}"
        );
    }
    assert!(shares.at_once.iter().all(Result::is_ok));

    let limits = measured(&record.one_server.limits);
    let most = |name: &str| {
        let got = limits[name].got.as_ref().unwrap();
        (got.blocks_on, got.largest.single_mib * 100 / total + 1)
    };
    let half = (66, 50);
    assert_eq!(most("without_variables"), half);
    assert_eq!(most("above_the_server"), half);
    for name in ["of_another_number", "of_another_uuid", "device_by_number"] {
        assert!(limits[name].is_client, "{name}");
        assert_eq!(most(name).0, 33, "{name}");
    }
    assert_eq!((most("of_another_uuid").1, most("by_uuid").1), (50, 25));
    assert_eq!(code(&limits["no_limit"].got), Some(1));
    assert_eq!(most("without_mps"), (132, 100));
    assert!(!limits["without_mps"].is_client);

    let raised = measured(&record.one_server.raised);
    let parts = [&raised.before, &raised.defaults, &raised.server];
    let parts = parts.map(|got| got.as_ref().unwrap().blocks_on);
    assert_eq!(
        parts,
        [33, 33, 66],
        "only a running server's own limits count"
    );
    assert_eq!(raised.before_again.as_ref().unwrap().0, 33);

    let second = measured(&record.one_server.second_user);
    assert_eq!((&second.beside, &second.after), (&Ok(()), &None));
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    let said = [world.gpu(), world.root().display().to_string()];
    assert!(said.iter().all(|word| !text.contains(word)), "{text}");
    assert!(!world.root().join("prove").exists(), "the folder goes");
}

#[test]
fn events_are_measured() {
    let world = World::new("H100-80");
    let record = record(&world, "{}", |step| step == 0 || (5..12).contains(&step));
    let servers = &record.one_server;
    let none = [None; 4];
    let fault = measured(&servers.fault);
    assert_eq!(codes(fault), [Some(700), Some(719), Some(807), None]);
    let state = |status: &str, clients| State::Answers(vec![(status.to_owned(), clients)]);
    assert_eq!(fault.daemon, [state("FAULT", 2), state("ACTIVE", 0)]);

    let terminated = measured(&servers.terminated);
    assert_eq!(codes(terminated), [Some(810), None, None, None]);
    assert_eq!(terminated.answered, Some(true));
    assert_eq!(terminated.newcomers_are_clients, [true, true]);
    let killed = measured(&servers.killed);
    assert_eq!(killed.victim, Err(Failure::Ended("signal 9".into())));
    assert_eq!((codes(killed), killed.answered), (none, None));
    let shut_down = measured(&servers.shut_down);
    assert_eq!(codes(shut_down)[..2], [Some(806); 2]);
    assert_eq!(shut_down.daemon[0], State::Answers(Vec::new()));
    assert_eq!(shut_down.newcomers_are_clients, [true, true]);
    let orphaned = measured(&servers.killed_daemon);
    assert_eq!(codes(orphaned), none);
    assert_eq!(
        orphaned.newcomers_are_clients,
        [false, false],
        "without MPS"
    );
    assert_eq!(orphaned.daemon[0], State::Ended { servers: true });
    let quit = measured(&servers.quit_in_time);
    assert_eq!(quit.answered, Some(true));
    assert_eq!(codes(quit)[..2], [Some(806); 2]);
    assert_eq!(
        quit.daemon,
        [(); 2].map(|()| State::Ended { servers: false })
    );
    let patient = measured(&servers.quit);
    assert_eq!((patient.answered, codes(patient)), (Some(false), none));
}

#[test]
fn a_server_for_each_user_lets_the_second_one_wait() {
    let world = World::new("A30-24");
    let record = record(&world, "{}", |step| step == 0 || step >= 12);
    let servers = &record.server_per_user;
    let second = measured(&servers.second_user);
    assert_eq!(second.beside, Err(Failure::Silent { seconds: 3 }));
    assert_eq!(second.after, Some(Ok(())));
    let half = measured(&servers.shares).half.as_ref().unwrap();
    assert_eq!(half.blocks_on, 28);
    assert_eq!(codes(measured(&servers.terminated))[0], Some(810));
    assert_eq!(measured(&servers.quit).answered, Some(false));
    let text = serde_json::to_string(servers).unwrap();
    assert!(!text.contains("not_measured"), "{text}");
    let reason = "the run was stopped".to_owned();
    assert_eq!(record.one_server.shares, Outcome::NotMeasured(reason));
}

/// A falsified answer: of the stand-in for CUDA by its name, or the options of that for the control daemon.
struct Case {
    lie: &'static str,
    options: &'static str,
    /// The number of the step.
    step: usize,
    /// What it changes in the record.
    changes: &'static [&'static str],
}

const fn lie(lie: &'static str, step: usize, changes: &'static [&'static str]) -> Case {
    Case {
        lie,
        options: "{}",
        step,
        changes,
    }
}

const fn options(options: &'static str, step: usize, changes: &'static [&'static str]) -> Case {
    Case {
        lie: "",
        options,
        step,
        changes,
    }
}

const SHARES: &[Case] = &[
    lie("no_device", 0, &["/without"]),
    lie("memory", 0, &["/without/measured/alone/memory_mib"]),
    lie(
        "multiprocessors",
        1,
        &["/one_server/shares/measured/half/Ok/multiprocessors"],
    ),
    lie(
        "affinity",
        1,
        &["/one_server/shares/measured/quarter/Ok/affinity"],
    ),
    lie(
        "blocks",
        1,
        &["/one_server/shares/measured/quarter/Ok/blocks_on"],
    ),
    lie(
        "free_memory",
        1,
        &["/one_server/shares/measured/quarter/Ok/free_mib"],
    ),
    lie(
        "memory_limit",
        1,
        &[
            "/one_server/shares/measured/half/Ok/largest/single_mib",
            "/one_server/shares/measured/half/Ok/largest/pieces_mib",
        ],
    ),
    lie(
        "outside",
        1,
        &["/one_server/shares/measured/half/Ok/blocks_on"],
    ),
];

const LIMITS: &[Case] = &[
    lie(
        "uuid_limit",
        2,
        &["/one_server/limits/measured/of_another_uuid/got/Ok/largest"],
    ),
    lie(
        "outside",
        2,
        &["/one_server/limits/measured/without_variables/is_client"],
    ),
    lie("stubborn", 3, &["/one_server/raised/measured/server/Ok"]),
    lie(
        "defaults_reach",
        3,
        &["/one_server/raised/measured/defaults/Ok"],
    ),
    lie(
        "at_run_time",
        3,
        &["/one_server/raised/measured/before_again/Ok"],
    ),
    lie(
        "multiprocessors",
        3,
        &["/one_server/raised/measured/before/Ok"],
    ),
    lie("one_user", 4, &["/one_server/second_user/measured/beside"]),
    options(r#"{"multiuser": false}"#, 4, &["/one_server/second_user"]),
    lie(
        "one_user",
        15,
        &[
            "/server_per_user/second_user/measured/beside",
            "/server_per_user/second_user/measured/after",
        ],
    ),
];

const EVENTS: &[Case] = &[
    lie("contained", 5, &["/one_server/fault/measured/neighbour"]),
    lie(
        "faultless",
        5,
        &[
            "/one_server/fault/measured/victim",
            "/one_server/fault/measured/newcomer",
            "/one_server/fault/measured/daemon",
        ],
    ),
    lie(
        "survives_terminate",
        6,
        &["/one_server/terminated/measured/victim"],
    ),
    options(
        r#"{"hang": ["terminate_client"]}"#,
        6,
        &["/one_server/terminated/measured/answered"],
    ),
    lie(
        "killed_disturbs",
        7,
        &["/one_server/killed/measured/neighbour"],
    ),
    lie(
        "survives_server",
        8,
        &["/one_server/shut_down/measured/neighbour"],
    ),
    options(
        r#"{"hang": ["shutdown_server"]}"#,
        8,
        &[
            "/one_server/shut_down/measured/answered",
            "/one_server/shut_down/measured/victim",
            "/one_server/shut_down/measured/daemon",
        ],
    ),
    lie(
        "dies_with_daemon",
        9,
        &[
            "/one_server/killed_daemon/measured/victim",
            "/one_server/killed_daemon/measured/neighbour",
        ],
    ),
    lie(
        "no_fallback",
        9,
        &[
            "/one_server/killed_daemon/measured/newcomer",
            "/one_server/killed_daemon/measured/newcomer_alone",
        ],
    ),
    options(
        r#"{"hang": ["quit"]}"#,
        10,
        &[
            "/one_server/quit_in_time/measured/answered",
            "/one_server/quit_in_time/measured/newcomers_are_clients",
        ],
    ),
];

/// Each falsified answer changes the record where it says.
fn each_is_told(cases: &[Case]) {
    let world = World::new("H100-80");
    let of = |case: &Case, lies: &[&str], options: &str| -> Value {
        world.lie(lies);
        let record = record(&world, options, |step| [0, case.step].contains(&step));
        serde_json::to_value(&record).unwrap()
    };
    let mut truth: Option<(usize, Value)> = None;
    for case in cases {
        if truth.as_ref().is_none_or(|(step, _)| *step != case.step) {
            truth = Some((case.step, of(case, &[], "{}")));
        }
        let (_, truth) = truth.as_ref().unwrap();
        let lies: Vec<&str> = [case.lie]
            .into_iter()
            .filter(|lie| !lie.is_empty())
            .collect();
        let falsified = of(case, &lies, case.options);
        for place in case.changes {
            let [true_value, false_value] = [truth, &falsified].map(|it| it.pointer(place));
            assert!(true_value.is_some(), "{place}");
            let by = format!("{}{}", case.lie, case.options);
            assert_ne!(true_value, false_value, "{place}, falsified by {by}");
        }
    }
}

#[test]
fn a_falsified_share_is_told() {
    each_is_told(SHARES);
}

#[test]
fn a_falsified_limit_is_told() {
    each_is_told(LIMITS);
}

#[test]
fn a_falsified_end_is_told() {
    each_is_told(EVENTS);
}

#[test]
fn falsified_speeds_are_told() {
    let world = World::new("H100-80");
    // Long enough that it does not matter when the second of two processes starts.
    let pace = Pace {
        compute: Duration::from_millis(400),
        ..PACE
    };
    // Of a client with half of the device, and of a process that takes turns; each as a part of the whole device.
    let speeds = || {
        let record = paced(&world, "{}", pace, |step| step < 2);
        let without = measured(&record.without);
        let shares = measured(&record.one_server.shares);
        let half = shares.half.as_ref().unwrap().computed.unwrap();
        let parts = [half, *without.beside[0].as_ref().unwrap()];
        parts.map(|computed| computed.tflops / without.alone.computed.unwrap().tflops)
    };
    let [half, turn] = speeds();
    world.lie(&["slow", "turns"]);
    let [false_half, false_turn] = speeds();
    assert!(false_half < half / 3.0, "{half} {false_half}");
    assert!(false_turn < turn / 3.0, "{turn} {false_turn}");
}

#[test]
fn without_a_control_program_the_device_alone_is_measured() {
    let world = World::new("T4-16");
    let record = measure(&Plan {
        program: &world.program(),
        control: Path::new("/nonexistent"),
        folder: &world.root().join("prove"),
        device: &world.gpu(),
        pace: PACE,
        stop: &|| false,
    });
    assert!(record.without.measured().is_some());
    let Outcome::NotMeasured(reason) = &record.server_per_user.quit else {
        panic!("{record:?}");
    };
    assert!(reason.contains("/nonexistent"), "{reason}");
    let late = measure(&Plan {
        program: &world.program(),
        control: Path::new("/nonexistent"),
        folder: &world.root().join("prove"),
        device: &world.gpu(),
        pace: Pace {
            all: Duration::ZERO,
            ..PACE
        },
        stop: &|| false,
    });
    let over = "the time of all measurements was over".to_owned();
    assert_eq!(late.without, Outcome::NotMeasured(over));
}
