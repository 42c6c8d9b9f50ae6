//! What stands against a request, whatever its size.

use super::destination::Destination;
use super::job::{JobRequest, Occasion};
use super::refusal::{RawReason, Refusal};
use super::requested::{Elsewhere, bound_to_gpu};
use crate::config::Config;
use crate::request;

/// Whether nothing in the request stands against a fraction, whatever its size.
pub(super) fn fraction_alone(
    config: &Config,
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
    elsewhere: &Elsewhere,
) -> Result<(), Refusal> {
    if let Some(option) = elsewhere.gpu {
        return Err(Refusal::GpuElsewhere { option });
    }
    if let Some(option) = bound_to_gpu(request) {
        return Err(Refusal::PerGpu { option });
    }
    if request.exclusive {
        return Err(Refusal::Exclusive);
    }
    if request.core_spec {
        return Err(Refusal::CoreSpec);
    }
    if destination.pools.is_empty() {
        return Err(not_served(config, request));
    }
    Ok(())
}

/// Whether `shard` or `gpu` may be asked for as they are.
pub(super) fn refuse_raw(
    config: &Config,
    destination: &Destination<'_>,
    occasion: Occasion,
    name: &'static str,
    reason: RawReason,
) -> Result<(), Refusal> {
    let allowed = |partition: &&str| config.rules(partition).is_some_and(|rules| rules.allow_raw);
    let closed = destination.partitions.iter().find(|name| !allowed(name));
    // A client that does not know where the job will go leaves it to the controller.
    let undecided = occasion == Occasion::Submit && !destination.named;
    match closed {
        None => Ok(()),
        Some(_) if occasion == Occasion::Step || undecided => Ok(()),
        Some(_) if !destination.named => Err(Refusal::RawUnknownPartition { name }),
        Some(partition) => Err(Refusal::Raw {
            name,
            partition: (*partition).to_owned(),
            reason,
        }),
    }
}

/// A fraction is asked for where no pool is.
pub(super) fn not_served(config: &Config, request: &JobRequest<'_>) -> Refusal {
    let mut served: Vec<String> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
        if !served.contains(name) {
            served.push(name.clone());
        }
    }
    let given = request.partitions.or(request.default_partition);
    Refusal::NotServed {
        partition: request::quoted(given.unwrap_or("")),
        served,
    }
}
