//! Rules for a fraction per task.

use std::collections::BTreeSet;

use super::decision::Decision;
use super::gpus::{self, RequestedGpus};
use super::job::{JobRequest, Occasion};
use super::refusal::{FractionOption, Refusal};
use super::texts::Texts;
use crate::entry::Entry;
use crate::fraction::Units;
use crate::pool::Pool;
use crate::request::{self, GresForm, Item, Kind};

/// Refuses a fraction per task in a spelling that this Slurm, or any Slurm, does not count.
pub(super) fn refuse_spelling(request: &JobRequest<'_>, items: &[Item<'_>]) -> Result<(), Refusal> {
    // Slurm up to 23.02, with the mark `gres:`.
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

/// Checks that nothing else in the request, and no update, contradicts a fraction per task.
pub(super) fn alone(decision: &Decision<'_>, texts: &Texts<'_>) -> Result<(), Refusal> {
    // An update does not contain the earlier request of the job.
    if decision.occasion == Occasion::Modify {
        return Err(Refusal::TasksChanged);
    }
    let per_node = texts.of(FractionOption::Gres);
    match gpus::read(decision, per_node, FractionOption::Gres)? {
        RequestedGpus::Nothing { .. } => Ok(()),
        RequestedGpus::Fraction(_) | RequestedGpus::Raw { .. } => Err(Refusal::NodeAndTask),
    }
}

/// Checks that the tasks fit on the devices of the nodes. Slurm refuses a request that can never start, but does not
/// give the reason.
pub(super) fn fit(decision: &Decision<'_>, entry: &Entry) -> Result<(), Refusal> {
    if entry.units >= Units::WHOLE {
        return Err(Refusal::WholePerTask);
    }
    let request = &decision.request;
    let serving = decision.pools.iter().filter(|pool| {
        let named = entry.mechanism.is_none_or(|named| named == pool.mechanism);
        named && pool.layout.entry(entry.units).is_some()
    });
    let serving: Vec<&Pool> = serving.copied().collect();
    let of_device = |pool: &&Pool| pool.layout.capacity.0 / entry.units.0;
    let most = serving.iter().map(of_device).max();
    let Some(most) = most else {
        return Ok(());
    };
    // Together with `--ntasks`, `--ntasks-per-node` is the maximum on a node.
    let per_node = request.tasks_per_node.unwrap_or(1);
    let tasks = request.tasks.unwrap_or(per_node);
    let on_a_node = per_node.min(tasks);
    // Most jobs fit on one node, and a pool can have thousands.
    if tasks <= most {
        return Ok(());
    }
    let nodes: BTreeSet<&String> = serving.iter().flat_map(|pool| pool.nodes.names()).collect();
    let there = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let nodes = request.max_nodes.unwrap_or(there).min(there);
    if on_a_node > most || tasks > most.saturating_mul(nodes) {
        return Err(Refusal::TooManyTasks {
            tasks,
            units: entry.units,
            most,
            nodes: tasks.div_ceil(most.max(1)),
            there,
        });
    }
    Ok(())
}
