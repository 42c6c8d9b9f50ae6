//! The decision about a job, which both plugins make with the same code.
//!
//! [`decide`] reads the request of a job, rounds it up to a size that the pools of its partitions can make, and
//! returns the text that Slurm counts. It leaves its own result unchanged, so that the client's plugin and the
//! controller's agree in whatever order they run.

use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::{Fraction, MAX_GPUS, Units};
use crate::layout::MenuEntry;
use crate::rounding;

pub mod burst;
mod ceilings;
mod conflicts;
mod decision;
mod gpus;
mod granted;
pub mod idle;
mod job;
mod offered;
mod option;
mod refusal;
mod requested;
mod several;
mod share;
mod tasks;
#[cfg(test)]
mod tests;
mod texts;
mod types;
mod written;

use decision::Decision;
pub use job::{Existing, JobRequest, Memory, Occasion, Share, SitePerGpu, Verdict};
pub use refusal::{FractionOption, RawReason, Refusal};
use texts::Texts;

/// The message for a user whose step asks for more than its job has; `own` is the job's `GPUFRAC_FRACTION`. Slurm
/// refuses such a step, from 23.02 on without the reason. `forgets_shares` as in [`JobRequest`]: a whole GPU can then
/// be counted in shares, which Slurm divides among steps.
pub fn beyond_job(own: &str, step: &Entry, forgets_shares: bool) -> Option<String> {
    let (held, words) = match own.parse::<u32>() {
        Ok(gpus @ 2..=MAX_GPUS) => (Units::of_gpus(gpus), format!("{gpus} GPUs")),
        _ => {
            let fraction = Fraction::parse_decimal(own).ok()?;
            (Units(fraction.ceil_of(100)), format!("{fraction} of a GPU"))
        }
    };
    let is_counted_in_devices = !forgets_shares || held > Units::WHOLE;
    if is_counted_in_devices && held >= Units::WHOLE && step.units < Units::WHOLE {
        return Some(
            "gpufrac: the job has whole GPUs, which Slurm does not divide among steps; leave --gres out, with --overlap \
             for steps side by side"
                .to_owned(),
        );
    }
    (step.units > held).then(|| {
        format!(
            "gpufrac: the job has {words} on each of its nodes, and a step can have no more of it; \
             write at most --gres=gpufrac:{own}, or leave --gres out for all of it"
        )
    })
}

/// Decides about a request in five steps: the texts are read; then the pools, the requested fraction, the granted
/// size, and the text that Slurm counts are determined.
/// Errors: the request cannot be granted, or Slurm could read it in another way; the refusal says what to write.
pub fn decide(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let name = &config.count_name;
    let read = |text: Option<&'_ str>| text.map(|text| name.read(text).into_owned());
    let own = [
        request.tres_per_node,
        request.tres_per_job,
        request.tres_per_socket,
        request.tres_per_task,
    ]
    .map(read);
    let [per_node, per_job, per_socket, per_task] = own.each_ref().map(Option::as_deref);
    let request = JobRequest {
        tres_per_node: per_node,
        tres_per_job: per_job,
        tres_per_socket: per_socket,
        tres_per_task: per_task,
        ..*request
    };
    let mut verdict = decide_by_own_name(config, &request, occasion)?;
    if let Verdict::Rewritten { text, .. } = &mut verdict {
        *text = name.written(text).into_owned();
    }
    Ok(verdict)
}

/// As [`decide`], where fractions are called `gpufrac` in the texts and in the answer.
fn decide_by_own_name(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let decision = Decision::of(config, request, occasion);
    let texts = Texts::read(request, occasion)
        .map_err(|refusal| granted::of_notation(&decision, refusal))?;
    let fraction = requested::of(&decision, &texts)?;
    texts.refuse_ambiguous(fraction.as_ref().map(|fraction| fraction.option))?;
    let Some(fraction) = fraction else {
        return Ok(Verdict::Untouched);
    };
    let granted = granted::grant(&decision, &fraction)?;
    if !granted.is_counted_in_devices(request) {
        conflicts::refuse_shares_of_own_nodes(request)?;
    }
    if fraction.option == FractionOption::TresPerTask {
        tasks::fit(&decision, &granted.grant.entry)?;
    }
    written::verdict(&decision, &texts, &fraction, granted)
}

/// The sizes that a job may have in a partition, ascending: those of all its pools that its rules allow.
pub fn sizes(config: &Config, partition: &str) -> Vec<MenuEntry> {
    let mut sizes = rounding::sizes(&config.pools_of_partition(partition));
    if let Some(rules) = config.rules(partition) {
        sizes.retain(|size| rules.allow(size));
    }
    sizes
}

/// Whether the job may run in a partition with a pool, as far as its request shows.
pub fn may_reach_pools(config: &Config, request: &JobRequest<'_>) -> bool {
    let decision = Decision::of(config, request, Occasion::Submit);
    !decision.partitions.is_empty()
}
