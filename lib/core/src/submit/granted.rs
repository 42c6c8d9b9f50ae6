//! What is given, and the text for it.

use super::asked::AskedFraction;
use super::job::{JobRequest, Occasion, Verdict};
use super::refusal::Refusal;
use super::scope::Scope;
use super::types;
use crate::config::Config;
use crate::fraction::Fraction;
use crate::layout::MenuEntry;
use crate::mechanism::Mechanism;
use crate::pool::Pool;
use crate::request::{self, GresForm, Item, Kind};
use crate::rounding::{self, Ask, Grant, NoGrant};

/// Rounds a fraction up, checks it against the rules of the partitions, and rewrites the list.
pub(super) fn rewrite(
    config: &Config,
    scope: &Scope<'_>,
    request: &JobRequest<'_>,
    occasion: Occasion,
    items: &[Item<'_>],
    asked: &AskedFraction,
) -> Result<Verdict, Refusal> {
    let (grant, shard_type) = settle(config, scope, asked, occasion)?;
    let texts: Vec<String> = items
        .iter()
        .enumerate()
        .map(|(position, item)| {
            let form = item.form.unwrap_or(request.form);
            match (asked.ask, &item.kind, shard_type) {
                // What was rewritten before stays as it is; only a client that did not know the
                // partition could not know the Type either.
                (Ask::Units(units), Kind::Shard(count), Some(_))
                    if count.type_name.is_none() && count.count == Some(units.0.into()) =>
                {
                    shards(form, shard_type, &grant)
                }
                (Ask::Fraction(_) | Ask::Memory(_), ..) if position == asked.position => {
                    counted(form, shard_type, &grant)
                }
                _ => item.text.to_owned(),
            }
        })
        .collect();
    Ok(Verdict::Rewritten {
        text: texts.join(","),
        entry: grant.entry,
        note: note(scope, asked, &grant),
    })
}

/// What is given, and the Type to write with its shares.
fn settle<'a>(
    config: &Config,
    scope: &Scope<'a>,
    asked: &AskedFraction,
    occasion: Occasion,
) -> Result<(Grant<'a>, Option<&'static str>), Refusal> {
    let pools = candidates(scope, asked)?;
    let granted = match occasion {
        // A step divides what its job has, of one pool that only the node knows.
        Occasion::Step => rounding::least(&pools, asked.ask),
        Occasion::Submit | Occasion::Modify => rounding::grant(&pools, asked.ask),
    };
    let no_grant = |reason| no_grant(config, scope, &pools, asked, occasion, reason);
    let grant = granted.map_err(no_grant)?;
    if occasion == Occasion::Step {
        return Ok((grant, None));
    }
    within_rules(config, scope, &pools, &grant)?;
    let by_mechanism = asked.mechanism.is_some();
    let shard_type = types::needed(config, scope, &grant, occasion, by_mechanism)?;
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
    scope: &Scope<'_>,
    request: &JobRequest<'_>,
) -> Result<Verdict, Refusal> {
    let defaults = scope.partitions.iter().filter_map(|partition| {
        let default = config.rules(partition)?.default?;
        Some((*partition, default))
    });
    let Some((partition, default)) = defaults.max_by_key(|(_, default)| *default) else {
        return Ok(Verdict::Untouched);
    };
    let asked = AskedFraction {
        position: 0,
        mechanism: None,
        ask: Ask::Fraction(default),
        type_name: None,
        text: default.to_string(),
    };
    let (grant, shard_type) = settle(config, scope, &asked, Occasion::Submit)?;
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
fn candidates<'a>(scope: &Scope<'a>, asked: &AskedFraction) -> Result<Vec<&'a Pool>, Refusal> {
    let mut pools = scope.pools.clone();
    if let Some(name) = &asked.type_name {
        pools.retain(|pool| pool.type_name() == name);
    }
    let Some(mechanism) = asked.mechanism else {
        return Ok(pools);
    };
    pools.retain(|pool| pool.mechanism == mechanism);
    if pools.is_empty() {
        return Err(Refusal::NoMechanism {
            scope: scope.title(),
            mechanism,
            there: mechanisms(&scope.pools),
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
fn allowed(config: &Config, scope: &Scope<'_>, pools: &[&Pool]) -> Vec<MenuEntry> {
    let mut sizes = rounding::sizes(pools);
    sizes.retain(|size| broken_rule(config, scope, size).is_none());
    sizes
}

fn broken_rule<'a>(config: &Config, scope: &Scope<'a>, size: &MenuEntry) -> Option<&'a str> {
    scope.partitions.iter().copied().find(|partition| {
        let rules = config.rules(partition);
        rules.is_some_and(|rules| !rules.allow(size))
    })
}

fn within_rules(
    config: &Config,
    scope: &Scope<'_>,
    pools: &[&Pool],
    grant: &Grant<'_>,
) -> Result<(), Refusal> {
    let Some(partition) = broken_rule(config, scope, &grant.size) else {
        return Ok(());
    };
    Err(Refusal::OutsideRules {
        partition: partition.to_owned(),
        size: grant.size.fraction,
        sizes: fractions(&allowed(config, scope, pools)),
        named: scope.named,
    })
}

fn fractions(sizes: &[MenuEntry]) -> Vec<Fraction> {
    sizes.iter().map(|size| size.fraction).collect()
}

fn no_grant(
    config: &Config,
    scope: &Scope<'_>,
    pools: &[&Pool],
    asked: &AskedFraction,
    occasion: Occasion,
    reason: NoGrant,
) -> Refusal {
    let sizes = allowed(config, scope, pools);
    let text = request::quoted(&asked.text);
    let title = scope.title();
    match (reason, asked.ask) {
        (NoGrant::TooLarge, Ask::Memory(_)) => Refusal::TooMuchMemory {
            text,
            scope: title,
            largest: sizes.last().map(ToString::to_string),
            elsewhere: partitions_with(config, asked.ask),
        },
        (NoGrant::NoWhole, _) => Refusal::NoWhole {
            scope: title,
            sizes: fractions(&sizes),
            elsewhere: partitions_with(config, Ask::Fraction(Fraction::ONE)),
        },
        (NoGrant::TooLarge, _) => Refusal::TooLarge {
            text,
            scope: title,
            sizes: fractions(&sizes),
            elsewhere: partitions_with(config, Ask::Fraction(Fraction::ONE)),
        },
        (NoGrant::NotOnMenu, _) => Refusal::NotOnMenu {
            text,
            scope: title,
            sizes: fractions(&sizes),
        },
        (NoGrant::NothingInCommon, _) => Refusal::NothingInCommon {
            text,
            scope: title,
            pools: pools.iter().map(|pool| pool.name.clone()).collect(),
            sizes: fractions(&sizes),
            by: single_mechanisms(config, scope, pools, asked, occasion),
            named: scope.named,
            one: scope.partitions.len() == 1,
        },
    }
}

/// The mechanisms that could serve the request, if it named them.
fn single_mechanisms(
    config: &Config,
    scope: &Scope<'_>,
    pools: &[&Pool],
    asked: &AskedFraction,
    occasion: Occasion,
) -> Vec<Mechanism> {
    let mut found = mechanisms(pools);
    if found.len() < 2 || !scope.named {
        return Vec::new();
    }
    found.retain(|mechanism| {
        let asked = AskedFraction {
            mechanism: Some(*mechanism),
            type_name: None,
            text: String::new(),
            ..*asked
        };
        settle(config, scope, &asked, occasion).is_ok()
    });
    found
}

/// The partitions that give as much.
fn partitions_with(config: &Config, ask: Ask) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
        let rules = config.rules(name);
        let allowed = |grant: &Grant<'_>| rules.is_none_or(|rules| rules.allow(&grant.size));
        let granted = rounding::grant(&config.pools_of_partition(name), ask);
        if !found.contains(name) && granted.is_ok_and(|grant| allowed(&grant)) {
            found.push(name.clone());
        }
    }
    found
}

/// Says that, and why, more is given than was asked for.
fn note(scope: &Scope<'_>, asked: &AskedFraction, grant: &Grant<'_>) -> Option<String> {
    let size = &grant.size;
    let shown = match asked.ask {
        Ask::Units(_) => return None,
        Ask::Fraction(fraction) => {
            let shown = fraction.to_string();
            // 0.143 and 1/7 are the same to who asks.
            if shown == size.fraction.to_string() {
                return None;
            }
            shown
        }
        Ask::Memory(_) => request::quoted(&asked.text),
    };
    let reason = if grant.lifted {
        let names: Vec<&str> = grant.pools.iter().map(|pool| pool.name.as_str()).collect();
        let (pools, title) = (names.join(", "), scope.title());
        format!(", the least that all pools of {title} have ({pools})")
    } else {
        String::new()
    };
    Some(format!(
        "gpufrac: rounded up from {shown} to {size}{reason}"
    ))
}
