//! What is given, and the text for it.

use super::asked::AskedFraction;
use super::{JobRequest, Occasion, Refusal, Scope, Verdict};
use crate::config::{Config, Pool};
use crate::fraction::Fraction;
use crate::layout::{LayoutKind, MenuEntry};
use crate::mechanism::Mechanism;
use crate::request::{GresForm, Item};
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
    let pools = of_mechanism(scope, asked.mechanism)?;
    let grant = rounding::grant(&pools, asked.ask)
        .map_err(|reason| no_grant(config, scope, &pools, asked, reason))?;
    if occasion != Occasion::Step {
        within_rules(config, scope, &pools, &grant)?;
    }
    let text = match asked.ask {
        // What was rewritten before stays as it is.
        Ask::Units(_) => request.tres_per_node.unwrap_or("").to_owned(),
        _ => {
            let texts: Vec<String> = items
                .iter()
                .enumerate()
                .map(|(position, item)| {
                    if position == asked.position {
                        counted(item.form.unwrap_or(request.form), &grant)
                    } else {
                        item.text.to_owned()
                    }
                })
                .collect();
            texts.join(",")
        }
    };
    Ok(Verdict::Rewritten {
        tres_per_node: text,
        entry: grant.entry,
        note: note(scope, &pools, asked, &grant),
    })
}

/// What Slurm counts for it.
fn counted(form: GresForm, grant: &Grant<'_>) -> String {
    let (prefix, units) = (form.prefix(), grant.entry.units);
    if grant.whole {
        let whole = LayoutKind::Whole.type_name();
        format!("{prefix}gpu:{whole}:1,{prefix}gpufrac:{units}")
    } else {
        format!("{prefix}gpufrac:{units},{prefix}shard:{units}")
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
        text: default.to_string(),
    };
    let grant = rounding::grant(&scope.pools, asked.ask)
        .map_err(|reason| no_grant(config, scope, &scope.pools, &asked, reason))?;
    within_rules(config, scope, &scope.pools, &grant)?;
    let counted = counted(request.form, &grant);
    let tres_per_node = match request.tres_per_node.filter(|list| !list.is_empty()) {
        Some(list) => format!("{list},{counted}"),
        None => counted,
    };
    Ok(Verdict::Rewritten {
        tres_per_node,
        entry: grant.entry,
        note: Some(format!(
            "gpufrac: partition {partition} gives {} to a job that asks for no GPU",
            grant.size
        )),
    })
}

fn of_mechanism<'a>(
    scope: &Scope<'a>,
    mechanism: Option<Mechanism>,
) -> Result<Vec<&'a Pool>, Refusal> {
    let Some(mechanism) = mechanism else {
        return Ok(scope.pools.clone());
    };
    let matching = |pool: &&&Pool| pool.mechanism == mechanism;
    let pools: Vec<&Pool> = scope.pools.iter().filter(matching).copied().collect();
    if pools.is_empty() {
        let mut there: Vec<Mechanism> = scope.pools.iter().map(|pool| pool.mechanism).collect();
        there.sort_unstable();
        there.dedup();
        return Err(Refusal::NoMechanism {
            scope: scope.title(),
            mechanism,
            there,
        });
    }
    Ok(pools)
}

/// The sizes that a user may have, for messages.
fn allowed<'a>(config: &Config, scope: &Scope<'_>, pools: &[&'a Pool]) -> Vec<&'a MenuEntry> {
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
    let Some(partition) = broken_rule(config, scope, grant.size) else {
        return Ok(());
    };
    Err(Refusal::OutsideRules {
        partition: partition.to_owned(),
        size: grant.size.fraction,
        sizes: fractions(&allowed(config, scope, pools)),
        named: scope.named,
    })
}

fn fractions(sizes: &[&MenuEntry]) -> Vec<Fraction> {
    sizes.iter().map(|size| size.fraction).collect()
}

fn no_grant(
    config: &Config,
    scope: &Scope<'_>,
    pools: &[&Pool],
    asked: &AskedFraction,
    reason: NoGrant,
) -> Refusal {
    let sizes = fractions(&allowed(config, scope, pools));
    let text = crate::request::quoted(&asked.text);
    let title = scope.title();
    match reason {
        NoGrant::NoWhole => Refusal::NoWhole {
            scope: title,
            sizes,
            elsewhere: partitions_of_whole_gpus(config),
        },
        NoGrant::TooLarge => Refusal::TooLarge {
            text,
            scope: title,
            sizes,
            elsewhere: partitions_of_whole_gpus(config),
        },
        NoGrant::NotOnMenu => Refusal::NotOnMenu {
            text,
            scope: title,
            sizes,
        },
        NoGrant::NothingInCommon => Refusal::NothingInCommon {
            text,
            scope: title,
            pools: pools.iter().map(|pool| pool.name.clone()).collect(),
            sizes,
            named: scope.named,
            one: scope.partitions.len() == 1,
        },
        NoGrant::Mechanisms(there) => Refusal::WhichMechanism {
            scope: title,
            there,
        },
    }
}

fn partitions_of_whole_gpus(config: &Config) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let whole = |pool: &&Pool| pool.layout.kind == LayoutKind::Whole;
    for name in config
        .pools
        .iter()
        .filter(whole)
        .flat_map(|p| &p.partitions)
    {
        if !found.contains(name) {
            found.push(name.clone());
        }
    }
    found
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
        partition: crate::request::quoted(given.unwrap_or("")),
        served,
    }
}

/// Says that, and why, more is given than was asked for.
fn note(
    scope: &Scope<'_>,
    pools: &[&Pool],
    asked: &AskedFraction,
    grant: &Grant<'_>,
) -> Option<String> {
    let size = grant.size;
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
        Ask::Memory(_) => crate::request::quoted(&asked.text),
    };
    let reason = if grant.lifted && !grant.whole {
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let (pools, title) = (names.join(", "), scope.title());
        format!(", the least that all pools of {title} have ({pools})")
    } else {
        String::new()
    };
    Some(format!(
        "gpufrac: rounded up from {shown} to {size}{reason}"
    ))
}
