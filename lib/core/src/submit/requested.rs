//! What the texts of a request ask for together.

use super::job::JobRequest;
use super::refusal::{FractionOption, RawReason, Refusal};
use crate::config::Config;
use crate::fraction::{Fraction, Units};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, Amount, Count, Item, Kind};
use crate::rounding::Demand;

/// What `tres_per_node` asks for.
pub(super) enum RequestedGpus {
    /// A fraction of a GPU.
    Fraction(RequestedFraction),
    /// `shard` or `gpu` as they are.
    Raw {
        name: &'static str,
        reason: RawReason,
    },
    /// No GPU of a pool; `none` when it says so, or names another.
    Nothing { none: bool },
}

/// A fraction, and where it stands in the list.
pub(super) struct RequestedFraction {
    pub(super) option: FractionOption,
    pub(super) position: usize,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) demand: Demand,
    /// A pair that was written before: the Type in it.
    pub(super) type_name: Option<String>,
    /// As the user wrote it, for the note.
    pub(super) text: String,
}

/// Reads the items of an option.
pub(super) fn read(
    items: &[Item<'_>],
    option: FractionOption,
    pools: &[&Pool],
    config: &Config,
) -> Result<RequestedGpus, Refusal> {
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
        _ => return Err(Refusal::TwoFractions),
    };
    let text = items.get(position).map_or("", |item| item.text);
    let mut counts = shards.iter().chain(&gpus);
    let mut requested = |demand| {
        Ok(RequestedGpus::Fraction(RequestedFraction {
            option,
            position,
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
            let known = |name: &str| {
                let mut parts = pools.iter().filter(|p| p.layout.kind != LayoutKind::Whole);
                parts.any(|pool| pool.type_name() == name)
            };
            // A whole GPU is never counted in shards.
            units < 100 && shard.count == Some(units) && shard.type_name.is_none_or(known)
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
) -> RequestedGpus {
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

/// Slurm takes `gpu:0.25` for a type named 0.25.
fn is_number(type_name: &str) -> bool {
    type_name.starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// Whether GPUs of a Type are asked for that no pool has. Slurm gives devices of that Type alone, which are
/// not ours to share.
fn is_of_no_pool(gpus: &Count<'_>, config: &Config) -> bool {
    let other = |name: &str| !is_number(name) && !config.has_type(name);
    gpus.count.is_some() && gpus.type_name.is_some_and(other)
}

/// What the options ask for that do not count per node.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// The option that asks for a GPU.
    pub(super) gpu: Option<&'static str>,
    /// `gpu` or `shard`, when one is asked for that may be of a pool.
    pub(super) raw: Option<&'static str>,
    /// Whether one of them says anything of a GPU, `gpu:0` included.
    pub(super) any: bool,
}

/// Reads the texts that do not count per node. A fraction there is refused: it could not
/// be kept apart from one GPU for the whole job.
pub(super) fn elsewhere(request: &JobRequest<'_>, config: &Config) -> Result<Elsewhere, Refusal> {
    let texts = [
        ("--gpus", request.tres_per_job),
        ("--gpus-per-socket", request.tres_per_socket),
        ("--gpus-per-task or --tres-per-task", request.tres_per_task),
    ];
    let mut found = Elsewhere::default();
    if request.tasks_per_gpu {
        found = Elsewhere {
            gpu: Some("--ntasks-per-gpu"),
            raw: Some("gpu"),
            any: true,
        };
    }
    for (option, text) in texts {
        for item in request::parse(text.unwrap_or(""))? {
            let (name, count) = match item.kind {
                Kind::Gpufrac { .. } => return Err(Refusal::NotPerNode { option }),
                Kind::Gpu(count) => ("gpu", count),
                Kind::Shard(count) => ("shard", count),
                Kind::None | Kind::Other => continue,
            };
            found.any = true;
            if count.count != Some(0) {
                found.gpu = found.gpu.or(Some(option));
                if name != "gpu" || !is_of_no_pool(&count, config) {
                    found.raw = found.raw.or(Some(name));
                }
            }
        }
    }
    Ok(found)
}

/// The option that ties something to whole GPUs, which Slurm refuses together with shards.
pub(super) fn bound_to_gpu(request: &JobRequest<'_>) -> Option<&'static str> {
    let texts = [
        ("--cpus-per-gpu", request.cpus_per_tres),
        ("--mem-per-gpu", request.mem_per_tres),
        ("--gpu-freq", request.tres_freq),
    ];
    let names_gpu = |text: &str| {
        text.split([',', ':', '/', '='])
            .any(|word| word.eq_ignore_ascii_case("gpu"))
    };
    texts
        .into_iter()
        .find(|(_, text)| text.is_some_and(names_gpu))
        .map(|(option, _)| option)
}
