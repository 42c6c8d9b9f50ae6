//! Chooses the Type of device that a job must ask for.

use super::decision::Decision;
use super::refusal::Refusal;
use crate::config::Config;
use crate::device_type::{self, only_type};
use crate::rounding::Grant;

/// The Type to write with shares; None if any device will do. The text for a whole GPU always has a Type.
pub(super) fn needed(
    decision: &Decision<'_>,
    grant: &Grant<'_>,
    by_mechanism: bool,
) -> Result<Option<&'static str>, Refusal> {
    let found = among_partitions(decision, grant, by_mechanism)?;
    if by_mechanism && decision.by_reservation {
        keeping_mechanism(decision, grant, found)
    } else {
        Ok(found)
    }
}

/// The Type that limits a job to the pools of its partitions.
fn among_partitions(
    decision: &Decision<'_>,
    grant: &Grant<'_>,
    by_mechanism: bool,
) -> Result<Option<&'static str>, Refusal> {
    let undecided = decision.lacks_partition();
    let of_mechanism =
        only_type(&grant.pools).filter(|name| is_of_mechanism(decision.config, grant, name));
    // A job that names several partitions may get a GPU of any of them, wherever it starts.
    let any = decision.named;
    match device_type::of_pools(
        &decision.config.pools,
        &decision.partitions,
        &grant.pools,
        grant.whole,
        any,
    ) {
        // A device that lends no shares has one, because Slurm needs one (gres.conf). Only the Type keeps a request
        // for one unit from this share.
        Ok(None) if grant.whole.is_none() && grant.entry.units.0 == 1 && !undecided => {
            only_type(&grant.pools)
                .map(Some)
                .ok_or_else(|| Refusal::OneUnit {
                    destination: decision.title(),
                })
        }
        Ok(found) => Ok(found),
        // A client that does not know the partition leaves the Type to the controller, and passes on only the
        // mechanism.
        Err(_) if undecided && !by_mechanism => Ok(None),
        Err(_) if undecided && of_mechanism.is_some() => Ok(of_mechanism),
        Err(other) => Err(Refusal::WhichType {
            destination: decision.title(),
            other: other.name.clone(),
            way: match decision.partitions.as_slice() {
                _ if !decision.named => "name the job's partition in the same request",
                [_] => "leave the mechanism out",
                _ => "name a single partition",
            },
        }),
    }
}

/// The Type that limits a job to its requested mechanism, whatever partition its reservation has.
fn keeping_mechanism(
    decision: &Decision<'_>,
    grant: &Grant<'_>,
    found: Option<&'static str>,
) -> Result<Option<&'static str>, Refusal> {
    let mut others = decision.config.pools.iter();
    let other = others.find(|pool| Some(pool.mechanism) != grant.entry.mechanism);
    let kept = found.or_else(|| only_type(&grant.pools));
    match (other, grant.whole.or(kept)) {
        (None, _) => Ok(found),
        (Some(_), Some(name)) if is_of_mechanism(decision.config, grant, name) => Ok(kept),
        (Some(other), _) => Err(Refusal::WhichType {
            destination: decision.title(),
            other: other.name.clone(),
            way: "name the job's partition in the same request",
        }),
    }
}

/// Whether all pools of a Type have the mechanism of the grant.
fn is_of_mechanism(config: &Config, grant: &Grant<'_>, name: &str) -> bool {
    let mut alike = config.pools.iter().filter(|pool| pool.type_name() == name);
    alike.all(|pool| Some(pool.mechanism) == grant.entry.mechanism)
}
