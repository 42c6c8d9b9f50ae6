//! Alternatives that messages propose.

use super::decision::Decision;
use crate::fraction::Fraction;
use crate::layout::MenuEntry;
use crate::pool::Pool;
use crate::rounding::{self, Demand, Grant};

pub(super) fn fractions(sizes: &[MenuEntry]) -> Vec<Fraction> {
    sizes.iter().map(|size| size.fraction).collect()
}

impl<'a> Decision<'a> {
    /// The sizes of these pools that the rules allow.
    pub(super) fn allowed(&self, pools: &[&Pool]) -> Vec<MenuEntry> {
        let mut sizes = rounding::sizes(pools);
        sizes.retain(|size| self.broken_rule(size).is_none());
        sizes
    }

    /// The partition whose rules do not allow the size.
    pub(super) fn broken_rule(&self, size: &MenuEntry) -> Option<&'a str> {
        self.partitions.iter().copied().find(|partition| {
            let rules = self.config.rules(partition);
            rules.is_some_and(|rules| !rules.allow(size))
        })
    }

    /// The partitions that can give at least `demand`.
    pub(super) fn partitions_with(&self, demand: Demand) -> Vec<String> {
        let config = self.config;
        let mut found: Vec<String> = Vec::new();
        for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
            let rules = config.rules(name);
            let allowed = |grant: &Grant<'_>| rules.is_none_or(|rules| rules.allow(&grant.size));
            let granted = rounding::grant(&config.pools_of_partition(name), demand);
            if !found.contains(name) && granted.is_ok_and(|grant| allowed(&grant)) {
                found.push(name.clone());
            }
        }
        self.existing(found)
    }

    /// The alternatives to whole GPUs: the sizes in the job's partitions, and other partitions that lend whole GPUs if
    /// the job's do not.
    pub(super) fn instead_of_gpus(&self) -> (Vec<Fraction>, Vec<String>) {
        let sizes = fractions(&self.allowed(&self.pools));
        let elsewhere = match sizes.last() {
            Some(&Fraction::ONE) => Vec::new(),
            _ => self.partitions_with(Demand::Fraction(Fraction::ONE)),
        };
        (sizes, elsewhere)
    }
}
