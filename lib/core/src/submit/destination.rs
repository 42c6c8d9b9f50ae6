//! Where a job may run.

use super::job::{JobRequest, Occasion};
use crate::config::Config;
use crate::pool::Pool;

/// The partitions of a request, as far as they are known and have pools.
pub(super) struct Destination<'a> {
    /// Those with a pool; every partition that has one when the request names none.
    pub(super) partitions: Vec<&'a str>,
    /// All their pools, each once, in the order of the file.
    pub(super) pools: Vec<&'a Pool>,
    /// Whether the request, or the default, names partitions.
    pub(super) named: bool,
    /// Whether one of these has no pool, or the job may go to one that has none: a reservation's own.
    pub(super) others: bool,
    /// Whether a reservation may have a partition that comes before the default one.
    pub(super) by_reservation: bool,
}

impl<'a> Destination<'a> {
    pub(super) fn of(
        config: &'a Config,
        request: &JobRequest<'a>,
        occasion: Occasion,
    ) -> Destination<'a> {
        let given = request.partitions.filter(|names| !names.is_empty());
        // A reservation that a fraction is asked in has a partition of its own where the default one has none to give.
        let default = request
            .default_partition
            .filter(|name| !request.reserved || !config.pools_of_partition(name).is_empty());
        let names = match occasion {
            Occasion::Submit => given.or(default),
            // A job or a step that is there already need not be in the default partition.
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
        Destination {
            pools: config.pools.iter().filter(serves).collect(),
            partitions,
            named: names.is_some(),
            others,
            by_reservation: request.reserved && given.is_none() && occasion == Occasion::Submit,
        }
    }

    /// `partition gpu` for messages.
    pub(super) fn title(&self) -> String {
        match (self.named, self.partitions.as_slice()) {
            (true, [one]) => format!("partition {one}"),
            (true, many) => format!("partitions {}", many.join(", ")),
            (false, _) => "this cluster".to_owned(),
        }
    }
}
