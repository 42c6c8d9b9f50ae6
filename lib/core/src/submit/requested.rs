//! The fraction that the texts of a request ask for together.

use super::conflicts::{self, Elsewhere};
use super::decision::Decision;
use super::gpus::{self, Origin, RequestedFraction, RequestedGpus};
use super::job::Occasion;
use super::refusal::{FractionOption, RawReason, Refusal};
use super::tasks;
use super::texts::Texts;
use crate::rounding::Demand;

/// The fraction that a request asks for, or the partition's `default`; None if gpufrac leaves the request to Slurm.
/// Errors: the request contradicts a fraction of any size.
pub(super) fn of<'a>(
    decision: &Decision<'a>,
    texts: &Texts<'_>,
) -> Result<Option<RequestedFraction<'a>>, Refusal> {
    let option = texts.option();
    let items = texts.of(option);
    if option == FractionOption::TresPerTask {
        tasks::refuse_spelling(&decision.request, items)?;
    }
    let requested = gpus::read(decision, items, option)?;
    let elsewhere = conflicts::elsewhere(decision, texts.beside(option))?;
    match requested {
        RequestedGpus::Fraction(fraction) => {
            if option == FractionOption::TresPerTask {
                tasks::alone(decision, texts)?;
            }
            conflicts::fraction_alone(decision, &elsewhere, &fraction)?;
            Ok(Some(fraction))
        }
        RequestedGpus::Raw {
            reason: RawReason::Unequal,
            ..
        } if decision.pools.is_empty() => Err(conflicts::not_served(decision)),
        RequestedGpus::Raw { name, reason, gpus } => {
            conflicts::refuse_raw(decision, name, reason, gpus)?;
            Ok(None)
        }
        RequestedGpus::Nothing { none } => {
            if let Some(name) = elsewhere.raw {
                conflicts::refuse_raw(decision, name, RawReason::Plain, 1)?;
                return Ok(None);
            }
            let named = items
                .iter()
                .chain(texts.beside(option).map(|(_, item)| item));
            conflicts::refuse_unknown_type(decision, named)?;
            let silent = !none && is_silent(decision, &elsewhere);
            // If one of the partitions has no pool, a job without a GPU may be meant for that partition.
            let sure = decision.occasion == Occasion::Submit && decision.named && !decision.others;
            Ok((silent && sure).then(|| default(decision)).flatten())
        }
    }
}

/// Whether nothing in a request names GPUs or conflicts with shares.
fn is_silent(decision: &Decision<'_>, elsewhere: &Elsewhere) -> bool {
    let request = &decision.request;
    let options = [
        request.cpus_per_tres,
        request.mem_per_tres,
        request.tres_freq,
    ];
    !elsewhere.any
        && !request.exclusive
        && !request.core_spec
        && !options.into_iter().flatten().any(conflicts::names_gpu)
}

/// The `default` of the partitions, for a job that asks for no GPU.
fn default<'a>(decision: &Decision<'a>) -> Option<RequestedFraction<'a>> {
    let defaults = decision.partitions.iter().filter_map(|partition| {
        let default = decision.config.rules(partition)?.default?;
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
