//! The grant for a fraction.

use super::destination::Destination;
use super::job::{JobRequest, Occasion};
use super::offered::{allowed, broken_rule, fractions, partitions_with};
use super::refusal::{FractionOption, Refusal};
use super::requested::{Origin, RequestedFraction};
use super::{several, types};
use crate::config::Config;
use crate::fraction::{Fraction, Units};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, GresForm, RequestError};
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
    /// Slurm before 23.11.5 forgets that shares of a device are in use when the first of their jobs ends
    /// (`_job_dealloc` in `gres_ctld.c`), and then gives the device whole to another job. Slurm counts correctly if a
    /// whole GPU is requested as all shares of a device. A job cannot have shares of two devices there; [`several`]
    /// limits the jobs that can have two.
    pub(super) fn is_counted_in_devices(&self, form: GresForm) -> bool {
        let is_never_shared = self.grant.pools.iter().any(|pool| is_never_shared(pool));
        let is_several = self.grant.entry.units > Units::WHOLE;
        let is_forgotten = form == GresForm::Colon && !is_never_shared && !is_several;
        self.grant.whole.is_some() && !is_forgotten
    }
}

/// Whether the GPUs of a pool are only lent whole.
pub(super) fn is_never_shared(pool: &Pool) -> bool {
    pool.layout.kind == LayoutKind::Whole
}

/// Rounds a fraction up, and checks the size against the rules of the partitions.
///
/// # Errors
/// The pools have no such size, or the rules do not allow it.
pub(super) fn grant<'a>(
    config: &Config,
    destination: &Destination<'a>,
    requested: &RequestedFraction<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Granted<'a>, Refusal> {
    let mut pools = candidates(destination, requested)?;
    several::keep(
        config,
        destination,
        request,
        occasion,
        requested.demand,
        &mut pools,
    )?;
    let granted = match occasion {
        // A step divides the slice of its job. Only the node knows the pool of the slice.
        Occasion::Step => rounding::least(&pools, requested.demand),
        Occasion::Submit | Occasion::Modify => rounding::grant(&pools, requested.demand),
    };
    let no_grant = |reason| {
        no_grant(
            config,
            destination,
            &pools,
            requested,
            request,
            occasion,
            reason,
        )
    };
    let grant = granted.map_err(no_grant)?;
    if occasion == Occasion::Step {
        return Ok(Granted {
            grant,
            shard_type: None,
        });
    }
    within_rules(config, destination, requested.option, &pools, &grant)?;
    let by_mechanism = requested.mechanism.is_some();
    let shard_type = types::needed(config, destination, &grant, occasion, by_mechanism)?;
    Ok(Granted { grant, shard_type })
}

/// The refusal of a ratio or a percentage: a size that the pools do not give must not be proposed in another notation.
pub(super) fn of_notation(
    config: &Config,
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
    refusal: Refusal,
) -> Refusal {
    let Refusal::Request(RequestError::Decimal { decimal, .. }) = &refusal else {
        return refusal;
    };
    if destination.pools.is_empty() {
        return refusal;
    }
    let is_per_task = request.tres_per_task.is_some_and(request::names_fraction);
    let meant = RequestedFraction {
        option: if is_per_task { FractionOption::TresPerTask } else { FractionOption::Gres },
        origin: Origin::Item(0),
        mechanism: None,
        demand: Demand::Fraction(*decimal),
        type_name: None,
        text: decimal.to_string(),
    };
    match grant(config, destination, &meant, request, occasion) {
        Ok(_) => refusal,
        Err(other) => other,
    }
}

/// The pools that can serve the request.
fn candidates<'a>(
    destination: &Destination<'a>,
    requested: &RequestedFraction<'_>,
) -> Result<Vec<&'a Pool>, Refusal> {
    let mut pools = destination.pools.clone();
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
            destination: destination.title(),
            mechanism,
            there: mechanisms(&destination.pools),
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
    config: &Config,
    destination: &Destination<'_>,
    option: FractionOption,
    pools: &[&Pool],
    grant: &Grant<'_>,
) -> Result<(), Refusal> {
    let Some(partition) = broken_rule(config, destination, &grant.size) else {
        return Ok(());
    };
    Err(Refusal::OutsideRules {
        option,
        partition: partition.to_owned(),
        size: grant.size.fraction,
        sizes: fractions(&allowed(config, destination, pools)),
        named: destination.named,
    })
}

fn no_grant(
    config: &Config,
    destination: &Destination<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
    reason: NoGrant,
) -> Refusal {
    let sizes = allowed(config, destination, pools);
    let text = request::quoted(&requested.text);
    let (option, title) = (requested.option, destination.title());
    match (reason, requested.demand) {
        (NoGrant::TooLarge, Demand::Memory(_)) => Refusal::TooMuchMemory {
            text,
            destination: title,
            largest: sizes.last().map(ToString::to_string),
            elsewhere: partitions_with(config, requested.demand),
        },
        (NoGrant::NoWhole, _) => Refusal::NoWhole {
            option,
            destination: title,
            sizes: fractions(&sizes),
            elsewhere: partitions_with(config, Demand::Fraction(Fraction::ONE)),
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
            elsewhere: partitions_with(config, Demand::Fraction(Fraction::ONE)),
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
            by: single_mechanisms(config, destination, pools, requested, request, occasion),
            named: destination.named,
            one: destination.partitions.len() == 1,
        },
    }
}

/// The mechanisms that could serve the request if the request named one of them.
fn single_mechanisms(
    config: &Config,
    destination: &Destination<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Vec<Mechanism> {
    let mut found = mechanisms(pools);
    if found.len() < 2 || !destination.named {
        return Vec::new();
    }
    found.retain(|mechanism| {
        let requested = RequestedFraction {
            mechanism: Some(*mechanism),
            type_name: None,
            text: String::new(),
            ..*requested
        };
        grant(config, destination, &requested, request, occasion).is_ok()
    });
    found
}
