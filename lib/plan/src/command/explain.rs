//! Why a job gets its size.

use std::fmt::Write;

use super::PlanError;
use crate::candidate::{Candidate, Cut};
use crate::job::{History, Job};
use crate::place::Request;
use crate::render::{size, time};
use crate::search::Options;
use crate::size;
use crate::speed::MEDIAN;

/// The text for a job: its size with each way of lending.
pub(super) fn text(id: &str, history: &History, options: &Options) -> Result<String, PlanError> {
    let mut runs = history.jobs.iter().filter(|job| &*job.id == id).peekable();
    if runs.peek().is_none() {
        return Err(PlanError::NoJob(id.to_owned()));
    }
    let candidates = options.all_candidates();
    let mut text = String::new();
    for job in runs {
        facts(&mut text, job, options);
        for candidate in candidates
            .iter()
            .filter(|one| one.whole_of_8 == 0 && one.cut != Cut::Whole)
        {
            line(&mut text, job, *candidate, options)?;
        }
    }
    Ok(text)
}

fn facts(text: &mut String, job: &Job, options: &Options) {
    let need = &job.need;
    let known = |value: Option<f32>, unit: &str| {
        value.map_or("not known".to_owned(), |value| format!("{value:.0}{unit}"))
    };
    let _ = writeln!(
        text,
        "job {}: {} GPUs on {} nodes, waited {}, ran {}",
        job.id,
        job.all_gpus(),
        job.nodes,
        time(job.waited as f64),
        time(job.ran as f64)
    );
    if let Some(share) = need.share {
        let _ = writeln!(text, "  it had {:.0} % of the GPU", share * 100.0);
    }
    let _ = writeln!(
        text,
        "  greatest memory on a GPU: {}; mean activity: {}; margin {}",
        known(need.memory_mib, " MiB"),
        known(need.activity.map(|part| part * 100.0), " %"),
        options.rule.margin
    );
    let length = options.windows.length(job);
    if length < job.ran {
        let length = time(length as f64);
        let _ = writeln!(text, "  the reaper would end it after {length}");
    }
}

fn line(
    text: &mut String,
    job: &Job,
    candidate: Candidate,
    options: &Options,
) -> Result<(), PlanError> {
    let mut fleet = candidate.fleet(&options.model, &[1])?;
    let sizes = fleet.pieces();
    let (units, reason) = size::choose(job, &job.need, &sizes, options.rule);
    let request = Request {
        units,
        count: 1,
        cpus: 0,
        memory: 0,
    };
    let held = fleet.take(0, request).unwrap_or_default();
    let compute = held.first().map_or(1.0, |one| one.compute);
    let part = (compute / f64::from(job.need.share.unwrap_or(1.0).max(0.001))).min(1.0);
    let activity = job.need.activity.map_or(1.0, f64::from);
    let longer = |quantile| 100.0 * (options.curve.factor(part, activity, quantile) - 1.0);
    let _ = writeln!(
        text,
        "  {candidate}: {} of a GPU, {reason}; {:.0} % longer ({:.0} to {:.0})",
        size(units),
        longer(MEDIAN),
        longer(0.9),
        longer(0.1)
    );
    Ok(())
}
