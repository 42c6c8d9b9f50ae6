//! Values that only one key has.

use std::time::Duration;

use super::error::Problem;
use super::read::Field;
use super::tables::PartitionRules;
use crate::count_name::CountName;
use crate::policy::{IdleWish, Mail, Policy, Reaper, Signal};
use crate::pool::PoolOptions;
use crate::rates::Millionths;
use crate::request::value::amount_of_memory;

/// The time between the signal for a checkpoint and the end of the job, if the file has none.
const DEFAULT_CHECKPOINT_TIME: Duration = Duration::from_secs(300);

pub(super) fn count_name(target: &mut CountName, item: &Field<'_>) {
    let Some(name) = item.string() else { return };
    let found = name.parse();
    let found = item.right(found.map_err(|source| Problem::CountName { name, source }));
    *target = found.unwrap_or_default();
}

pub(super) fn library(options: &mut PoolOptions, item: &Field<'_>) {
    // The dynamic linker splits LD_PRELOAD at colons and blanks.
    let ends = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    options.library = item.string_if(
        |value| value.starts_with('/') && !value.contains(ends),
        |value| Problem::LibraryPath { value },
    );
}

pub(super) fn cpus_per_gpu(rules: &mut PartitionRules, item: &Field<'_>) {
    rules.per_gpu.cpus = cpus(item);
}

pub(super) fn memory_per_gpu(rules: &mut PartitionRules, item: &Field<'_>) {
    rules.per_gpu.memory = memory(item);
}

pub(super) fn max_cpus_per_gpu(rules: &mut PartitionRules, item: &Field<'_>) {
    rules.max_per_gpu.cpus = cpus(item);
}

pub(super) fn max_memory_per_gpu(rules: &mut PartitionRules, item: &Field<'_>) {
    rules.max_per_gpu.memory = memory(item);
}

fn cpus(item: &Field<'_>) -> Option<u64> {
    let value = item.integer();
    item.right(match value.parse() {
        Ok(cpus @ 1..=65000) => Ok(cpus),
        _ => Err(Problem::CpusPerGpu { value }),
    })
}

/// MiB, as a number or as a text with a unit.
fn memory(item: &Field<'_>) -> Option<u64> {
    let value = item.number_or_text();
    let number = value.parse().ok().filter(|mib| *mib > 0);
    let mib = number.or_else(|| Some(amount_of_memory(&value)?.0));
    item.right(mib.ok_or(Problem::MemoryPerGpu { value }))
}

pub(super) fn metrics(reaper: &mut Reaper, item: &Field<'_>) {
    let value = item.string().filter(|value| value != "off");
    let parsed = value.map(|value| value.parse().map_err(|_| Problem::Address { value }));
    reaper.metrics = parsed.and_then(|parsed| item.right(parsed));
}

pub(super) fn dcgm_exporter(reaper: &mut Reaper, item: &Field<'_>) {
    let value = item.string();
    let parsed = value.map(|value| value.parse().map_err(|()| Problem::Url { value }));
    reaper.dcgm_exporter = parsed.and_then(|parsed| item.right(parsed));
}

pub(super) fn factor(target: &mut Millionths, item: &Field<'_>) {
    if let Some(factor) = item.price() {
        *target = factor;
    }
}

pub(super) fn mail_program(mail: &mut Mail, item: &Field<'_>) {
    mail.program = item.path();
    if mail.sendmail.is_some() {
        item.meaningless("a sendmail");
    }
}

pub(super) fn warnings(policy: &mut Policy, item: &Field<'_>) {
    let Some(items) = item.list() else { return };
    let mut warnings = Vec::new();
    for item in items {
        let Some(length) = item.duration() else {
            return;
        };
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
    policy.warn = warnings;
}

pub(super) fn signal(policy: &mut Policy, item: &Field<'_>) {
    let Some(word) = item.string() else { return };
    if word == "off" {
        policy.signal = None;
        return;
    }
    let usual = policy
        .signal
        .map_or(DEFAULT_CHECKPOINT_TIME, |(_, time)| time);
    let known = Signal::known();
    let signal = word.parse::<Signal>();
    if let Some(signal) = item.right(signal.map_err(|()| Problem::UnknownWord { word, known })) {
        policy.signal = Some((signal, usual));
    }
}

pub(super) fn checkpoint(policy: &mut Policy, item: &Field<'_>) {
    match (&mut policy.signal, item.duration()) {
        (Some((_, time)), Some(length)) => *time = length,
        (None, _) => item.meaningless("a policy without `signal`"),
        (_, None) => {}
    }
}

pub(super) fn idle_option(policy: &mut Policy, item: &Field<'_>) {
    let words = IdleWish::ALL.map(|wish| (wish.name(), wish));
    let Some(items) = item.list() else { return };
    let mut wishes = Vec::new();
    for item in items {
        let Some(wish) = item.one_of(&words) else {
            return;
        };
        wishes.push(wish);
    }
    // A job without the option has the wish `default`, so `default` must be allowed.
    if !wishes.contains(&IdleWish::Default) {
        wishes.insert(0, IdleWish::Default);
    }
    policy.idle_option = wishes;
}
