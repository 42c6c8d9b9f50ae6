//! Which rule holds for which job.

use super::*;

fn rule(name: &str, conditions: Conditions, idle_option: &[IdleWish]) -> Rule {
    Rule {
        conditions,
        policy: Policy {
            name: name.into(),
            idle_option: idle_option.to_vec(),
            ..Policy::default()
        },
    }
}

fn patterns(words: &[&str]) -> Vec<WildMatch> {
    words.iter().map(|word| WildMatch::new(word)).collect()
}

fn reaper() -> Reaper {
    let physics = Conditions {
        accounts: patterns(&["phys*"]),
        ..Conditions::default()
    };
    let notebooks = Conditions {
        interactive: Some(true),
        partitions: patterns(&["gpu"]),
        ..Conditions::default()
    };
    Reaper {
        rules: vec![
            rule("physics", physics, &IdleWish::ALL),
            rule("notebooks", notebooks, &[IdleWish::Default]),
        ],
        ..Reaper::default()
    }
}

#[test]
fn the_first_rule_that_matches_holds() {
    let reaper = reaper();
    let mut facts = Facts {
        partition: Some("gpu"),
        account: Some("physics"),
        interactive: Some(true),
        ..Facts::default()
    };
    assert_eq!(reaper.policy(&facts).name, "physics");
    facts.account = Some("chem");
    assert_eq!(reaper.policy(&facts).name, "notebooks");
    facts.interactive = Some(false);
    assert_eq!(reaper.policy(&facts).name, "");
    // A job without an account does not match `*` either.
    facts.account = Some("");
    let all = Conditions {
        accounts: patterns(&["*"]),
        ..Conditions::default()
    };
    assert_eq!(all.hold(&facts), Some(false));
}

#[test]
fn a_wish_is_allowed_as_long_as_a_rule_that_allows_it_may_hold() {
    let reaper = reaper();
    let unknown = Facts::default();
    assert!(reaper.allows(&unknown, IdleWish::Off));
    let chemist = Facts {
        account: Some("chem"),
        ..unknown
    };
    assert!(!reaper.allows(&chemist, IdleWish::Off));
    assert_eq!(
        reaper.allowed(&chemist),
        [IdleWish::Default, IdleWish::Long]
    );
    let notebook = Facts {
        partition: Some("gpu"),
        interactive: Some(true),
        ..chemist
    };
    assert_eq!(reaper.allowed(&notebook), [IdleWish::Default]);
}

#[test]
fn a_wish_changes_the_windows_but_not_that_for_taking_too_much() {
    let policy = Policy::default();
    let idle = policy.idle.unwrap();
    let window = |stall, wish| policy.window(stall, wish);
    assert_eq!(window(Stall::Idle, IdleWish::Default), Some(idle));
    assert_eq!(window(Stall::Idle, IdleWish::Long), Some(idle * 4));
    assert_eq!(window(Stall::Idle, IdleWish::Off), None);
    for wish in IdleWish::ALL {
        assert_eq!(window(Stall::OverShare, wish), policy.over_share);
    }
    assert_eq!(policy.granted(IdleWish::Off), IdleWish::Default);
    assert_eq!(policy.granted(IdleWish::Long), IdleWish::Long);
}
