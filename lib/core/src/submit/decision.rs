//! What a decision is about: the request, and the partitions in which the job may run.

use super::job::{Existing, JobRequest, Occasion};
use crate::config::Config;
use crate::pool::Pool;

/// A request with the known partitions of its job and their pools.
pub(super) struct Decision<'a> {
    pub(super) config: &'a Config,
    pub(super) request: JobRequest<'a>,
    pub(super) occasion: Occasion,
    /// Partitions with a pool; all of these if the request names no partition.
    pub(super) partitions: Vec<&'a str>,
    /// All pools of these partitions, each once, in the order of the file.
    pub(super) pools: Vec<&'a Pool>,
    /// Whether the request names partitions, or a default partition is known.
    pub(super) named: bool,
    /// Whether one of the partitions has no pool, or a reservation may move the job to such a partition.
    pub(super) others: bool,
    /// Whether a reservation may have a partition, which takes precedence over the default one.
    pub(super) by_reservation: bool,
}

impl<'a> Decision<'a> {
    pub(super) fn of(
        config: &'a Config,
        request: &JobRequest<'a>,
        occasion: Occasion,
    ) -> Decision<'a> {
        let given = request.partitions.filter(|names| !names.is_empty());
        // The default partition has no pool, but the job asks for a fraction in a reservation: the reservation must
        // have its own partition.
        let default = request
            .default_partition
            .filter(|name| !request.reserved || !config.pools_of_partition(name).is_empty());
        let names = match occasion {
            Occasion::Submit => given.or(default),
            // An existing job, and a step in it, need not be in the default partition.
            Occasion::Modify | Occasion::Step => given,
        };
        let all = || config.pools.iter().flat_map(|pool| &pool.partitions);
        let candidates: Vec<&str> = match names {
            Some(names) => names.split(',').collect(),
            None => all().map(String::as_str).collect(),
        };
        let mut partitions: Vec<&str> = Vec::new();
        let mut others = request.reserved && given.is_none();
        for name in candidates {
            let served = !config.pools_of_partition(name).is_empty();
            others |= !served;
            if served && !partitions.contains(&name) {
                partitions.push(name);
            }
        }
        let serves = |pool: &&Pool| partitions.iter().any(|name| pool.serves(name));
        Decision {
            config,
            request: *request,
            occasion,
            pools: config.pools.iter().filter(serves).collect(),
            partitions,
            named: names.is_some(),
            others,
            by_reservation: request.reserved && given.is_none() && occasion == Occasion::Submit,
        }
    }

    /// Whether a client does not know the partition of the job, and leaves to the controller what depends on it.
    pub(super) fn lacks_partition(&self) -> bool {
        self.occasion == Occasion::Submit && !self.named
    }

    /// A partition of the job that does not let jobs ask for `gpu`, `shard` or `mps` directly.
    pub(super) fn closed_to_raw(&self) -> Option<&'a str> {
        let is_open = |name| self.config.rules(name).is_some_and(|rules| rules.allow_raw);
        self.partitions.iter().copied().find(|name| !is_open(name))
    }

    /// Removes the names of partitions that Slurm does not have, so that no message recommends them.
    pub(super) fn existing(&self, mut names: Vec<String>) -> Vec<String> {
        if let Some(Existing(exists)) = self.request.existing {
            names.retain(|name| exists(name));
        }
        names
    }

    /// The partitions for messages: `partition gpu`.
    pub(super) fn title(&self) -> String {
        match (self.named, self.partitions.as_slice()) {
            (true, [one]) => format!("partition {one}"),
            (true, many) => format!("partitions {}", many.join(", ")),
            (false, _) => "this cluster".to_owned(),
        }
    }
}
