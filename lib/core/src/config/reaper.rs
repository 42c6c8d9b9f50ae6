//! Reads `[reaper]` and `[reaper.rule.NAME]`.

use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;
use wildmatch::WildMatch;

use super::error::Problem;
use super::options::one_of;
use super::read::{Field, Section, Source};
use crate::policy::{
    Action, Breaker, Conditions, ExporterUrl, IdleWish, Mail, Mode, Policy, Reaper, Rule, Signal,
    Stall,
};

/// Keys of the daemon itself, only in `[reaper]`.
const OWN_KEYS: [&str; 8] = [
    "interval",
    "metrics",
    "dcgm_exporter",
    "keep",
    "reaps_per_hour",
    "breaker",
    "mail",
    "rule",
];

/// Keys of a policy: in `[reaper]` for all jobs, in a rule for the jobs that match its conditions.
const POLICY_KEYS: [&str; 14] = [
    "mode",
    "grace",
    "never_used",
    "idle",
    "finished",
    "over_share",
    "busy_above",
    "cpu_busy_above",
    "warn",
    "signal",
    "checkpoint",
    "action",
    "long_factor",
    "idle_option",
];

/// Keys of a rule that are its conditions.
const CONDITION_KEYS: [&str; 8] = [
    "pools",
    "partitions",
    "qos",
    "accounts",
    "users",
    "reservations",
    "names",
    "interactive",
];

/// The time between the signal for a checkpoint and the end of the job, if the file has none.
const DEFAULT_CHECKPOINT_TIME: Duration = Duration::from_secs(300);
/// A sample reads the counters twice, 100 ms apart (nvml.h, GPM).
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// systemd kills the daemon after two minutes without a sign of life (WatchdogSec of the unit).
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// With fewer samples a window cannot show that a slice is idle.
const MIN_SAMPLES_PER_WINDOW: u32 = 3;

pub(super) fn read(source: &mut Source<'_>, section: &Section<'_, '_>) -> Reaper {
    section.only(source, &[OWN_KEYS.as_slice(), &POLICY_KEYS].concat());
    let mut reaper = Reaper {
        is_written: true,
        ..Reaper::default()
    };
    if let Some(item) = section.get("interval") {
        let range = SHORTEST_INTERVAL..=LONGEST_INTERVAL;
        match item.duration(source) {
            Some(length) if !range.contains(&length) => {
                let value = humantime::format_duration(length).to_string();
                item.wrong(source, Problem::Interval { value });
            }
            Some(length) => reaper.interval = length,
            None => {}
        }
    }
    if let Some(item) = section.get("metrics") {
        reaper.metrics = address(source, &item);
    }
    if let Some(item) = section.get("dcgm_exporter") {
        reaper.dcgm_exporter = url(source, &item);
    }
    if let Some(item) = section.get("keep") {
        reaper.keep = item.duration(source).unwrap_or(reaper.keep);
    }
    if let Some(item) = section.get("reaps_per_hour") {
        reaper.reaps_per_hour = item.count(source).unwrap_or(reaper.reaps_per_hour);
    }
    if let Some(table) = section.get("breaker").and_then(|item| item.table(source)) {
        reaper.breaker = breaker(source, &table, reaper.breaker);
    }
    if let Some(table) = section.get("mail").and_then(|item| item.table(source)) {
        reaper.mail = mail(source, &table);
    }
    let interval = reaper.interval;
    reaper.general = policy(source, section, Policy::default(), interval);
    for table in section.children(source, "rule") {
        table.only(source, &[CONDITION_KEYS.as_slice(), &POLICY_KEYS].concat());
        let base = Policy {
            name: name_of(&table),
            ..reaper.general.clone()
        };
        let conditions = conditions(source, &table);
        if CONDITION_KEYS.iter().all(|key| table.get(key).is_none()) {
            let known = CONDITION_KEYS.join(", ");
            source.error(
                &table.at,
                table.name.clone(),
                Problem::ForEverybody { known },
            );
        }
        let policy = policy(source, &table, base, interval);
        reaper.rules.push(Rule { conditions, policy });
    }
    reaper
}

/// NAME of `[reaper.rule.NAME]`.
fn name_of(section: &Section<'_, '_>) -> String {
    let name = section.name.strip_prefix("reaper.rule.");
    name.unwrap_or(&section.name).to_owned()
}

fn address(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<SocketAddr> {
    let text = item.text(source)?;
    if text == "off" {
        return None;
    }
    let parsed = text.parse();
    if parsed.is_err() {
        let value = text.to_owned();
        item.wrong(source, Problem::Address { value });
    }
    parsed.ok()
}

fn url(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<ExporterUrl> {
    let text = item.text(source)?;
    let url = text.parse();
    if url.is_err() {
        let value = text.to_owned();
        item.wrong(source, Problem::Url { value });
    }
    url.ok()
}

fn breaker(source: &mut Source<'_>, section: &Section<'_, '_>, unless_said: Breaker) -> Breaker {
    section.only(source, &["node_share", "cluster_share", "least"]);
    let mut share = |key: &str, unless_said: u8| {
        let value = section.get(key).and_then(|item| item.whole_percent(source));
        value.unwrap_or(unless_said)
    };
    Breaker {
        node_share: share("node_share", unless_said.node_share),
        cluster_share: share("cluster_share", unless_said.cluster_share),
        least: section
            .get("least")
            .and_then(|item| item.count(source))
            .unwrap_or(unless_said.least),
    }
}

fn mail(source: &mut Source<'_>, section: &Section<'_, '_>) -> Mail {
    let known = ["sendmail", "program", "from", "domain", "admins", "contact"];
    section.only(source, &known);
    let mut path = |key: &str| {
        let item = section.get(key)?;
        let text = item.text(source)?.to_owned();
        if text.starts_with('/') {
            return Some(text);
        }
        item.wrong(source, Problem::RelativePath { value: text });
        None
    };
    let (sendmail, program) = (path("sendmail"), path("program"));
    if let (Some(item), true) = (section.get("program"), sendmail.is_some()) {
        let of = "a sendmail".to_owned();
        item.wrong(source, Problem::Meaningless { of });
    }
    // The words become part of a mail header or an argument of a command.
    let mut word = |key: &str| {
        let item = section.get(key)?;
        let text = item.text(source)?.to_owned();
        if !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic()) {
            return Some(text);
        }
        item.wrong(source, Problem::MailWord { value: text });
        None
    };
    let (from, domain) = (word("from"), word("domain"));
    let admins = section
        .get("admins")
        .and_then(|item| item.texts(source))
        .unwrap_or_default();
    let contact = section.get("contact").and_then(|item| item.text(source));
    Mail {
        sendmail,
        program,
        from,
        domain,
        admins: admins.into_iter().map(str::to_owned).collect(),
        contact: contact.map(str::to_owned),
    }
}

fn conditions(source: &mut Source<'_>, section: &Section<'_, '_>) -> Conditions {
    let mut list = |key: &str| -> Vec<WildMatch> {
        let item = section.get(key);
        let texts = item.and_then(|item| item.texts(source)).unwrap_or_default();
        texts.into_iter().map(WildMatch::new).collect()
    };
    Conditions {
        pools: list("pools"),
        partitions: list("partitions"),
        qos: list("qos"),
        accounts: list("accounts"),
        users: list("users"),
        reservations: list("reservations"),
        names: list("names"),
        interactive: section
            .get("interactive")
            .and_then(|item| item.yes_or_no(source)),
    }
}

/// The policy `base` with the changes that the table makes.
fn policy(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    base: Policy,
    interval: Duration,
) -> Policy {
    let mut policy = base;
    let before = source.errors.len();
    if let Some(item) = section.get("mode") {
        let words = [
            ("off", Mode::Off),
            ("dry-run", Mode::DryRun),
            ("on", Mode::On),
        ];
        policy.mode = one_of(source, &item, &words).unwrap_or(policy.mode);
    }
    if let Some(item) = section.get("grace") {
        policy.grace = item.duration(source).unwrap_or(policy.grace);
    }
    for stall in Stall::ALL {
        let Some(item) = section.get(key_of(stall)) else {
            continue;
        };
        let Some(length) = item.duration_or_off(source) else {
            continue;
        };
        *window_of(&mut policy, stall) = length;
    }
    for (key, target) in [
        ("busy_above", &mut policy.busy_above),
        ("cpu_busy_above", &mut policy.cpu_busy_above),
    ] {
        if let Some(item) = section.get(key) {
            *target = item.percent(source).unwrap_or(*target);
        }
    }
    if let Some(item) = section.get("warn") {
        policy.warn = warnings(source, &item).unwrap_or(policy.warn);
    }
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
    signal(source, section, &mut policy);
    if let Some(item) = section.get("action") {
        let words = [
            ("requeue", Action::Requeue),
            ("requeue-hold", Action::RequeueHold),
            ("cancel", Action::Cancel),
        ];
        policy.action = one_of(source, &item, &words).unwrap_or(policy.action);
    }
    if let Some(item) = section.get("long_factor") {
        policy.long_factor = item.count(source).unwrap_or(policy.long_factor);
    }
    if let Some(item) = section.get("idle_option") {
        policy.idle_option = idle_option(source, &item).unwrap_or(policy.idle_option);
    }
    // A value that could not be read has its default here; an error about the default would name a line that nobody
    // wrote.
    if source.errors.len() == before {
        consistent(source, section, &policy, interval);
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

fn warnings(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<Vec<Duration>> {
    let mut warnings = Vec::new();
    for item in item.list(source)? {
        let length = item.duration(source)?;
        let value = humantime::format_duration(length).to_string();
        if length.is_zero() {
            item.wrong(
                source,
                Problem::Duration {
                    value,
                    or_off: false,
                },
            );
        } else if warnings.contains(&length) {
            item.wrong(source, Problem::Twice { value });
        }
        warnings.push(length);
    }
    warnings.sort();
    warnings.reverse();
    Some(warnings)
}

fn signal(source: &mut Source<'_>, section: &Section<'_, '_>, policy: &mut Policy) {
    if let Some(item) = section.get("signal")
        && let Some(word) = item.text(source)
    {
        policy.signal = match word.parse::<Signal>() {
            _ if word == "off" => None,
            Ok(signal) => Some((
                signal,
                policy
                    .signal
                    .map_or(DEFAULT_CHECKPOINT_TIME, |(_, time)| time),
            )),
            Err(()) => {
                let (word, known) = (word.to_owned(), Signal::known());
                item.wrong(source, Problem::UnknownWord { word, known });
                policy.signal
            }
        };
    }
    if let Some(item) = section.get("checkpoint") {
        match (&mut policy.signal, item.duration(source)) {
            (Some((_, time)), Some(length)) => *time = length,
            (None, _) => {
                let of = "a policy without `signal`".to_owned();
                item.wrong(source, Problem::Meaningless { of });
            }
            (_, None) => {}
        }
    }
}

fn idle_option(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<Vec<IdleWish>> {
    let words = IdleWish::ALL.map(|wish| (wish.name(), wish));
    let mut wishes = Vec::new();
    for item in item.list(source)? {
        wishes.push(one_of(source, &item, &words)?);
    }
    // A job without the option has the wish `default`, so `default` must be allowed.
    if !wishes.contains(&IdleWish::Default) {
        wishes.insert(0, IdleWish::Default);
    }
    Some(wishes)
}

/// Reports windows that are too short for the samples or the warnings.
fn consistent(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    policy: &Policy,
    interval: Duration,
) {
    let first_warning = policy.warn.first().copied().unwrap_or_default();
    for stall in Stall::ALL {
        let Some(window) = policy.window(stall, IdleWish::Default) else {
            continue;
        };
        let key = key_of(stall);
        let Some(item) = [key, "warn", "interval"]
            .into_iter()
            .find_map(|key| section.get(key))
        else {
            // `off`: there is no window to check.
            continue;
        };
        let text = |length| humantime::format_duration(length).to_string();
        if window < interval * MIN_SAMPLES_PER_WINDOW {
            let (window, interval) = (text(window), text(interval));
            item.wrong(
                source,
                Problem::ShortWindow {
                    key,
                    window,
                    interval,
                },
            );
        } else if window <= first_warning {
            let (window, warning) = (text(window), text(first_warning));
            item.wrong(
                source,
                Problem::LateWarning {
                    key,
                    window,
                    warning,
                },
            );
        }
    }
}

impl Field<'_, '_> {
    fn percent(&self, source: &mut Source<'_>) -> Option<f64> {
        let text = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        match text.parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Some(percent),
            _ => {
                self.wrong(source, Problem::Percentage { value: text });
                None
            }
        }
    }

    fn whole_percent(&self, source: &mut Source<'_>) -> Option<u8> {
        let percent = self.percent(source)?;
        if percent.fract() == 0.0 {
            return Some(percent as u8);
        }
        let value = percent.to_string();
        self.wrong(source, Problem::WholePercentage { value });
        None
    }
}
