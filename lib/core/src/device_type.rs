//! The Type of devices that a request must name to get devices of its own pools only.
//!
//! Without a Type, Slurm gives shares of any device that has enough free; with a Type, only of devices of this Type.
//! gpufrac therefore adds the Type to a request if Slurm could otherwise take a device of another pool.

use crate::layout::LayoutKind;
use crate::pool::Pool;

/// The Type that limits jobs of `partitions` to `pools`: to shares of their devices, or to whole devices of Type
/// `whole`. `all` are the pools of the configuration.
///
/// Returns None if no other device can be given. `any`: a job of one of the partitions may also get devices of the
/// others. Errors: a pool whose devices the jobs could get in spite of every Type.
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

/// The common Type of all `pools`; None if they differ.
pub(crate) fn only_type(pools: &[&Pool]) -> Option<&'static str> {
    let (first, others) = pools.split_first()?;
    let name = first.type_name();
    others
        .iter()
        .all(|pool| pool.type_name() == name)
        .then_some(name)
}
