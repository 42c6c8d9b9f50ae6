//! Reads `[reaper]` and `[reaper.rule.NAME]`.

use std::time::Duration;

use super::error::Problem;
use super::keys::{BREAKER, CONDITIONS, MAIL, POLICY, REAPER};
use super::read::Section;
use crate::policy::{Conditions, IdleWish, Policy, Reaper, Rule, Stall};

/// With fewer samples a window cannot show that a slice is idle.
const MIN_SAMPLES_PER_WINDOW: u32 = 3;

pub(super) fn read(section: &Section<'_>) -> Reaper {
    REAPER.check(section, &POLICY.names());
    let mut reaper = Reaper {
        is_written: true,
        ..Reaper::default()
    };
    REAPER.fill(section, &mut reaper);
    BREAKER.read(section, "breaker", &mut reaper.breaker);
    MAIL.read(section, "mail", &mut reaper.mail);
    reaper.general = policy(section, Policy::default(), reaper.interval);
    for table in section.children("rule") {
        CONDITIONS.check(&table, &POLICY.names());
        let base = Policy {
            name: table.own_name("reaper.rule"),
            ..reaper.general.clone()
        };
        let known = CONDITIONS.names();
        if known.iter().all(|key| table.get(key).is_none()) {
            let known = known.join(", ");
            table.wrong(Problem::ForEverybody { known });
        }
        let mut conditions = Conditions::default();
        CONDITIONS.fill(&table, &mut conditions);
        let policy = policy(&table, base, reaper.interval);
        reaper.rules.push(Rule { conditions, policy });
    }
    reaper
}

/// The policy `base` with the changes that the table makes.
fn policy(section: &Section<'_>, base: Policy, interval: Duration) -> Policy {
    let mut policy = base;
    let before = section.source.mistakes();
    POLICY.fill(section, &mut policy);
    // A rule that changes only the warnings keeps the windows of `[reaper]`, which are checked against the new
    // warnings.
    let first_warning = policy.warn.first().copied().unwrap_or_default();
    let unsaid = Policy::default();
    for stall in Stall::ALL {
        let window = policy.window(stall, IdleWish::Default);
        let is_unsaid = section.get(key_of(stall)).is_none()
            && window == unsaid.window(stall, IdleWish::Default);
        if is_unsaid && window.is_some_and(|window| window <= first_warning) {
            *window_of(&mut policy, stall) = Some(first_warning * 2);
        }
    }
    // A value that could not be read has its default here; an error about the default would name a line that nobody
    // wrote.
    if section.source.mistakes() == before {
        consistent(section, &policy, interval);
    }
    policy
}

/// The key of the window for a kind of stall.
fn key_of(stall: Stall) -> &'static str {
    match stall {
        Stall::NeverUsed => "never_used",
        Stall::Idle => "idle",
        Stall::Finished => "finished",
        Stall::OverShare => "over_share",
    }
}

fn window_of(policy: &mut Policy, stall: Stall) -> &mut Option<Duration> {
    match stall {
        Stall::NeverUsed => &mut policy.never_used,
        Stall::Idle => &mut policy.idle,
        Stall::Finished => &mut policy.finished,
        Stall::OverShare => &mut policy.over_share,
    }
}

/// Reports windows that are too short for the samples or the warnings.
fn consistent(section: &Section<'_>, policy: &Policy, interval: Duration) {
    let text = |length| humantime::format_duration(length).to_string();
    let first_warning = policy.warn.first().copied().unwrap_or_default();
    for stall in Stall::ALL {
        let Some(length) = policy.window(stall, IdleWish::Default) else {
            continue;
        };
        let key = key_of(stall);
        let mut keys = [key, "warn", "interval"].into_iter();
        let Some(item) = keys.find_map(|key| section.get(key)) else {
            // `off`: there is no window to check.
            continue;
        };
        let window = text(length);
        if length < interval * MIN_SAMPLES_PER_WINDOW {
            let interval = text(interval);
            item.wrong(Problem::ShortWindow {
                key,
                window,
                interval,
            });
        } else if length <= first_warning {
            let warning = text(first_warning);
            item.wrong(Problem::LateWarning {
                key,
                window,
                warning,
            });
        }
    }
}
