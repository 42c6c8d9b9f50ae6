//! Which Type of device a job must ask for.

use super::destination::Destination;
use super::job::Occasion;
use super::refusal::Refusal;
use crate::config::Config;
use crate::device_type::{self, only_type};
use crate::rounding::Grant;

/// The Type to write with shares; None if any device will do. A whole GPU has its Type anyway.
pub(super) fn needed(
    config: &Config,
    destination: &Destination<'_>,
    grant: &Grant<'_>,
    occasion: Occasion,
    by_mechanism: bool,
) -> Result<Option<&'static str>, Refusal> {
    let undecided = !destination.named && occasion == Occasion::Submit;
    // The Type for which all pools are of the mechanism asked for.
    let same = |name: &str| {
        let mut alike = config.pools.iter().filter(|pool| pool.type_name() == name);
        alike.all(|pool| Some(pool.mechanism) == grant.entry.mechanism)
    };
    let of_mechanism = only_type(&grant.pools).filter(|name| same(name));
    // Who names several partitions will have a GPU of any of them, wherever the job starts.
    let any = destination.named;
    match device_type::of_pools(
        &config.pools,
        &destination.partitions,
        &grant.pools,
        grant.whole,
        any,
    ) {
        // Devices that lend no shares have one all the same, for Slurm's sake (gres.conf): only the Type keeps a
        // request of one unit away from it.
        Ok(None) if grant.whole.is_none() && grant.entry.units.0 == 1 && !undecided => {
            only_type(&grant.pools)
                .map(Some)
                .ok_or_else(|| Refusal::OneUnit {
                    destination: destination.title(),
                })
        }
        Ok(found) => Ok(found),
        // A client that does not know where the job will go leaves it to the controller, and says
        // no more than the mechanism.
        Err(_) if undecided && !by_mechanism => Ok(None),
        Err(_) if undecided && of_mechanism.is_some() => Ok(of_mechanism),
        Err(other) => Err(Refusal::WhichType {
            destination: destination.title(),
            other: other.name.clone(),
            way: match destination.partitions.as_slice() {
                _ if !destination.named => "name the job's partition in the same request",
                [_] => "leave the mechanism out",
                _ => "name a single partition",
            },
        }),
    }
}
