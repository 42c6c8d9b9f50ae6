//! What the texts of a request ask for together.

use super::conflicts::{self, Elsewhere};
use super::destination::Destination;
use super::job::{JobRequest, Occasion};
use super::refusal::{FractionOption, RawReason, Refusal};
use super::tasks;
use super::texts::Texts;
use crate::config::Config;
use crate::fraction::{Fraction, Units};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, Amount, Count, Item, Kind};
use crate::rounding::Demand;

/// What the items of an option ask for.
pub(super) enum RequestedGpus<'a> {
    /// A fraction of a GPU.
    Fraction(RequestedFraction<'a>),
    /// `shard` or `gpu` as they are.
    Raw {
        name: &'static str,
        reason: RawReason,
    },
    /// No GPU of a pool; `none` when it says so, or names another.
    Nothing { none: bool },
}

/// Where a fraction comes from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The request: the item at this position of its option.
    Item(usize),
    /// The rules of this partition, for a job that asks for no GPU.
    Default(&'a str),
}

/// A fraction that is to be given.
pub(super) struct RequestedFraction<'a> {
    pub(super) option: FractionOption,
    pub(super) origin: Origin<'a>,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) demand: Demand,
    /// A pair that was written before: the Type in it.
    pub(super) type_name: Option<String>,
    /// As the user wrote it, for the note.
    pub(super) text: String,
}

/// The fraction that a request asks for, or that its partition gives without being asked; None where the request is
/// Slurm's alone.
///
/// # Errors
/// What stands against the request, whatever its size.
pub(super) fn of<'a>(
    config: &'a Config,
    destination: &Destination<'a>,
    request: &JobRequest<'_>,
    texts: &Texts<'_>,
    occasion: Occasion,
) -> Result<Option<RequestedFraction<'a>>, Refusal> {
    let option = texts.option();
    let items = texts.of(option);
    if option == FractionOption::TresPerTask {
        tasks::refuse_spelling(request, items)?;
    }
    let requested = read(items, option, &destination.pools, config)?;
    let elsewhere = conflicts::elsewhere(request, texts.beside(option), config)?;
    match requested {
        RequestedGpus::Fraction(fraction) => {
            if option == FractionOption::TresPerTask {
                tasks::alone(config, destination, texts, occasion)?;
            }
            conflicts::fraction_alone(config, destination, request, &elsewhere)?;
            Ok(Some(fraction))
        }
        RequestedGpus::Raw {
            reason: RawReason::Unequal,
            ..
        } if destination.pools.is_empty() => Err(conflicts::not_served(config, request)),
        RequestedGpus::Raw { name, reason } => {
            conflicts::refuse_raw(config, destination, occasion, name, reason)?;
            Ok(None)
        }
        RequestedGpus::Nothing { none } => {
            if let Some(name) = elsewhere.raw {
                conflicts::refuse_raw(config, destination, occasion, name, RawReason::Plain)?;
                return Ok(None);
            }
            let named = items
                .iter()
                .chain(texts.beside(option).map(|(_, item)| item));
            conflicts::refuse_unknown_type(config, destination, request, occasion, named)?;
            let silent = !none && is_silent(request, &elsewhere);
            // Where one partition has no GPUs to give, a job that wants none may well be meant for that one.
            let sure = occasion == Occasion::Submit && destination.named && !destination.others;
            Ok((silent && sure)
                .then(|| default(config, destination))
                .flatten())
        }
    }
}

/// Whether nothing in a request speaks of GPUs, or keeps shares of them away.
fn is_silent(request: &JobRequest<'_>, elsewhere: &Elsewhere) -> bool {
    !elsewhere.any
        && !request.exclusive
        && !request.core_spec
        && conflicts::bound_to_gpu(request).is_none()
}

/// What the partitions give to a job that asks for no GPU.
fn default<'a>(config: &Config, destination: &Destination<'a>) -> Option<RequestedFraction<'a>> {
    let defaults = destination.partitions.iter().filter_map(|partition| {
        let default = config.rules(partition)?.default?;
        Some((*partition, default))
    });
    let (partition, default) = defaults.max_by_key(|(_, default)| *default)?;
    Some(RequestedFraction {
        option: FractionOption::Gres,
        origin: Origin::Default(partition),
        mechanism: None,
        demand: Demand::Fraction(default),
        type_name: None,
        text: default.to_string(),
    })
}

/// Reads the items of an option.
pub(super) fn read<'a>(
    items: &[Item<'_>],
    option: FractionOption,
    pools: &[&Pool],
    config: &Config,
) -> Result<RequestedGpus<'a>, Refusal> {
    let mut fractions = Vec::new();
    let (mut shards, mut gpus): (Vec<Count<'_>>, Vec<Count<'_>>) = (Vec::new(), Vec::new());
    let mut none = false;
    for (position, item) in items.iter().enumerate() {
        match item.kind {
            Kind::Gpufrac { mechanism, amount } => fractions.push((position, mechanism, amount)),
            // No count of it is no request.
            Kind::Shard(count) if count.count != Some(0) => shards.push(count),
            Kind::Gpu(count) if count.count != Some(0) => gpus.push(count),
            Kind::None | Kind::Shard(_) | Kind::Gpu(_) => none = true,
            Kind::Other => {}
        }
    }
    let (position, mechanism, amount) = match fractions.as_slice() {
        [] => return Ok(raw_or_nothing(&shards, &gpus, none, config)),
        [one] => *one,
        [_, _, ..] => return Err(Refusal::TwoFractions),
    };
    if items.iter().any(|item| item.kind == Kind::None) {
        return Err(Refusal::WithNone);
    }
    let text = items.get(position).map_or("", |item| item.text);
    let mut counts = shards.iter().chain(&gpus);
    let mut requested = |demand| {
        Ok(RequestedGpus::Fraction(RequestedFraction {
            option,
            origin: Origin::Item(position),
            mechanism,
            demand,
            type_name: counts.find_map(|count| count.type_name).map(str::to_owned),
            text: last_part(text).to_owned(),
        }))
    };
    let pair = |units| mechanism.is_none() && is_pair(units, &shards, &gpus, pools);
    match amount {
        // One unit prints as a whole GPU does.
        Amount::Fraction(Fraction::ONE) if last_part(text) == "1" && pair(1) => {
            requested(Demand::Units(Units(1)))
        }
        Amount::Units(units) => {
            if pair(units)
                && let Ok(units) = u32::try_from(units)
            {
                return requested(Demand::Units(Units(units)));
            }
            if !shards.is_empty() && gpus.is_empty() {
                return Ok(RequestedGpus::Raw {
                    name: "shard",
                    reason: RawReason::Unequal,
                });
            }
            if !gpus.is_empty() {
                return Err(Refusal::WithGpu);
            }
            Err(Refusal::OverOne {
                text: request::quoted(text),
                meant: u32::try_from(units)
                    .ok()
                    .and_then(|units| Fraction::new(units, 100).ok()),
            })
        }
        _ if !gpus.is_empty() => Err(Refusal::WithGpu),
        _ if !shards.is_empty() => Err(Refusal::WithShard),
        Amount::Fraction(fraction) => requested(Demand::Fraction(fraction)),
        Amount::Memory(memory) => requested(Demand::Memory(memory)),
    }
}

fn last_part(text: &str) -> &str {
    text.rsplit([':', '=']).next().unwrap_or(text)
}

/// Whether units and counts are what `decide` writes.
fn is_pair(units: u64, shards: &[Count<'_>], gpus: &[Count<'_>], pools: &[&Pool]) -> bool {
    match (shards, gpus) {
        ([shard], []) => {
            // A type must be one that the pools have; a share of a whole device is none of ours.
            let mut parts = pools.iter().filter(|p| p.layout.kind != LayoutKind::Whole);
            let known = match (units, shard.type_name) {
                (..100, None) => true,
                (..100, Some(name)) => parts.any(|pool| pool.type_name() == name),
                (100, Some(name)) => parts.any(|p| p.type_name() == name && p.lends_whole()),
                _ => false,
            };
            known && shard.count == Some(units)
        }
        ([], [gpu]) => {
            let lent = |name: &str| {
                let mut pools = pools.iter().filter(|pool| pool.lends_whole());
                pools.any(|pool| pool.type_name() == name)
            };
            units == 100 && gpu.count == Some(1) && gpu.type_name.is_some_and(lent)
        }
        _ => false,
    }
}

fn raw_or_nothing(
    shards: &[Count<'_>],
    gpus: &[Count<'_>],
    none: bool,
    config: &Config,
) -> RequestedGpus<'static> {
    if let Some(gpu) = gpus.iter().find(|gpu| !is_of_no_pool(gpu, config)) {
        let meant = gpu.count.is_none() || gpu.type_name.is_some_and(is_number);
        return RequestedGpus::Raw {
            name: "gpu",
            reason: if meant {
                RawReason::MeantFraction
            } else {
                RawReason::Plain
            },
        };
    }
    if !shards.is_empty() {
        return RequestedGpus::Raw {
            name: "shard",
            reason: RawReason::Plain,
        };
    }
    RequestedGpus::Nothing {
        none: none || !gpus.is_empty(),
    }
}

/// Slurm takes `gpu:0.25` for a type named 0.25. `2g.20gb` is one.
fn is_number(type_name: &str) -> bool {
    type_name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b".%/".contains(&byte))
}

/// Whether GPUs of a Type are asked for that no pool has. Slurm gives devices of that Type alone, which are
/// not ours to share.
pub(super) fn is_of_no_pool(gpus: &Count<'_>, config: &Config) -> bool {
    let other = |name: &str| !is_number(name) && !config.has_type(name);
    gpus.count.is_some() && gpus.type_name.is_some_and(other)
}
