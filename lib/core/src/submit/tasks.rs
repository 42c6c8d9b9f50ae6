//! What holds for a fraction for each task alone.

use super::destination::Destination;
use super::job::{JobRequest, Occasion};
use super::refusal::{FractionOption, Refusal};
use super::requested::{self, RequestedGpus};
use super::texts::Texts;
use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::Units;
use crate::request::{self, GresForm, Item, Kind};

/// Refuses a fraction that stands where this Slurm, or any, counts none per task.
pub(super) fn refuse_spelling(request: &JobRequest<'_>, items: &[Item<'_>]) -> Result<(), Refusal> {
    // Marked with a colon up to 23.02.
    if request.form == GresForm::Colon {
        return Err(Refusal::TasksTooEarly);
    }
    let of_gpus = |item: &&Item<'_>| {
        let name = request::without_mark(item.text).split([':', '=']).next();
        matches!(item.kind, Kind::Gpufrac { .. })
            && name.is_some_and(|name| name.eq_ignore_ascii_case("gpu"))
    };
    match items.iter().find(of_gpus) {
        Some(_) => Err(Refusal::GpusPerTask),
        None => Ok(()),
    }
}

/// Whether nothing else that is requested, and no update, stands against a fraction for each task.
pub(super) fn alone(
    config: &Config,
    destination: &Destination<'_>,
    texts: &Texts<'_>,
    occasion: Occasion,
) -> Result<(), Refusal> {
    // job_submit is not told what the job asked for before.
    if occasion == Occasion::Modify {
        return Err(Refusal::TasksChanged);
    }
    let per_node = texts.of(FractionOption::Gres);
    match requested::read(per_node, FractionOption::Gres, &destination.pools, config)? {
        RequestedGpus::Nothing { .. } => Ok(()),
        RequestedGpus::Fraction(_) | RequestedGpus::Raw { .. } => Err(Refusal::NodeAndTask),
    }
}

/// Whether the tasks find a place on the devices of the nodes. Slurm refuses what can never start, but does not say
/// why.
pub(super) fn fit(
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
