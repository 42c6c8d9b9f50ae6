//! Rounds a request up to a size that the pools can make.

use crate::entry::Entry;
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::layout::{LayoutKind, MenuEntry};
use crate::policy::IdleWish;
use crate::pool::Pool;

/// The amount of one GPU that a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    Fraction(Fraction),
    /// At least this much memory.
    Memory(MemoryMib),
    /// This number of whole GPUs on a node.
    Gpus(u32),
    /// Exactly this size: a request that gpufrac rounded earlier.
    Units(Units),
}

impl Demand {
    /// The number of whole GPUs; None for a part of one, and for memory.
    pub(crate) fn gpus(self) -> Option<u32> {
        match self {
            Demand::Fraction(Fraction::ONE) => Some(1),
            Demand::Gpus(gpus) => Some(gpus),
            Demand::Units(units) => units.gpus(),
            Demand::Fraction(_) | Demand::Memory(_) => None,
        }
    }
}

/// The grant for a request.
#[derive(Clone, Debug)]
pub(crate) struct Grant<'a> {
    /// The entry for the node.
    pub(crate) entry: Entry,
    /// The size of each slice; if pools differ, the smallest memory and fraction among them.
    pub(crate) size: MenuEntry,
    /// The pools, each of which can serve the request.
    pub(crate) pools: Vec<&'a Pool>,
    /// The Type of their devices, if the grant is one whole GPU or several.
    pub(crate) whole: Option<&'static str>,
    /// Whether one of the pools alone would have given less.
    pub(crate) lifted: bool,
}

/// The reasons why nothing can be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoGrant {
    /// The request is for a whole GPU, and no pool lends one.
    NoWhole,
    /// The request is for more whole GPUs than a pool has on a node.
    TooManyGpus {
        /// The most that a pool has on a node.
        most: u32,
    },
    /// The request is larger than every size.
    TooLarge,
    /// No size has this price.
    NotOnMenu,
    /// Some pools have a size for the request, but no size is on the menu of all.
    NothingInCommon,
}

/// The most sizes that a message lists; of more sizes it gives the first and the last.
pub(crate) const MAX_LISTED_SIZES: usize = 8;

/// The smallest size that answers `demand` and is on the menu of every pool, so that Slurm may start the job on any
/// of them. Pools of whole GPUs serve requests that no other pool can.
pub(crate) fn grant<'a>(pools: &[&'a Pool], demand: Demand) -> Result<Grant<'a>, NoGrant> {
    if demand.gpus().is_some() {
        return whole(pools, demand);
    }
    let is_part = |pool: &&&Pool| pool.layout.kind != LayoutKind::Whole;
    let parts: Vec<&Pool> = pools.iter().filter(is_part).copied().collect();
    match common(&parts, demand) {
        Ok((units, lifted)) if units != Units::WHOLE => Grant::of(parts, units)
            .map(|grant| Grant { lifted, ..grant })
            .ok_or(NoGrant::NotOnMenu),
        // Whole GPUs only answer requests that no part of a GPU can answer. Half a GPU must not become a whole one
        // because one of several pools has smaller slices.
        Ok(_) | Err(NoGrant::TooLarge) => whole(pools, demand).map_err(|reason| match reason {
            NoGrant::NoWhole => NoGrant::TooLarge,
            other => other,
        }),
        Err(reason) => Err(reason),
    }
}

/// The smallest size that answers `demand` in one of the pools: for a step, whose job already holds a GPU of one of
/// them.
pub(crate) fn least<'a>(pools: &[&'a Pool], demand: Demand) -> Result<Grant<'a>, NoGrant> {
    let each = pools.iter().filter_map(|pool| grant(&[*pool], demand).ok());
    let least = each.min_by_key(|grant| grant.entry.units);
    least.map_or_else(|| grant(pools, demand), Ok)
}

/// The grant of a whole GPU. Slurm accepts one Type of device, so all pools of the grant must have the same Type.
/// Pools of GPUs that are only lent whole come first.
fn whole<'a>(pools: &[&'a Pool], demand: Demand) -> Result<Grant<'a>, NoGrant> {
    let mut lending: Vec<&Pool> = pools.iter().filter(|p| p.lends_whole()).copied().collect();
    lending.sort_by_key(|pool| pool.layout.kind != LayoutKind::Whole);
    let gpus = demand.gpus().unwrap_or(1);
    let most = lending.iter().map(|pool| pool.most_gpus()).max();
    if let Some(most) = most.filter(|most| *most < gpus) {
        return Err(NoGrant::TooManyGpus { most });
    }
    let enough = |grant: &Grant<'_>| match demand {
        Demand::Memory(memory) => grant.size.memory >= memory,
        // Slurm starts no job on nodes with fewer GPUs.
        _ => grant.pools.iter().any(|pool| pool.most_gpus() >= gpus),
    };
    let of_type = |name| {
        let same = lending.iter().filter(|pool| pool.type_name() == name);
        let grant = Grant::of(same.copied().collect(), Units::WHOLE)?;
        let entry = Entry {
            units: Units::of_gpus(gpus),
            ..grant.entry
        };
        Some(Grant {
            entry,
            whole: Some(name),
            ..grant
        })
    };
    let mut grants = lending.iter().filter_map(|pool| of_type(pool.type_name()));
    if let Some(grant) = grants.find(enough) {
        return Ok(grant);
    }
    Err(if lending.is_empty() {
        NoGrant::NoWhole
    } else if lending.iter().any(|pool| fitting(pool, demand).is_some()) {
        NoGrant::NothingInCommon
    } else {
        NoGrant::TooLarge
    })
}

impl<'a> Grant<'a> {
    /// The grant of `units`; None if no pool has such a size.
    fn of(pools: Vec<&'a Pool>, units: Units) -> Option<Grant<'a>> {
        let sizes = || pools.iter().filter_map(|pool| pool.layout.entry(units));
        let mut size = sizes().min_by_key(|size| size.memory)?.clone();
        // 13 units are 1/8 in one pool and 13 % in another: the grant is the smaller of both.
        size.fraction = sizes().map(|size| size.fraction).min()?;
        let mechanism = pools.first().map(|pool| pool.mechanism);
        let same = pools.iter().all(|pool| Some(pool.mechanism) == mechanism);
        Some(Grant {
            entry: Entry {
                units,
                mechanism: mechanism.filter(|_| same),
                // The caller sets `per_task` and the wish, which do not depend on the size.
                per_task: false,
                wish: IdleWish::Default,
                burst: None,
            },
            size,
            pools,
            whole: None,
            lifted: false,
        })
    }
}

/// The smallest size of a pool that answers `demand`.
fn fitting(pool: &Pool, demand: Demand) -> Option<&MenuEntry> {
    pool.layout.menu.iter().find(|size| match demand {
        Demand::Fraction(fraction) => size.fraction.covers(fraction),
        Demand::Memory(memory) => size.memory >= memory,
        Demand::Gpus(_) => size.units == Units::WHOLE,
        Demand::Units(units) => size.units == units,
    })
}

/// The fewest units that answer `demand` in every pool and are on every menu, and whether these are more than the
/// fewest of one pool.
fn common(pools: &[&Pool], demand: Demand) -> Result<(Units, bool), NoGrant> {
    let missing = match demand {
        Demand::Units(_) => NoGrant::NotOnMenu,
        _ => NoGrant::TooLarge,
    };
    let least: Vec<Units> = pools
        .iter()
        .filter_map(|pool| fitting(pool, demand))
        .map(|size| size.units)
        .collect();
    let Some(mut units) = least.iter().copied().max() else {
        return Err(missing);
    };
    if least.len() < pools.len() {
        return Err(match demand {
            Demand::Units(_) => NoGrant::NotOnMenu,
            _ => NoGrant::NothingInCommon,
        });
    }
    loop {
        let next: Option<Vec<Units>> = pools
            .iter()
            .map(|pool| {
                let mut sizes = pool.layout.menu.iter();
                let enough = sizes.find(|size| size.units >= units);
                enough.map(|size| size.units)
            })
            .collect();
        let next = next.ok_or(NoGrant::NothingInCommon)?;
        let greatest = next.into_iter().max().unwrap_or(units);
        if greatest == units {
            return Ok((units, least.iter().any(|need| *need < units)));
        }
        units = greatest;
    }
}

/// The sizes of these pools, ascending, a whole GPU last.
pub(crate) fn sizes(pools: &[&Pool]) -> Vec<MenuEntry> {
    let menus = pools.iter().flat_map(|pool| &pool.layout.menu);
    let mut units: Vec<Units> = menus.map(|size| size.units).collect();
    units.sort_unstable();
    units.dedup();
    let size = |units| Some(grant(pools, Demand::Units(units)).ok()?.size);
    units.into_iter().filter_map(size).collect()
}
