//! The one decision about a job, made by both plugins with the same code.
//!
//! [`decide`] reads what a job asks for, rounds it up to what the pools of its partitions can
//! make and gives the text that Slurm is to count. What it wrote once it takes unchanged, so that
//! the client's plugin and the controller's agree whoever comes first.

use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::{Fraction, Units};
use crate::request::GresForm;

mod conflicts;
mod destination;
mod granted;
pub mod idle;
mod job;
mod offered;
mod refusal;
mod requested;
mod tasks;
#[cfg(test)]
mod tests;
mod texts;
mod types;
mod written;

use destination::Destination;
pub use job::{JobRequest, Occasion, Verdict};
pub use refusal::{FractionOption, RawReason, Refusal};
use texts::Texts;

/// What to tell a user whose step asks for more than its job has, by the job's own `GPUFRAC_FRACTION`. Slurm refuses
/// such a step, from 23.02 on without a word about the reason. Before 23.11 a whole GPU may be counted in shares, which Slurm
/// divides.
#[must_use]
pub fn beyond_job(own: &str, step: &Entry, form: GresForm) -> Option<String> {
    let fraction = Fraction::parse_decimal(own).ok()?;
    if form == GresForm::Slash && fraction == Fraction::ONE && step.units < Units::WHOLE {
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

/// Decides about a request: its texts are read, then the pools are found that it is for, the fraction that it asks them
/// for, the size that they give, and the text that counts it.
///
/// # Errors
/// When it cannot be given, or Slurm could read it otherwise: the refusal says what to write instead.
pub fn decide(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let texts = Texts::read(request, occasion)?;
    let destination = Destination::of(config, request, occasion);
    let fraction = requested::of(config, &destination, request, &texts, occasion)?;
    texts.refuse_ambiguous(fraction.as_ref().map(|fraction| fraction.option))?;
    let Some(fraction) = fraction else {
        return Ok(Verdict::Untouched);
    };
    let granted = granted::grant(config, &destination, &fraction, occasion)?;
    if fraction.option == FractionOption::TresPerTask {
        tasks::fit(&destination, request, &granted.grant.entry)?;
    }
    written::verdict(&destination, request, &texts, &fraction, granted)
}

/// Whether a job may come to a partition with a pool, as far as its request says.
#[must_use]
pub fn may_reach_pools(config: &Config, request: &JobRequest<'_>) -> bool {
    let destination = Destination::of(config, request, Occasion::Submit);
    !destination.partitions.is_empty()
}
