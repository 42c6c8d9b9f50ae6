//! Writes the text that Slurm counts, and the entry.

use super::burst;
use super::decision::Decision;
use super::gpus::{Origin, RequestedFraction};
use super::granted::Granted;
use super::job::{JobRequest, Verdict};
use super::refusal::{FractionOption, Refusal};
use super::share;
use super::texts::Texts;
use crate::entry::Entry;
use crate::request::{self, GresForm, Item, Kind};
use crate::rounding::{Demand, Grant};

/// Writes the counts of the grant into the option that asked for it.
/// Errors: Slurm could read the new text in another way; this is a fault of gpufrac.
pub(super) fn verdict(
    decision: &Decision<'_>,
    texts: &Texts<'_>,
    requested: &RequestedFraction<'_>,
    granted: Granted<'_>,
) -> Result<Verdict, Refusal> {
    let request = &decision.request;
    let (text, note) = match requested.origin {
        Origin::Item(position) => {
            let items = texts.of(requested.option);
            let text = rewritten(request, items, position, requested.demand, &granted);
            (text, note(decision, requested, &granted.grant))
        }
        Origin::Default(partition) => (
            appended(request, &granted),
            Some(format!(
                "gpufrac: partition {partition} gives {} to a job that asks for no GPU",
                granted.grant.size
            )),
        ),
    };
    if request.marked {
        request::refuse_misread(&text, request.form)?
    } else {
        request::refuse_ambiguous(&text, request.form)?
    }
    if let Some(burst) = request.burst {
        burst::allow(&granted.grant.pools, granted.grant.entry.units, burst)?;
    }
    let entry = Entry {
        per_task: requested.option == FractionOption::TresPerTask,
        burst: request.burst,
        ..granted.grant.entry
    };
    let (share, with_it) = share::of(decision, requested, &granted)?;
    let lines: Vec<String> = note.into_iter().chain(with_it).collect();
    Ok(Verdict::Rewritten {
        text,
        entry,
        share,
        note: (!lines.is_empty()).then(|| lines.join("\n")),
    })
}

/// The list with the counts in place of the item at `position`.
fn rewritten(
    request: &JobRequest<'_>,
    items: &[Item<'_>],
    position: usize,
    demand: Demand,
    granted: &Granted<'_>,
) -> String {
    let texts = items.iter().enumerate().map(|(at, item)| {
        match (demand, &item.kind, granted.shard_type) {
            // A text that was rewritten earlier stays the same. Only a client that did not know the partition can
            // have left out the Type.
            (Demand::Units(units), Kind::Shard(count), Some(_))
                if count.type_name.is_none() && count.count == Some(units.0.into()) =>
            {
                shards(request.form, granted)
            }
            (Demand::Fraction(_) | Demand::Gpus(_) | Demand::Memory(_), ..) if at == position => {
                counted(request, granted)
            }
            _ => item.text.to_owned(),
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The list of `--gres` with the counts added.
fn appended(request: &JobRequest<'_>, granted: &Granted<'_>) -> String {
    let counted = counted(request, granted);
    match request.tres_per_node.filter(|list| !list.is_empty()) {
        Some(list) => format!("{list},{counted}"),
        None => counted,
    }
}

/// The GRES that Slurm counts for the grant.
fn counted(request: &JobRequest<'_>, granted: &Granted<'_>) -> String {
    let (prefix, units) = (request.form.prefix(), granted.grant.entry.units);
    match granted.grant.whole {
        Some(name) if granted.is_counted_in_devices(request) => {
            let gpus = units.gpus().unwrap_or(1);
            format!("{prefix}gpu:{name}:{gpus},{prefix}gpufrac:{units}")
        }
        Some(name) => format!("{prefix}gpufrac:{units},{prefix}shard:{name}:{units}"),
        None => format!("{prefix}gpufrac:{units},{}", shards(request.form, granted)),
    }
}

fn shards(form: GresForm, granted: &Granted<'_>) -> String {
    let (prefix, units) = (form.prefix(), granted.grant.entry.units);
    match granted.shard_type {
        Some(name) => format!("{prefix}shard:{name}:{units}"),
        None => format!("{prefix}shard:{units}"),
    }
}

/// The note that more is given than was asked for, with the reason.
fn note(
    decision: &Decision<'_>,
    requested: &RequestedFraction<'_>,
    grant: &Grant<'_>,
) -> Option<String> {
    let size = &grant.size;
    let shown = match requested.demand {
        Demand::Units(_) | Demand::Gpus(_) => return None,
        Demand::Fraction(fraction) => {
            let shown = fraction.to_string();
            // To a user 0.143 and 1/7 are the same.
            if shown == size.fraction.to_string() {
                return None;
            }
            shown
        }
        Demand::Memory(_) => request::quoted(&requested.text),
    };
    let reason = if grant.lifted {
        let names: Vec<&str> = grant.pools.iter().map(|pool| pool.name.as_str()).collect();
        let (pools, title) = (names.join(", "), decision.title());
        format!(", the least that all pools of {title} have ({pools})")
    } else {
        String::new()
    };
    Some(format!(
        "gpufrac: rounded up from {shown} to {size}{reason}"
    ))
}
