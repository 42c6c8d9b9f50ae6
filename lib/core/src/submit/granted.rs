//! The grant for a fraction.

use super::decision::Decision;
use super::gpus::{Origin, RequestedFraction};
use super::job::{JobRequest, Occasion};
use super::offered::fractions;
use super::refusal::{FractionOption, Refusal};
use super::{several, types};
use crate::fraction::{Fraction, Units};
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, RequestError};
use crate::rounding::{self, Demand, Grant, NoGrant};

/// The grant for a fraction, with the Type of devices.
pub(super) struct Granted<'a> {
    pub(super) grant: Grant<'a>,
    /// The Type to write with the shares; None if any device will do.
    pub(super) shard_type: Option<&'static str>,
}

impl Granted<'_> {
    /// Whether Slurm counts the grant in whole devices; otherwise in shares of one device.
    ///
    /// A Slurm that forgets shares counts correctly if a whole GPU is requested as all shares of a device. A job cannot
    /// have shares of two devices there; [`several`] limits the jobs that can have two.
    pub(super) fn is_counted_in_devices(&self, request: &JobRequest<'_>) -> bool {
        let is_never_shared = self.grant.pools.iter().any(|pool| pool.is_never_shared());
        let is_several = self.grant.entry.units > Units::WHOLE;
        let is_forgotten = request.forgets_shares && !is_never_shared && !is_several;
        self.grant.whole.is_some() && !is_forgotten
    }
}

/// Rounds a fraction up, and checks the size against the rules of the partitions.
/// Errors: the pools have no such size, or the rules do not allow it.
pub(super) fn grant<'a>(
    decision: &Decision<'a>,
    requested: &RequestedFraction<'_>,
) -> Result<Granted<'a>, Refusal> {
    let mut pools = candidates(decision, requested)?;
    several::keep(decision, requested.demand, &mut pools)?;
    let granted = match decision.occasion {
        // A step divides the slice of its job. Only the node knows the pool of the slice.
        Occasion::Step => rounding::least(&pools, requested.demand),
        Occasion::Submit | Occasion::Modify => rounding::grant(&pools, requested.demand),
    };
    let grant = granted.map_err(|reason| no_grant(decision, &pools, requested, reason))?;
    if decision.occasion == Occasion::Step {
        return Ok(Granted {
            grant,
            shard_type: None,
        });
    }
    within_rules(decision, requested.option, &pools, &grant)?;
    let by_mechanism = requested.mechanism.is_some();
    let shard_type = types::needed(decision, &grant, by_mechanism)?;
    Ok(Granted { grant, shard_type })
}

/// The refusal of a ratio or a percentage: a size that the pools do not give must not be proposed in another notation.
pub(super) fn of_notation(decision: &Decision<'_>, refusal: Refusal) -> Refusal {
    let Refusal::Request(RequestError::Decimal { decimal, .. }) = &refusal else {
        return refusal;
    };
    if decision.pools.is_empty() {
        return refusal;
    }
    let is_per_task = decision
        .request
        .tres_per_task
        .is_some_and(request::names_fraction);
    let meant = RequestedFraction {
        option: if is_per_task { FractionOption::TresPerTask } else { FractionOption::Gres },
        origin: Origin::Item(0),
        mechanism: None,
        demand: Demand::Fraction(*decimal),
        type_name: None,
        text: decimal.to_string(),
    };
    match grant(decision, &meant) {
        Ok(_) => refusal,
        Err(other) => other,
    }
}

/// The pools that can serve the request.
fn candidates<'a>(
    decision: &Decision<'a>,
    requested: &RequestedFraction<'_>,
) -> Result<Vec<&'a Pool>, Refusal> {
    let mut pools = decision.pools.clone();
    if let Some(name) = &requested.type_name {
        pools.retain(|pool| pool.type_name() == name);
    }
    let Some(mechanism) = requested.mechanism else {
        return Ok(pools);
    };
    pools.retain(|pool| pool.mechanism == mechanism);
    if pools.is_empty() {
        return Err(Refusal::NoMechanism {
            option: requested.option,
            destination: decision.title(),
            mechanism,
            there: mechanisms(&decision.pools),
        });
    }
    Ok(pools)
}

fn mechanisms(pools: &[&Pool]) -> Vec<Mechanism> {
    let mut found: Vec<Mechanism> = pools.iter().map(|pool| pool.mechanism).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn within_rules(
    decision: &Decision<'_>,
    option: FractionOption,
    pools: &[&Pool],
    grant: &Grant<'_>,
) -> Result<(), Refusal> {
    let Some(partition) = decision.broken_rule(&grant.size) else {
        return Ok(());
    };
    Err(Refusal::OutsideRules {
        option,
        partition: partition.to_owned(),
        size: grant.size.fraction,
        sizes: fractions(&decision.allowed(pools)),
        named: decision.named,
    })
}

fn no_grant(
    decision: &Decision<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction<'_>,
    reason: NoGrant,
) -> Refusal {
    let sizes = decision.allowed(pools);
    let text = request::quoted(&requested.text);
    let (option, title) = (requested.option, decision.title());
    match (reason, requested.demand) {
        (NoGrant::TooLarge, Demand::Memory(_)) => Refusal::TooMuchMemory {
            text,
            destination: title,
            largest: sizes.last().map(ToString::to_string),
            elsewhere: decision.partitions_with(requested.demand),
        },
        (NoGrant::NoWhole, _) => Refusal::NoWhole {
            option,
            destination: title,
            sizes: fractions(&sizes),
            elsewhere: decision.partitions_with(Demand::Fraction(Fraction::ONE)),
        },
        (NoGrant::TooManyGpus { most }, _) => Refusal::TooManyGpus {
            text,
            most: Some(most),
            meant: None,
        },
        (NoGrant::TooLarge, _) => Refusal::TooLarge {
            option,
            text,
            destination: title,
            sizes: fractions(&sizes),
            elsewhere: decision.partitions_with(Demand::Fraction(Fraction::ONE)),
        },
        (NoGrant::NotOnMenu, _) => Refusal::NotOnMenu {
            option,
            text,
            destination: title,
            sizes: fractions(&sizes),
        },
        (NoGrant::NothingInCommon, _) => Refusal::NothingInCommon {
            option,
            text,
            destination: title,
            pools: pools.iter().map(|pool| pool.name.clone()).collect(),
            sizes: fractions(&sizes),
            by: single_mechanisms(decision, pools, requested),
            named: decision.named,
            one: decision.partitions.len() == 1,
        },
    }
}

/// The mechanisms that could serve the request if the request named one of them.
fn single_mechanisms(
    decision: &Decision<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction<'_>,
) -> Vec<Mechanism> {
    let mut found = mechanisms(pools);
    if found.len() < 2 || !decision.named {
        return Vec::new();
    }
    found.retain(|mechanism| {
        let requested = RequestedFraction {
            mechanism: Some(*mechanism),
            type_name: None,
            text: String::new(),
            ..*requested
        };
        grant(decision, &requested).is_ok()
    });
    found
}
