//! Hints for an admin: the largest holders of idle slices, and sizes that jobs never fill.

use std::collections::BTreeMap;

use gpufrac_records::usage::Ended;

use crate::ledger::LedgerSlice;
use crate::sums::Sums;

/// Users that are listed.
const MOST_HOLDERS: usize = 10;

#[derive(Debug, Default)]
pub struct Hints {
    holders: BTreeMap<String, Sums>,
    sizes: BTreeMap<(u64, String), Filling>,
    ends: BTreeMap<Option<Ended>, u64>,
}

/// How much of the slices of a size is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Filling {
    /// Slices whose memory was measured.
    pub measured: u64,
    /// Slices of which more than half of the memory was in use at some time.
    pub over_half: u64,
    /// Sum of the greatest part of the memory in use, 0 to 1 each.
    sum: f64,
}

impl Filling {
    /// Mean of the greatest part of the memory in use, 0 to 1.
    pub fn mean(&self) -> f64 {
        match self.measured {
            0 => 0.0,
            count => self.sum / count as f64,
        }
    }
}

impl Hints {
    /// Adds what a job held.
    pub fn add(&mut self, held: &LedgerSlice) {
        *self.ends.entry(held.ended).or_default() += 1;
        let sums = self.holders.entry(held.user.clone()).or_default();
        sums.slices += 1;
        sums.idle += held.idle;
        sums.allocated += held.allocated();
        if let (Some(peak), Some(all)) = (held.peak_memory_mib, held.memory_mib)
            && all > 0
        {
            let key = (held.units, held.size.clone());
            let filling = self.sizes.entry(key).or_default();
            let part = (peak as f64 / all as f64).min(1.0);
            filling.measured += 1;
            filling.over_half += u64::from(part > 0.5);
            filling.sum += part;
        }
    }

    /// The users with the most idle time, and their sums.
    pub fn holders(&self) -> Vec<(&str, &Sums)> {
        let with_idle = self.holders.iter().filter(|(_, sums)| sums.idle > 0);
        let mut holders: Vec<(&str, &Sums)> = with_idle
            .map(|(user, sums)| (user.as_str(), sums))
            .collect();
        holders.sort_by_key(|(user, sums)| (std::cmp::Reverse(sums.idle), *user));
        holders.truncate(MOST_HOLDERS);
        holders
    }

    /// How many slices ended for each reason; `unknown` where no reaper ran.
    pub fn ends(&self) -> Vec<(&'static str, u64)> {
        let ends = self.ends.iter();
        ends.map(|(why, &count)| (why.map_or("unknown", Ended::name), count))
            .collect()
    }

    /// The sizes, the smallest first.
    pub fn sizes(&self) -> Vec<(&str, Filling)> {
        let sizes = self.sizes.iter();
        sizes
            .map(|((_, size), filling)| (size.as_str(), *filling))
            .collect()
    }
}
