//! Reads the GPUs that an option asks for.

use super::decision::Decision;
use super::refusal::{FractionOption, RawReason, Refusal};
use crate::config::Config;
use crate::fraction::{Fraction, MAX_GPUS, Units};
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, Amount, Count, Item, Kind};
use crate::rounding::Demand;

/// The GPUs that the items of an option ask for.
pub(super) enum RequestedGpus<'a> {
    /// A fraction of a GPU.
    Fraction(RequestedFraction<'a>),
    /// `shard`, `mps` or `gpu`.
    Raw {
        name: &'static str,
        reason: RawReason,
        /// The number of GPUs, for `gpu`.
        gpus: u64,
    },
    /// No GPU of a pool; `none` if the request says so explicitly or names another GPU.
    Nothing { none: bool },
}

/// The origin of a fraction.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The request: the item at this index of its option.
    Item(usize),
    /// The `default` of this partition, for a job that asks for no GPU.
    Default(&'a str),
}

pub(super) struct RequestedFraction<'a> {
    pub(super) option: FractionOption,
    pub(super) origin: Origin<'a>,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) demand: Demand,
    /// The Type in a pair of counts that gpufrac wrote earlier.
    pub(super) type_name: Option<String>,
    /// The text as the user wrote it, for the note.
    pub(super) text: String,
}

/// Reads the items of an option.
pub(super) fn read<'a>(
    decision: &Decision<'_>,
    items: &[Item<'_>],
    option: FractionOption,
) -> Result<RequestedGpus<'a>, Refusal> {
    let (config, pools) = (decision.config, &decision.pools);
    let mut fractions = Vec::new();
    let (mut shards, mut gpus): (Vec<Count<'_>>, Vec<Count<'_>>) = (Vec::new(), Vec::new());
    let (mut mps, mut none) = (false, false);
    for (position, item) in items.iter().enumerate() {
        match item.kind {
            Kind::Gpufrac { mechanism, amount } => fractions.push((position, mechanism, amount)),
            // A count of zero is no request.
            Kind::Shard(count) if count.count != Some(0) => shards.push(count),
            Kind::Gpu(count) if count.count != Some(0) => gpus.push(count),
            Kind::Mps(count) if count.count != Some(0) => mps = true,
            Kind::None | Kind::Shard(_) | Kind::Mps(_) | Kind::Gpu(_) => none = true,
            Kind::Other => {}
        }
    }
    let (position, mechanism, amount) = match fractions.as_slice() {
        [] => return Ok(raw_or_nothing(&shards, mps, &gpus, none, config)),
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
            text: value_of(amount, text),
        }))
    };
    let written = || written(amount, text);
    if mps {
        return Err(Refusal::WithShares {
            name: "mps",
            amount: written(),
        });
    }
    let pair = |units| mechanism.is_none() && is_pair(units, &shards, &gpus, pools);
    match amount {
        // One unit is written like a whole GPU: `gpufrac:1`.
        Amount::Fraction(Fraction::ONE) if last_part(text) == "1" && pair(1) => {
            requested(Demand::Units(Units(1)))
        }
        Amount::Integer(units) if pair(units) && units <= u64::from(u32::MAX) => {
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            requested(Demand::Units(Units(units)))
        }
        Amount::Integer(_) if !shards.is_empty() && gpus.is_empty() => Ok(RequestedGpus::Raw {
            name: "shard",
            reason: RawReason::Unequal,
            gpus: 1,
        }),
        Amount::Integer(_) if !gpus.is_empty() => Err(Refusal::WithGpu { amount: written() }),
        Amount::Integer(gpus) => {
            let lending = pools.iter().filter(|pool| pool.lends_whole());
            let most = lending.map(|pool| pool.most_gpus()).max();
            let meant = percent(gpus).filter(|meant| is_given(*meant, pools));
            let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
            match (most, meant) {
                // Where no whole GPU is lent and no part was meant, that is the reason to give.
                (None, _) if gpus <= MAX_GPUS || meant.is_none() => requested(Demand::Gpus(gpus)),
                (Some(most), _) if gpus <= most => requested(Demand::Gpus(gpus)),
                (most, meant) => Err(Refusal::TooManyGpus {
                    text: request::quoted(text),
                    // As many GPUs as no node has were meant as a percentage.
                    most: most.filter(|_| meant.is_none() || gpus <= MAX_GPUS),
                    meant,
                }),
            }
        }
        _ if !gpus.is_empty() => Err(Refusal::WithGpu { amount: written() }),
        _ if !shards.is_empty() => Err(Refusal::WithShares {
            name: "shard",
            amount: written(),
        }),
        Amount::Fraction(fraction) | Amount::Percent(fraction) => {
            requested(Demand::Fraction(fraction))
        }
        Amount::Memory(memory) => requested(Demand::Memory(memory)),
    }
}

/// The value of an item for a message; units that were written earlier as a fraction.
fn written(amount: Amount, text: &str) -> String {
    let units = match amount {
        Amount::Integer(units) if units > MAX_GPUS.into() => percent(units),
        _ => None,
    };
    units.map_or_else(
        || request::quoted(&value_of(amount, text)),
        |it| it.to_string(),
    )
}

/// Whether one of the pools has a size for a fraction.
fn is_given(fraction: Fraction, pools: &[&Pool]) -> bool {
    let mut sizes = pools.iter().flat_map(|pool| &pool.layout.menu);
    sizes.any(|size| size.fraction.covers(fraction))
}

/// The fraction of a percentage.
fn percent(number: u64) -> Option<Fraction> {
    Fraction::new(u32::try_from(number).ok()?, 100).ok()
}

/// The amount as the user wrote it; a percentage as the fraction.
fn value_of(amount: Amount, text: &str) -> String {
    match amount {
        Amount::Percent(fraction) => fraction.to_string(),
        _ => last_part(text).to_owned(),
    }
}

fn last_part(text: &str) -> &str {
    text.rsplit([':', '=']).next().unwrap_or(text)
}

/// Whether units and counts are a pair that `decide` writes.
fn is_pair(units: u64, shards: &[Count<'_>], gpus: &[Count<'_>], pools: &[&Pool]) -> bool {
    match (shards, gpus) {
        ([shard], []) => {
            // The Type must be one of the pools. A share of a device that is only lent whole is never written by
            // `decide`.
            let mut parts = pools.iter().filter(|p| !p.is_never_shared());
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
            let gpus = u32::try_from(units)
                .ok()
                .and_then(|units| Units(units).gpus());
            let is_count = gpus.is_some_and(|gpus| gpu.count == Some(gpus.into()));
            is_count && gpu.type_name.is_some_and(lent)
        }
        _ => false,
    }
}

fn raw_or_nothing(
    shards: &[Count<'_>],
    mps: bool,
    gpus: &[Count<'_>],
    none: bool,
    config: &Config,
) -> RequestedGpus<'static> {
    if let Some(gpu) = gpus.iter().find(|gpu| !is_of_no_pool(gpu, config)) {
        let meant = gpu.count.is_none() || gpu.type_name.is_some_and(is_number);
        return RequestedGpus::Raw {
            name: "gpu",
            reason: if meant { RawReason::MeantFraction } else { RawReason::Plain },
            gpus: gpu.count.unwrap_or(1),
        };
    }
    if mps || !shards.is_empty() {
        return RequestedGpus::Raw {
            name: if mps { "mps" } else { "shard" },
            reason: RawReason::Plain,
            gpus: 1,
        };
    }
    RequestedGpus::Nothing {
        none: none || !gpus.is_empty(),
    }
}

/// Slurm takes `gpu:0.25` for a Type named 0.25; `2g.20gb` is a real Type.
fn is_number(type_name: &str) -> bool {
    type_name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b".%/".contains(&byte))
}

/// Whether the item asks for GPUs of a Type that no pool has. Slurm then gives devices of this Type only, which
/// gpufrac does not share.
pub(super) fn is_of_no_pool(gpus: &Count<'_>, config: &Config) -> bool {
    let other = |name: &str| !is_number(name) && !config.has_type(name);
    gpus.count.is_some() && gpus.type_name.is_some_and(other)
}
