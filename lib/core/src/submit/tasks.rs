//! A fraction for each task (`--tres-per-task=gres/gpufrac:0.25`).
//!
//! Slurm counts shares per task from 23.11 on, and then gives a job all its shares of a node on one device. So it is one
//! pair of counts, as per node, and as many slices on a node as tasks start there. Which tasks those are is known only
//! when the job starts, but no node takes more than fit on one of its devices.

use super::conflicts::{fraction_alone, not_served, refuse_raw};
use super::destination::Destination;
use super::granted;
use super::job::{JobRequest, Occasion, Verdict};
use super::refusal::{FractionOption, RawReason, Refusal};
use super::requested::{self, RequestedGpus};
use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::Units;
use crate::request::{self, GresForm};

/// Decides about a request that names a fraction per task.
pub(super) fn decide(
    config: &Config,
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
    list: &str,
) -> Result<Verdict, Refusal> {
    // Marked with a colon up to 23.02.
    if request.form == GresForm::Colon {
        return Err(Refusal::TasksTooEarly);
    }
    let items = request::parse(list)?;
    let of_gpus = |text: &str| {
        let name = request::without_mark(text).split([':', '=']).next();
        name.is_some_and(|name| name.eq_ignore_ascii_case("gpu"))
    };
    if let Some(item) = items.iter().find(|item| of_gpus(item.text))
        && request::names_fraction(item.text)
    {
        return Err(Refusal::GpusPerTask);
    }
    let fraction = match requested::read(
        &items,
        FractionOption::TresPerTask,
        &destination.pools,
        config,
    )? {
        RequestedGpus::Fraction(fraction) => fraction,
        RequestedGpus::Raw {
            reason: RawReason::Unequal,
            ..
        } if destination.pools.is_empty() => return Err(not_served(config, request)),
        RequestedGpus::Raw { name, reason } => {
            return refuse_raw(config, destination, occasion, name, reason)
                .map(|()| Verdict::Untouched);
        }
        RequestedGpus::Nothing { .. } => return Ok(Verdict::Untouched),
    };
    // job_submit is not told what the job asked for before.
    if occasion == Occasion::Modify {
        return Err(Refusal::TasksChanged);
    }
    let per_node = request::parse(request.tres_per_node.unwrap_or(""))?;
    if !matches!(
        requested::read(&per_node, FractionOption::Gres, &destination.pools, config)?,
        RequestedGpus::Nothing { .. }
    ) {
        return Err(Refusal::NodeAndTask);
    }
    let others = JobRequest {
        tres_per_task: None,
        ..*request
    };
    let elsewhere = requested::elsewhere(&others, config)?;
    fraction_alone(config, destination, &others, &elsewhere)?;
    match granted::rewrite(config, destination, request, occasion, &items, &fraction)? {
        Verdict::Rewritten { text, entry, note } => {
            fits(destination, request, &entry)?;
            let entry = Entry {
                per_task: true,
                ..entry
            };
            Ok(Verdict::Rewritten { text, entry, note })
        }
        Verdict::Untouched => Ok(Verdict::Untouched),
    }
}

/// Whether the tasks find a place on the devices of the nodes. Slurm refuses what can never start, but does not say
/// why.
fn fits(
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
    entry: &Entry,
) -> Result<(), Refusal> {
    if entry.units == Units::WHOLE {
        return Err(Refusal::WholePerTask);
    }
    let serving = destination.pools.iter().filter(|pool| {
        let named = entry.mechanism.is_none_or(|named| named == pool.mechanism);
        named && pool.layout.entry(entry.units).is_some()
    });
    let Some(most) = serving
        .map(|pool| pool.layout.capacity.0 / entry.units.0)
        .max()
    else {
        return Ok(());
    };
    // Beside a number of tasks, that of a node is the most that it may have.
    let per_node = request.tasks_per_node.unwrap_or(1);
    let tasks = request.tasks.unwrap_or(per_node);
    let on_a_node = per_node.min(tasks);
    let room = request.max_nodes.map(|nodes| most.saturating_mul(nodes));
    if on_a_node > most || room.is_some_and(|room| tasks > room) {
        return Err(Refusal::TooManyTasks {
            tasks,
            units: entry.units,
            most,
            nodes: tasks.div_ceil(most.max(1)),
        });
    }
    Ok(())
}
