//! The numbers of a request.

use super::error::RequestError;
use super::item::{Amount, Count};
use crate::fraction::{Fraction, FractionError, MemoryMib};

/// Reads the text behind `gpufrac:`; `item` is for the message.
pub(super) fn amount(text: &str, item: String) -> Result<Amount, RequestError> {
    if let Some(memory) = memory(text) {
        return memory
            .map(Amount::Memory)
            .ok_or(RequestError::Memory { item });
    }
    match Fraction::parse_decimal(text) {
        Ok(fraction) => Ok(Amount::Fraction(fraction)),
        Err(FractionError::OverOne) if text.bytes().all(|b| b.is_ascii_digit()) => {
            // A number that does not fit into u64 counts as the largest one.
            Ok(Amount::Integer(text.parse().unwrap_or(u64::MAX)))
        }
        Err(source) => Err(match (other_notation(text), memory_of_profile(text)) {
            (Some(decimal), _) => RequestError::Decimal { item, decimal },
            (None, Some(gigabytes)) => RequestError::Instead {
                item,
                why: "a profile of MIG is not a size",
                write: format!(
                    "its memory, gpufrac:{gigabytes}G, or a fraction such as gpufrac:0.25"
                ),
            },
            (None, None) => RequestError::Fraction { item, source },
        }),
    }
}

/// Reads the text behind `gpufrac:percent:`; `item` is for the message.
pub(super) fn percent(text: &str, item: String) -> Result<Amount, RequestError> {
    if text.is_empty() {
        return Err(RequestError::Missing { item });
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RequestError::Instead {
            item,
            why: "percent takes a whole number from 1 to 100",
            write: "for example gpufrac:percent:25 or gpufrac:0.25".to_owned(),
        });
    }
    // A number that does not fit into u32 is more than 100 as well.
    let number = text.parse().unwrap_or(u32::MAX);
    match Fraction::new(number, 100) {
        Ok(fraction) => Ok(Amount::Percent(fraction)),
        Err(source) => Err(RequestError::Fraction { item, source }),
    }
}

/// Whether this is a number with a decimal point, which no count of Slurm has.
pub(super) fn is_decimal(text: &str) -> bool {
    text.contains('.') && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// Whether the text is meant as an amount of memory.
pub(super) fn is_memory(text: &str) -> bool {
    memory(text).is_some()
}

/// An amount of memory, `10G`; None for another text.
pub(crate) fn amount_of_memory(text: &str) -> Option<MemoryMib> {
    memory(text).flatten()
}

/// The fraction of `1/4` and `25%`, which the grammar does not allow but which have a clear meaning.
pub(super) fn other_notation(text: &str) -> Option<Fraction> {
    if text.contains('/') {
        return Fraction::parse(text).ok();
    }
    let percent = text.strip_suffix('%')?;
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, ""));
    // More decimals than a fraction has are no percentage that a user means.
    let scale = 10_u32.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let number = format!("{whole}{decimals}").parse().ok()?;
    Fraction::new(number, 100_u32.checked_mul(scale)?).ok()
}

/// The memory of a MIG profile, `20gb` of `2g.20gb`.
fn memory_of_profile(text: &str) -> Option<&str> {
    let (slices, memory) = text.split_once("g.")?;
    let gigabytes = memory.strip_suffix("gb")?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(slices) && digits(gigabytes)).then_some(gigabytes)
}

/// None if the text is not meant as memory; `Some(None)` if it is, but there is no such amount.
fn memory(text: &str) -> Option<Option<MemoryMib>> {
    let lower = text.to_ascii_lowercase();
    let number_end = lower.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = lower.split_at_checked(number_end)?;
    let kib: u64 = match unit {
        "k" | "kb" | "ki" | "kib" => 1,
        "m" | "mb" | "mi" | "mib" => 1 << 10,
        "g" | "gb" | "gi" | "gib" => 1 << 20,
        "t" | "tb" | "ti" | "tib" => 1 << 30,
        _ => return None,
    };
    if number.is_empty() {
        return None;
    }
    let amount = number
        .parse::<u64>()
        .ok()
        .filter(|number| *number > 0)
        .and_then(|number| number.checked_mul(kib));
    Some(amount.map(|kib| MemoryMib(kib.div_ceil(1024))))
}

/// Reads `[type:]count` as Slurm does: the last part is the count if it begins with a digit, and is no Type.
pub(super) fn count<'a>(parts: &[&'a str]) -> Count<'a> {
    let begins = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let written = |text: &&str| begins(text) && !is_type_alone(text);
    let (type_name, count) = match parts {
        [] => (None, Some(1)),
        [number] if written(number) => (None, number_of(number)),
        [type_name] => (Some(*type_name), Some(1)),
        [type_name, number] => (Some(*type_name), number_of(number)),
        [type_name, ..] => (Some(*type_name), None),
    };
    Count { type_name, count }
}

/// A number with Slurm's suffixes k, m, g, t, p, which are powers of 1024.
pub(super) fn number_of(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at_checked(end)?;
    let power = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

/// Whether each version of Slurm takes a word that stands alone for a Type, such as `h100` or `1g.5gb`.
pub(super) fn is_type_alone(word: &str) -> bool {
    let has_letter = word.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_type(word) && !is_count(word) && (has_letter || word.starts_with('_'))
}

/// Whether a word that stands alone may be a count to Slurm: digits, a suffix such as `k` or `gib`, or both.
fn is_count(word: &str) -> bool {
    let suffix = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let suffix = suffix.to_ascii_lowercase();
    let unit = suffix.strip_prefix(['k', 'm', 'g', 't', 'p']);
    suffix.is_empty() || unit.is_some_and(|unit| ["", "b", "ib"].contains(&unit))
}

/// Whether the text is the name of a Type, such as `2080ti` or `a100_1g.5gb+me`. A sign in front would be part of a
/// number (`strtoull`).
pub(crate) fn is_type(name: &str) -> bool {
    let first = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.+".contains(&byte);
    name.starts_with(first) && name.bytes().all(plain)
}
