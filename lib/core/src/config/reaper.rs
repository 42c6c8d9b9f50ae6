//! Reads `[reaper]` and `[reaper.rule.NAME]`.

use std::net::SocketAddr;
use std::time::Duration;

use wildmatch::WildMatch;

use super::error::Problem;
use super::keys;
use super::read::{Field, Section};
use crate::policy::{
    Action, Breaker, Conditions, ExporterUrl, IdleWish, Mail, Mode, Policy, Reaper, Rule, Signal,
    Stall,
};

/// The time between the signal for a checkpoint and the end of the job, if the file has none.
const DEFAULT_CHECKPOINT_TIME: Duration = Duration::from_secs(300);
/// A sample reads the counters twice, 100 ms apart (nvml.h, GPM).
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// systemd kills the daemon after two minutes without a sign of life (WatchdogSec of the unit).
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// With fewer samples a window cannot show that a slice is idle.
const MIN_SAMPLES_PER_WINDOW: u32 = 3;

pub(super) fn read(section: &Section<'_>) -> Reaper {
    section.only(&[keys::REAPER, keys::POLICY]);
    let mut reaper = Reaper {
        is_written: true,
        ..Reaper::default()
    };
    section.set("interval", &mut reaper.interval, interval);
    if let Some(item) = section.get("metrics") {
        reaper.metrics = address(&item);
    }
    reaper.dcgm_exporter = section.read("dcgm_exporter", url);
    section.set("keep", &mut reaper.keep, Field::duration);
    section.set("reaps_per_hour", &mut reaper.reaps_per_hour, Field::count);
    if let Some(table) = section.read("breaker", Field::table) {
        breaker(&table, &mut reaper.breaker);
    }
    if let Some(table) = section.read("mail", Field::table) {
        reaper.mail = mail(&table);
    }
    let interval = reaper.interval;
    reaper.general = policy(section, Policy::default(), interval);
    for table in section.children("rule") {
        table.only(&[keys::CONDITIONS, keys::POLICY]);
        let base = Policy {
            name: table.own_name("reaper.rule"),
            ..reaper.general.clone()
        };
        let conditions = conditions(&table);
        let known: Vec<&str> = keys::CONDITIONS.iter().map(|key| key.0).collect();
        if known.iter().all(|key| table.get(key).is_none()) {
            let known = known.join(", ");
            table.wrong(Problem::ForEverybody { known });
        }
        let policy = policy(&table, base, interval);
        reaper.rules.push(Rule { conditions, policy });
    }
    reaper
}

fn interval(item: &Field<'_>) -> Option<Duration> {
    let length = item.duration()?;
    let value = humantime::format_duration(length).to_string();
    item.right(
        if (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&length) {
            Ok(length)
        } else {
            Err(Problem::Interval { value })
        },
    )
}

fn address(item: &Field<'_>) -> Option<SocketAddr> {
    let value = item.string()?;
    if value == "off" {
        return None;
    }
    let parsed = value.parse();
    item.right(parsed.map_err(|_| Problem::Address { value }))
}

fn url(item: &Field<'_>) -> Option<ExporterUrl> {
    let value = item.string()?;
    let parsed = value.parse();
    item.right(parsed.map_err(|_| Problem::Url { value }))
}

fn breaker(section: &Section<'_>, breaker: &mut Breaker) {
    section.only(&[keys::BREAKER]);
    section.set("node_share", &mut breaker.node_share, Field::whole_percent);
    section.set(
        "cluster_share",
        &mut breaker.cluster_share,
        Field::whole_percent,
    );
    section.set("least", &mut breaker.least, Field::count);
}

fn mail(section: &Section<'_>) -> Mail {
    section.only(&[keys::MAIL]);
    let (sendmail, program) = (
        section.read("sendmail", Field::path),
        section.read("program", Field::path),
    );
    if let (Some(item), true) = (section.get("program"), sendmail.is_some()) {
        let of = "a sendmail".to_owned();
        item.wrong(Problem::Meaningless { of });
    }
    // The words become part of a mail header or an argument of a command.
    let word = |item: &Field<'_>| {
        let value = item.string()?;
        item.right(
            if !value.starts_with('-') && value.chars().all(|c| c.is_ascii_graphic()) {
                Ok(value)
            } else {
                Err(Problem::MailWord { value })
            },
        )
    };
    Mail {
        sendmail,
        program,
        from: section.read("from", word),
        domain: section.read("domain", word),
        admins: section.read("admins", Field::texts).unwrap_or_default(),
        contact: section.read("contact", Field::string),
    }
}

fn conditions(section: &Section<'_>) -> Conditions {
    let list = |key: &str| -> Vec<WildMatch> {
        let texts = section.read(key, Field::texts).unwrap_or_default();
        texts.iter().map(|text| WildMatch::new(text)).collect()
    };
    Conditions {
        pools: list("pools"),
        partitions: list("partitions"),
        qos: list("qos"),
        accounts: list("accounts"),
        users: list("users"),
        reservations: list("reservations"),
        names: list("names"),
        interactive: section.read("interactive", Field::yes_or_no),
    }
}

/// The policy `base` with the changes that the table makes.
fn policy(section: &Section<'_>, base: Policy, interval: Duration) -> Policy {
    let mut policy = base;
    let before = section.source.mistakes();
    let modes = [
        ("off", Mode::Off),
        ("dry-run", Mode::DryRun),
        ("on", Mode::On),
    ];
    section.set("mode", &mut policy.mode, |item| item.one_of(&modes));
    section.set("grace", &mut policy.grace, Field::duration);
    for stall in Stall::ALL {
        let window = window_of(&mut policy, stall);
        section.set(key_of(stall), window, Field::duration_or_off);
    }
    section.set("busy_above", &mut policy.busy_above, Field::percent);
    section.set("cpu_busy_above", &mut policy.cpu_busy_above, Field::percent);
    section.set("warn", &mut policy.warn, warnings);
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
    signal(section, &mut policy);
    let actions = [
        ("requeue", Action::Requeue),
        ("requeue-hold", Action::RequeueHold),
        ("cancel", Action::Cancel),
    ];
    section.set("action", &mut policy.action, |item| item.one_of(&actions));
    section.set("long_factor", &mut policy.long_factor, Field::count);
    section.set("idle_option", &mut policy.idle_option, idle_option);
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

fn warnings(item: &Field<'_>) -> Option<Vec<Duration>> {
    let mut warnings = Vec::new();
    for item in item.list()? {
        let length = item.duration()?;
        let value = humantime::format_duration(length).to_string();
        if length.is_zero() {
            let or_off = false;
            item.wrong(Problem::Duration { value, or_off });
        } else if warnings.contains(&length) {
            item.wrong(Problem::Twice { value });
        }
        warnings.push(length);
    }
    warnings.sort();
    warnings.reverse();
    Some(warnings)
}

fn signal(section: &Section<'_>, policy: &mut Policy) {
    let usual = policy
        .signal
        .map_or(DEFAULT_CHECKPOINT_TIME, |(_, time)| time);
    section.set("signal", &mut policy.signal, |item| {
        let word = item.string()?;
        if word == "off" {
            return Some(None);
        }
        let known = Signal::known();
        let signal = word.parse::<Signal>();
        let signal = item.right(signal.map_err(|()| Problem::UnknownWord { word, known }))?;
        Some(Some((signal, usual)))
    });
    if let Some(item) = section.get("checkpoint") {
        match (&mut policy.signal, item.duration()) {
            (Some((_, time)), Some(length)) => *time = length,
            (None, _) => {
                let of = "a policy without `signal`".to_owned();
                item.wrong(Problem::Meaningless { of });
            }
            (_, None) => {}
        }
    }
}

fn idle_option(item: &Field<'_>) -> Option<Vec<IdleWish>> {
    let words = IdleWish::ALL.map(|wish| (wish.name(), wish));
    let mut wishes = Vec::new();
    for item in item.list()? {
        wishes.push(item.one_of(&words)?);
    }
    // A job without the option has the wish `default`, so `default` must be allowed.
    if !wishes.contains(&IdleWish::Default) {
        wishes.insert(0, IdleWish::Default);
    }
    Some(wishes)
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
