//! What is given, and the text for it.

use super::destination::Destination;
use super::job::{JobRequest, Occasion, Verdict};
use super::refusal::{FractionOption, Refusal};
use super::requested::RequestedFraction;
use super::types;
use crate::config::Config;
use crate::fraction::Fraction;
use crate::layout::MenuEntry;
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, GresForm, Item, Kind};
use crate::rounding::{self, Demand, Grant, NoGrant};

/// Rounds a fraction up, checks it against the rules of the partitions, and rewrites the list.
pub(super) fn rewrite(
    config: &Config,
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
    items: &[Item<'_>],
    requested: &RequestedFraction,
) -> Result<Verdict, Refusal> {
    let (grant, shard_type) = settle(config, destination, requested, occasion)?;
    let texts: Vec<String> = items
        .iter()
        .enumerate()
        .map(|(position, item)| {
            let form = item.form.unwrap_or(request.form);
            match (requested.demand, &item.kind, shard_type) {
                // What was rewritten before stays as it is; only a client that did not know the
                // partition could not know the Type either.
                (Demand::Units(units), Kind::Shard(count), Some(_))
                    if count.type_name.is_none() && count.count == Some(units.0.into()) =>
                {
                    shards(form, shard_type, &grant)
                }
                (Demand::Fraction(_) | Demand::Memory(_), ..) if position == requested.position => {
                    counted(form, shard_type, &grant)
                }
                _ => item.text.to_owned(),
            }
        })
        .collect();
    Ok(Verdict::Rewritten {
        text: texts.join(","),
        entry: grant.entry,
        note: note(destination, requested, &grant),
    })
}

/// What is given, and the Type to write with its shares.
fn settle<'a>(
    config: &Config,
    destination: &Destination<'a>,
    requested: &RequestedFraction,
    occasion: Occasion,
) -> Result<(Grant<'a>, Option<&'static str>), Refusal> {
    let pools = candidates(destination, requested)?;
    let granted = match occasion {
        // A step divides what its job has, of one pool that only the node knows.
        Occasion::Step => rounding::least(&pools, requested.demand),
        Occasion::Submit | Occasion::Modify => rounding::grant(&pools, requested.demand),
    };
    let no_grant = |reason| no_grant(config, destination, &pools, requested, occasion, reason);
    let grant = granted.map_err(no_grant)?;
    if occasion == Occasion::Step {
        return Ok((grant, None));
    }
    within_rules(config, destination, requested.option, &pools, &grant)?;
    let by_mechanism = requested.mechanism.is_some();
    let shard_type = types::needed(config, destination, &grant, occasion, by_mechanism)?;
    Ok((grant, shard_type))
}

/// What Slurm counts for it.
fn counted(form: GresForm, shard_type: Option<&str>, grant: &Grant<'_>) -> String {
    let (prefix, units) = (form.prefix(), grant.entry.units);
    match grant.whole {
        Some(name) => format!("{prefix}gpu:{name}:1,{prefix}gpufrac:{units}"),
        None => format!(
            "{prefix}gpufrac:{units},{}",
            shards(form, shard_type, grant)
        ),
    }
}

fn shards(form: GresForm, type_name: Option<&str>, grant: &Grant<'_>) -> String {
    let (prefix, units) = (form.prefix(), grant.entry.units);
    match type_name {
        Some(name) => format!("{prefix}shard:{name}:{units}"),
        None => format!("{prefix}shard:{units}"),
    }
}

/// What the partition gives to a job that asks for no GPU.
pub(super) fn default(
    config: &Config,
    destination: &Destination<'_>,
    request: &JobRequest<'_>,
) -> Result<Verdict, Refusal> {
    let defaults = destination.partitions.iter().filter_map(|partition| {
        let default = config.rules(partition)?.default?;
        Some((*partition, default))
    });
    let Some((partition, default)) = defaults.max_by_key(|(_, default)| *default) else {
        return Ok(Verdict::Untouched);
    };
    let requested = RequestedFraction {
        option: FractionOption::Gres,
        position: 0,
        mechanism: None,
        demand: Demand::Fraction(default),
        type_name: None,
        text: default.to_string(),
    };
    let (grant, shard_type) = settle(config, destination, &requested, Occasion::Submit)?;
    let counted = counted(request.form, shard_type, &grant);
    let text = match request.tres_per_node.filter(|list| !list.is_empty()) {
        Some(list) => format!("{list},{counted}"),
        None => counted,
    };
    Ok(Verdict::Rewritten {
        text,
        entry: grant.entry,
        note: Some(format!(
            "gpufrac: partition {partition} gives {} to a job that asks for no GPU",
            grant.size
        )),
    })
}

/// The pools that can be meant.
fn candidates<'a>(
    destination: &Destination<'a>,
    requested: &RequestedFraction,
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

/// The sizes that a user may have, for messages.
fn allowed(config: &Config, destination: &Destination<'_>, pools: &[&Pool]) -> Vec<MenuEntry> {
    let mut sizes = rounding::sizes(pools);
    sizes.retain(|size| broken_rule(config, destination, size).is_none());
    sizes
}

fn broken_rule<'a>(
    config: &Config,
    destination: &Destination<'a>,
    size: &MenuEntry,
) -> Option<&'a str> {
    destination.partitions.iter().copied().find(|partition| {
        let rules = config.rules(partition);
        rules.is_some_and(|rules| !rules.allow(size))
    })
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

fn fractions(sizes: &[MenuEntry]) -> Vec<Fraction> {
    sizes.iter().map(|size| size.fraction).collect()
}

fn no_grant(
    config: &Config,
    destination: &Destination<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction,
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
            by: single_mechanisms(config, destination, pools, requested, occasion),
            named: destination.named,
            one: destination.partitions.len() == 1,
        },
    }
}

/// The mechanisms that could serve the request, if it named them.
fn single_mechanisms(
    config: &Config,
    destination: &Destination<'_>,
    pools: &[&Pool],
    requested: &RequestedFraction,
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
        settle(config, destination, &requested, occasion).is_ok()
    });
    found
}

/// The partitions that give as much.
fn partitions_with(config: &Config, demand: Demand) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
        let rules = config.rules(name);
        let allowed = |grant: &Grant<'_>| rules.is_none_or(|rules| rules.allow(&grant.size));
        let granted = rounding::grant(&config.pools_of_partition(name), demand);
        if !found.contains(name) && granted.is_ok_and(|grant| allowed(&grant)) {
            found.push(name.clone());
        }
    }
    found
}

/// Says that, and why, more is given than was asked for.
fn note(
    destination: &Destination<'_>,
    requested: &RequestedFraction,
    grant: &Grant<'_>,
) -> Option<String> {
    let size = &grant.size;
    let shown = match requested.demand {
        Demand::Units(_) => return None,
        Demand::Fraction(fraction) => {
            let shown = fraction.to_string();
            // 0.143 and 1/7 are the same to who asks.
            if shown == size.fraction.to_string() {
                return None;
            }
            shown
        }
        Demand::Memory(_) => request::quoted(&requested.text),
    };
    let reason = if grant.lifted {
        let names: Vec<&str> = grant.pools.iter().map(|pool| pool.name.as_str()).collect();
        let (pools, title) = (names.join(", "), destination.title());
        format!(", the least that all pools of {title} have ({pools})")
    } else {
        String::new()
    };
    Some(format!(
        "gpufrac: rounded up from {shown} to {size}{reason}"
    ))
}
