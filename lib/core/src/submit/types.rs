//! Which Type of device a job must get.
//!
//! Slurm gives shares of any device that has enough free, unless a Type is asked for, and then of that
//! Type alone. So a Type is written where a device of another pool could be taken.

use super::{Occasion, Refusal, Scope};
use crate::config::{Config, Pool};
use crate::layout::LayoutKind;
use crate::rounding::Grant;

/// The Type to write with shares; None if any device will do. A whole GPU has its Type anyway.
pub(super) fn needed(
    config: &Config,
    scope: &Scope<'_>,
    grant: &Grant<'_>,
    occasion: Occasion,
    by_mechanism: bool,
) -> Result<Option<&'static str>, Refusal> {
    let undecided = !scope.named && occasion == Occasion::Submit;
    // The Type for which all pools are of the mechanism asked for.
    let same = |name: &str| {
        let mut alike = config.pools.iter().filter(|pool| pool.type_name() == name);
        alike.all(|pool| Some(pool.mechanism) == grant.entry.mechanism)
    };
    let of_mechanism = only_type(&grant.pools).filter(|name| same(name));
    // Who names several partitions will have a GPU of any of them, wherever the job starts.
    let any = scope.named;
    match of_pools(config, &scope.partitions, &grant.pools, grant.whole, any) {
        // Devices that lend no shares have one all the same, for Slurm's sake (gres.conf): only the Type keeps a
        // request of one unit away from it.
        Ok(None) if grant.whole.is_none() && grant.entry.units.0 == 1 && !undecided => {
            only_type(&grant.pools)
                .map(Some)
                .ok_or_else(|| Refusal::OneUnit {
                    scope: scope.title(),
                })
        }
        Ok(found) => Ok(found),
        // A client that does not know where the job will go leaves it to the controller, and says
        // no more than the mechanism.
        Err(_) if undecided && !by_mechanism => Ok(None),
        Err(_) if undecided && of_mechanism.is_some() => Ok(of_mechanism),
        Err(other) => Err(Refusal::WhichType {
            scope: scope.title(),
            other: other.name.clone(),
            way: match scope.partitions.as_slice() {
                _ if !scope.named => "name the job's partition in the same request",
                [_] => "leave the mechanism out",
                _ => "name a single partition",
            },
        }),
    }
}

/// The Type that keeps jobs of `partitions` to `pools`: to shares of their devices, or to whole
/// ones of the Type `whole`. None if there is nothing to keep them from; else, where no Type
/// does it, a pool that they could get a device of. `any`: each of the partitions may get what the others
/// have.
pub(crate) fn of_pools<'a>(
    config: &'a Config,
    partitions: &[&str],
    pools: &[&Pool],
    whole: Option<&str>,
    any: bool,
) -> Result<Option<&'static str>, &'a Pool> {
    let competes = |other: &&Pool| match whole {
        Some(name) => other.lends_whole() && other.type_name() == name,
        None => other.layout.kind != LayoutKind::Whole,
    };
    let mut strangers: Vec<&Pool> = Vec::new();
    for partition in partitions {
        let there = config.pools_of_partition(partition);
        let strange = |other: &&Pool| {
            let meant = |pool: &&Pool| pool.name == other.name && (any || pool.serves(partition));
            let near = |pool: &&Pool| pool.nodes.common(&other.nodes).is_some();
            !pools.iter().any(meant) && there.iter().any(near)
        };
        strangers.extend(config.pools.iter().filter(competes).filter(strange));
    }
    let Some(stranger) = strangers.first() else {
        return Ok(None);
    };
    let Some(name) = only_type(pools) else {
        return Err(stranger);
    };
    match strangers.iter().find(|other| other.type_name() == name) {
        Some(same) => Err(same),
        None => Ok(Some(name)),
    }
}

fn only_type(pools: &[&Pool]) -> Option<&'static str> {
    let (first, others) = pools.split_first()?;
    let name = first.type_name();
    others
        .iter()
        .all(|pool| pool.type_name() == name)
        .then_some(name)
}
