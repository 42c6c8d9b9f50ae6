//! The pools of which Slurm can give several whole GPUs of a node.

use super::decision::Decision;
use super::job::{JobRequest, Occasion};
use super::refusal::Refusal;
use crate::pool::Pool;
use crate::rounding::Demand;

/// Removes the pools that have no node with as many GPUs, and those of which this Slurm cannot count several.
pub(super) fn keep(
    decision: &Decision<'_>,
    demand: Demand,
    pools: &mut Vec<&Pool>,
) -> Result<(), Refusal> {
    let Some(gpus) = demand.gpus().filter(|gpus| *gpus > 1) else {
        return Ok(());
    };
    // A step has GPUs that Slurm gave to its job. Where no whole GPU is lent, that is the reason to give.
    if decision.occasion == Occasion::Step || !pools.iter().any(|pool| pool.lends_whole()) {
        return Ok(());
    }
    pools.retain(|pool| pool.lends_whole());
    let request = &decision.request;
    keep_enough(request, gpus, pools)?;
    // A client leaves this to the controller, which knows the nodes.
    if request.forgets_shares && request.marked {
        keep_countable(decision, demand, gpus, pools)?;
    }
    Ok(())
}

/// Removes the pools whose nodes all have fewer GPUs, as far as the nodes are known.
fn keep_enough(request: &JobRequest<'_>, gpus: u32, pools: &mut Vec<&Pool>) -> Result<(), Refusal> {
    let most = |pool: &Pool| {
        let of_nodes = request.nodes.map(|nodes| nodes.most(pool.type_name()));
        pool.most_gpus().min(of_nodes.unwrap_or(u32::MAX))
    };
    let limit = pools.iter().map(|pool| most(pool)).max();
    pools.retain(|pool| most(pool) >= gpus);
    if !pools.is_empty() {
        Ok(())
    } else {
        Err(Refusal::TooManyGpus {
            text: format!("gpufrac:{gpus}"),
            most: Some(limit.unwrap_or_default()),
            meant: None,
        })
    }
}

/// Removes the pools of which a Slurm that forgets shares could give GPUs that are in use
/// ([`JobRequest::forgets_shares`]). Its counts are right for GPUs that are never shared, for a job that has its nodes
/// alone, and for a job that has all units of its nodes: those are counted as `gres/gpufrac`, which has no devices.
fn keep_countable(
    decision: &Decision<'_>,
    demand: Demand,
    gpus: u32,
    pools: &mut Vec<&Pool>,
) -> Result<(), Refusal> {
    let request = &decision.request;
    if request.exclusive || request.core_spec {
        return Ok(());
    }
    let has_all = |pool: &Pool, gpus| {
        let nodes = request.nodes;
        nodes.is_some_and(|nodes| nodes.are_all_of_a_node(pool.type_name(), gpus))
    };
    let shared = pools.clone();
    pools.retain(|pool| pool.is_never_shared() || has_all(pool, gpus));
    if !pools.is_empty() {
        return Ok(());
    }
    let all = shared.iter().filter_map(|pool| {
        let most = request.nodes?.most(pool.type_name());
        has_all(pool, most).then_some(most)
    });
    let mut elsewhere = decision.partitions_with(demand);
    elsewhere.retain(|name| {
        let there = decision.config.pools_of_partition(name);
        there.iter().any(|pool| pool.is_never_shared())
    });
    Err(Refusal::SeveralTooEarly {
        destination: decision.title(),
        all: all.max(),
        elsewhere,
    })
}
