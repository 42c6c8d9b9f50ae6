//! The one decision about a job, made by both plugins with the same code.
//!
//! [`decide`] reads what a job asks for, rounds it up to what the pools of its partitions can
//! make and gives the text that Slurm is to count. What it wrote once it takes unchanged, so that
//! the client's plugin and the controller's agree whoever comes first.

use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::{Fraction, Units};
use crate::request;

mod conflicts;
mod destination;
mod granted;
pub mod idle;
mod job;
mod refusal;
mod requested;
mod tasks;
#[cfg(test)]
mod tests;
mod types;

use conflicts::{fraction_alone, not_served, refuse_raw};
use destination::Destination;
pub use job::{JobRequest, Occasion, Verdict};
pub use refusal::{FractionOption, RawReason, Refusal};
use requested::RequestedGpus;

/// What to tell a user whose step asks for more than its job has, by the job's own `GPUFRAC_FRACTION`. Slurm refuses
/// such a step, from 23.02 on without a word about the reason.
#[must_use]
pub fn beyond_job(own: &str, step: &Entry) -> Option<String> {
    let fraction = Fraction::parse_decimal(own).ok()?;
    if fraction == Fraction::ONE && step.units < Units::WHOLE {
        return Some(
            "gpufrac: the job has a whole GPU, which Slurm does not divide among steps; leave --gres out, with --overlap \
             for steps side by side"
                .to_owned(),
        );
    }
    (step.units.0 > fraction.ceil_of(100)).then(|| {
        format!(
            "gpufrac: the job has {fraction} of a GPU on each of its nodes, and a step can have no more of it; \
             write at most --gres=gpufrac:{fraction}, or leave --gres out for all of it"
        )
    })
}

/// Decides about a request.
///
/// # Errors
/// When it cannot be given, or Slurm could read it otherwise: the refusal says what to write instead.
pub fn decide(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let verdict = decide_by_items(config, request, occasion)?;
    // Last, as what else is wrong is said in words of its own.
    request.refuse_ambiguous()?;
    if let Verdict::Rewritten { text, .. } = &verdict {
        request::refuse_ambiguous(text, request.form)?;
    }
    Ok(verdict)
}

fn decide_by_items(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let destination = Destination::of(config, request, occasion);
    if let Some(list) = request
        .tres_per_task
        .filter(|list| request::names_fraction(list))
    {
        return tasks::decide(config, &destination, request, occasion, list);
    }
    let list = request.tres_per_node.unwrap_or("");
    let items = request::parse(list)?;
    let requested = requested::read(&items, FractionOption::Gres, &destination.pools, config)?;
    let elsewhere = requested::elsewhere(request, config)?;
    match requested {
        RequestedGpus::Fraction(fraction) => {
            fraction_alone(config, &destination, request, &elsewhere)?;
            granted::rewrite(config, &destination, request, occasion, &items, &fraction)
        }
        RequestedGpus::Raw {
            reason: RawReason::Unequal,
            ..
        } if destination.pools.is_empty() => Err(not_served(config, request)),
        RequestedGpus::Raw { name, reason } => {
            refuse_raw(config, &destination, occasion, name, reason).map(|()| Verdict::Untouched)
        }
        RequestedGpus::Nothing { none } => {
            if let Some(name) = elsewhere.raw {
                refuse_raw(config, &destination, occasion, name, RawReason::Plain)?;
                return Ok(Verdict::Untouched);
            }
            let silent = !none
                && !elsewhere.any
                && !request.exclusive
                && !request.core_spec
                && requested::bound_to_gpu(request).is_none();
            // Where one partition has no GPUs to give, a job that wants none may well be meant for that one.
            if occasion == Occasion::Submit && destination.named && !destination.others && silent {
                return granted::default(config, &destination, request);
            }
            Ok(Verdict::Untouched)
        }
    }
}
