//! Which Type of device keeps jobs to their pools.
//!
//! Slurm gives shares of any device that has enough free, unless a Type is asked for, and then of that
//! Type alone. So a Type is written where a device of another pool could be taken.

use crate::layout::LayoutKind;
use crate::pool::Pool;

/// The Type that keeps jobs of `partitions` to `pools`: to shares of their devices, or to whole
/// ones of the Type `whole`. `all` are the pools of the configuration. None if there is nothing to
/// keep the jobs from; else, where no Type does it, a pool that they could get a device of. `any`: each
/// of the partitions may get what the others have.
pub(crate) fn of_pools<'a>(
    all: &'a [Pool],
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
        let there: Vec<&Pool> = all.iter().filter(|pool| pool.serves(partition)).collect();
        let strange = |other: &&Pool| {
            let meant = |pool: &&Pool| pool.name == other.name && (any || pool.serves(partition));
            let near = |pool: &&Pool| pool.nodes.common(&other.nodes).is_some();
            !pools.iter().any(meant) && there.iter().any(near)
        };
        strangers.extend(all.iter().filter(competes).filter(strange));
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

/// The Type of all of `pools`; None where they differ.
pub(crate) fn only_type(pools: &[&Pool]) -> Option<&'static str> {
    let (first, others) = pools.split_first()?;
    let name = first.type_name();
    others
        .iter()
        .all(|pool| pool.type_name() == name)
        .then_some(name)
}
