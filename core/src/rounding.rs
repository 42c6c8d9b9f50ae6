//! From what was asked to a size that the pools can make.

use crate::config::Pool;
use crate::entry::Entry;
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::layout::{LayoutKind, MenuEntry};
use crate::mechanism::Mechanism;

/// What a user wants of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A part of it.
    Fraction(Fraction),
    /// At least that much memory.
    Memory(MemoryMib),
    /// Exactly that size: a request that was rounded before.
    Units(Units),
}

/// What is given for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant<'a> {
    /// For the node.
    pub(crate) entry: Entry,
    /// The size; where pools differ, the one with the least memory.
    pub(crate) size: &'a MenuEntry,
    /// A whole device.
    pub(crate) whole: bool,
    /// One of the pools alone would have given less.
    pub(crate) lifted: bool,
}

/// Why nothing can be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoGrant {
    /// The whole GPU is wanted, and no pool lends one.
    NoWhole,
    /// More than any size.
    TooLarge,
    /// Units that no size costs.
    NotOnMenu,
    /// Some pools have a size for it, but no size is on all menus.
    NothingInCommon,
    /// Pools of several mechanisms.
    Mechanisms(Vec<Mechanism>),
}

/// The least that answers `ask` and is on the menu of every pool, so that Slurm may
/// start the job on any of them. Pools of whole GPUs give what no other pool can.
pub(crate) fn grant<'a>(pools: &[&'a Pool], ask: Ask) -> Result<Grant<'a>, NoGrant> {
    let mut mechanisms: Vec<Mechanism> = pools.iter().map(|pool| pool.mechanism).collect();
    mechanisms.sort_unstable();
    mechanisms.dedup();
    let &[mechanism] = mechanisms.as_slice() else {
        return Err(NoGrant::Mechanisms(mechanisms));
    };
    let is_whole = |pool: &&&Pool| pool.layout.kind == LayoutKind::Whole;
    let whole: Vec<&Pool> = pools.iter().filter(is_whole).copied().collect();
    let parts: Vec<&Pool> = pools.iter().filter(|p| !is_whole(p)).copied().collect();
    let of_whole = || {
        let sizes = whole.iter().filter_map(|pool| fitting(pool, ask));
        sizes.min_by_key(|size| size.memory).map(|size| Grant {
            entry: Entry {
                units: size.units,
                mechanism,
            },
            size,
            whole: true,
            lifted: false,
        })
    };
    if matches!(ask, Ask::Fraction(Fraction::ONE) | Ask::Units(Units(100))) {
        return of_whole().ok_or(NoGrant::NoWhole);
    }
    match common(&parts, ask) {
        Ok((units, lifted)) => {
            let sizes = parts.iter().filter_map(|pool| pool.layout.entry(units));
            let size = sizes.min_by_key(|size| size.memory);
            size.ok_or(NoGrant::NotOnMenu).map(|size| Grant {
                entry: Entry { units, mechanism },
                size,
                whole: false,
                lifted,
            })
        }
        // Only for what no part can be: half a GPU must not become a whole one because one of
        // several pools has smaller slices.
        Err(NoGrant::TooLarge) => of_whole().ok_or(NoGrant::TooLarge),
        Err(reason) => Err(reason),
    }
}

/// The smallest size of a pool that answers `ask`.
fn fitting(pool: &Pool, ask: Ask) -> Option<&MenuEntry> {
    pool.layout.menu.iter().find(|size| match ask {
        Ask::Fraction(fraction) => size.fraction.covers(fraction),
        Ask::Memory(memory) => size.memory >= memory,
        Ask::Units(units) => size.units == units,
    })
}

/// The least units that answer `ask` in every pool and are on every menu, and whether that is
/// more than the least that one of them needs.
fn common(pools: &[&Pool], ask: Ask) -> Result<(Units, bool), NoGrant> {
    let missing = match ask {
        Ask::Units(_) => NoGrant::NotOnMenu,
        _ => NoGrant::TooLarge,
    };
    let least: Vec<Units> = pools
        .iter()
        .filter_map(|pool| fitting(pool, ask))
        .map(|size| size.units)
        .collect();
    let Some(mut units) = least.iter().copied().max() else {
        return Err(missing);
    };
    if least.len() < pools.len() {
        return Err(match ask {
            Ask::Units(_) => NoGrant::NotOnMenu,
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

/// The sizes that users can get from these pools, ascending, a whole GPU last.
pub(crate) fn sizes<'a>(pools: &[&'a Pool]) -> Vec<&'a MenuEntry> {
    let mut sizes: Vec<&MenuEntry> = Vec::new();
    for size in pools.iter().flat_map(|pool| &pool.layout.menu) {
        let known = sizes.iter().any(|other| other.units == size.units);
        if !known && grant(pools, Ask::Units(size.units)).is_ok() {
            sizes.push(size);
        }
    }
    sizes.sort_by_key(|size| size.units);
    sizes
}
