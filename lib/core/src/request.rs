//! The grammar of requests: one parser of Slurm's tres strings for all plugins.
//!
//! ```text
//! list     = item { "," item }
//! item     = [ "gres:" | "gres/" ] name { (":" | "=") word }
//! gpufrac  = [ mechanism ":" ] ( decimal | memory | integer ) | "percent" ":" integer
//! ```
//! Examples: `gpufrac:0.25`, `gpufrac:mig:.25`, `gpufrac:10G`, `gpufrac:percent:25`. An integer above one is a number
//! of whole GPUs, or, next to devices or shares, the number of units that gpufrac itself wrote earlier. `gpu:0.25`, and
//! `gpu:gpufrac:0.25`, which `--gpus-per-node` makes of its value, mean the same: Slurm has no parts of `gpu`. Names of
//! GRES are case-sensitive in Slurm. `GPUFRAC:0.25` is refused with a hint; `GPU`, `Shard` and `MPS` fall under the
//! same rules as `gpu`, `shard` and `mps`, so that no spelling evades the rules. Every other item stays as it is.

use crate::mechanism::{Mechanism, UnknownMechanism};

mod ambiguous;
mod counted;
mod error;
mod item;
mod misspelt;
pub(crate) mod value;

#[cfg(test)]
pub(crate) mod tests;

pub use ambiguous::{refuse_ambiguous, refuse_misread};
pub use error::RequestError;
pub use item::{Amount, Count, GresForm, Item, Kind};
pub use misspelt::refuse_misspelt;
pub(crate) use value::is_type;

/// The GRES that users ask for.
const NAME: &str = "gpufrac";

/// The unit of an amount for programs that pass on GRES only as `name:type:integer`.
const PERCENT: &str = "percent";

/// Whether a tres string names a fraction, well-formed or not. A quick test: gpufrac ignores all other texts.
pub fn names_fraction(list: &str) -> bool {
    let named = |part: &[u8]| part.eq_ignore_ascii_case(NAME.as_bytes());
    list.as_bytes().windows(NAME.len()).any(named)
        || list.split(',').any(|item| part_of_gpu(item).is_some())
}

/// Whether a tres string is meant for a fraction: it names one, or misspells it.
pub fn means_fraction(list: &str) -> bool {
    names_fraction(list) || refuse_misspelt(list).is_err()
}

/// The list with each fraction written as `gpufrac`, without marks: `gpu:0.25` becomes `gpufrac:0.25`. Slurm's
/// clients accept no other spelling.
pub fn spelled_out(list: &str) -> String {
    let items = list.split(',').map(|item| match part_of_gpu(item) {
        Some(amount) => format!("{NAME}:{amount}"),
        None => without_mark(item).to_owned(),
    });
    items.collect::<Vec<_>>().join(",")
}

/// Splits a tres string. The items joined by commas are the string again.
pub fn parse(list: &str) -> Result<Vec<Item<'_>>, RequestError> {
    list.split(',').map(item).collect()
}

/// An item without the mark that Slurm adds before it: `gres:tmpdisk:5` becomes `tmpdisk:5`.
pub fn without_mark(item: &str) -> &str {
    [GresForm::Colon, GresForm::Slash]
        .iter()
        .find_map(|form| item.strip_prefix(form.prefix()))
        .unwrap_or(item)
}

/// The text for a message: as long as a line of a terminal, without control characters and without Slurm's mark.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    let text = without_mark(text);
    let mut short: String = text
        .chars()
        .take(MAX_CHARS)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        short.push_str("...");
    }
    short
}

fn item(text: &str) -> Result<Item<'_>, RequestError> {
    let (form, body) = without_prefix(text);
    let separator = |c: char| c == ':' || c == '=';
    let (name, rest) = match body.split_once(separator) {
        Some((name, rest)) => (name, Some(rest)),
        None => (body, None),
    };
    let parts: Vec<&str> = rest.map_or_else(Vec::new, |rest| rest.split(separator).collect());
    let kind = if name.eq_ignore_ascii_case(NAME) {
        gpufrac(text, name, &parts)?
    } else if name.eq_ignore_ascii_case("gpu") {
        match (parts.split_first(), part_of_gpu(text)) {
            (Some((inner, parts)), _) if inner.eq_ignore_ascii_case(NAME) => {
                gpufrac(text, inner, parts)?
            }
            (_, Some(_)) => gpufrac(text, NAME, &parts)?,
            _ => Kind::Gpu(value::count(&parts)),
        }
    } else if name.eq_ignore_ascii_case("shard") {
        Kind::Shard(value::count(&parts))
    } else if name.eq_ignore_ascii_case("mps") {
        Kind::Mps(value::count(&parts))
    } else if name == "none" && parts.is_empty() {
        Kind::None
    } else {
        Kind::Other
    };
    Ok(Item { text, form, kind })
}

/// The part after the name, if an item asks for a part of `gpu`: `gpu:0.25`, `gpu:mps:0.25`, `gpu:gpufrac:0.25`. In a
/// request of Slurm itself, a Type is always followed by a whole number.
fn part_of_gpu(item: &str) -> Option<&str> {
    let (_, body) = without_prefix(item);
    let (name, amount) = body.split_once([':', '='])?;
    if !name.eq_ignore_ascii_case("gpu") {
        return None;
    }
    let (first, rest) = amount.split_once([':', '=']).unwrap_or((amount, ""));
    match first {
        inner if inner.eq_ignore_ascii_case(NAME) => Some(rest),
        number if rest.is_empty() && value::is_decimal(number) => Some(amount),
        word if word.parse::<Mechanism>().is_ok() && value::is_decimal(rest) => Some(amount),
        _ => None,
    }
}

/// The item without its marks. All marks are removed, even if there are several: Slurm would refuse the second one,
/// and a `shard` behind it must not evade the rules.
fn without_prefix(text: &str) -> (Option<GresForm>, &str) {
    let (mut form, mut body) = (None, text);
    while let Some((mark, rest)) = body.split_at_checked(5) {
        let found = match mark.to_ascii_lowercase().as_str() {
            "gres:" => GresForm::Colon,
            "gres/" => GresForm::Slash,
            _ => break,
        };
        form = form.or(Some(found));
        body = rest;
    }
    (form, body)
}

fn gpufrac<'a>(text: &str, name: &str, parts: &[&str]) -> Result<Kind<'a>, RequestError> {
    let item = quoted(text);
    if name != NAME {
        return Err(RequestError::Case { item });
    }
    if let Some(error) = misspelt::percent(text, parts) {
        return Err(error);
    }
    let (mechanism, amount) = match parts {
        [PERCENT, number] => {
            let amount = value::percent(number, item)?;
            return Ok(Kind::Gpufrac {
                mechanism: None,
                amount,
            });
        }
        [PERCENT] => return Err(RequestError::Missing { item }),
        [] => return Err(RequestError::Missing { item }),
        [amount] => (None, *amount),
        [mechanism, amount] => (Some(*mechanism), *amount),
        _ => return Err(RequestError::TooManyParts { item }),
    };
    let mechanism = match mechanism.map(str::parse::<Mechanism>).transpose() {
        Ok(mechanism) => mechanism,
        Err(UnknownMechanism(word)) => {
            if let Some(error) = misspelt::swapped(text, &word, amount) {
                return Err(error);
            }
            let source = UnknownMechanism(quoted(&word));
            return Err(RequestError::Mechanism { item, source });
        }
    };
    // `gpufrac:mig` has a mechanism and no amount.
    if amount.is_empty() || amount.parse::<Mechanism>().is_ok() {
        return Err(RequestError::Missing { item });
    }
    let amount = value::amount(amount, item)?;
    Ok(Kind::Gpufrac { mechanism, amount })
}
