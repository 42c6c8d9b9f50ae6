//! Misspelt fractions, and their intended meaning.
//!
//! Slurm counts GRES in whole numbers and splits texts at commas, so that these texts can have no other meaning.
//! Slurm refuses most of them itself, but its messages do not say what to write.

use super::error::RequestError;
use super::value::{self, is_decimal};
use super::{NAME, PERCENT, part_of_gpu, quoted, without_prefix};
use crate::fraction::Fraction;
use crate::mechanism::Mechanism;

/// Refuses a text with a misspelt fraction that the grammar does not know.
pub fn refuse_misspelt(list: &str) -> Result<(), RequestError> {
    let mut previous = "";
    for text in list.split(',') {
        if let Some(error) = decimal_comma(previous, text).or_else(|| misnamed(text)) {
            return Err(error);
        }
        previous = text;
    }
    Ok(())
}

/// `gpufrac:0,25` and `gpu:0,25`, which are two items to Slurm.
fn decimal_comma(text: &str, next: &str) -> Option<RequestError> {
    let decimals = without_prefix(next).1;
    let (_, body) = without_prefix(text);
    let (name, amount) = body.split_once([':', '='])?;
    let of_gpus = ["gpu", NAME]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known));
    let words: Vec<&str> = amount.split([':', '=']).collect();
    let (whole, words) = words.split_last()?;
    let known = |word: &&str| {
        let lower = word.to_ascii_lowercase();
        [NAME, PERCENT].contains(&lower.as_str()) || lower.parse::<Mechanism>().is_ok()
    };
    let numbers = is_digits(whole) && is_digits(decimals) && !decimals.is_empty();
    if !of_gpus || !numbers || !words.iter().all(known) {
        return None;
    }
    let mechanism = words.iter().find_map(|word| mechanism(word));
    let mut number = format!("{whole}.{decimals}");
    if words.iter().any(|word| word.eq_ignore_ascii_case(PERCENT)) {
        // No percentage has the text `0`, which is no fraction either.
        number = value::other_notation(&format!("{number}%"))
            .map_or_else(|| "0".to_owned(), |part| part.to_string());
    }
    Some(RequestError::Instead {
        item: quoted(&format!("{text},{decimals}")),
        why: "a fraction has a point, and a comma begins another GRES",
        write: fraction(mechanism, &number),
    })
}

/// A fraction of another name than `gpufrac` or `gpu`: `frac:0.25`, `gpu:h100:0.25`, `gpufrac0.25`.
fn misnamed(text: &str) -> Option<RequestError> {
    let (_, body) = without_prefix(text);
    let instead = |why, mechanism, amount| {
        Some(RequestError::Instead {
            item: quoted(text),
            why,
            write: fraction(mechanism, amount),
        })
    };
    let Some((name, rest)) = body.split_once([':', '=']) else {
        let glued = body.get(..NAME.len())?;
        let amount = body.get(NAME.len()..)?.trim_start_matches(['-', '_']);
        return if glued.eq_ignore_ascii_case(NAME) && is_decimal(amount) {
            instead("there is no GRES of this name", None, amount)
        } else {
            None
        };
    };
    let amount = rest.rsplit([':', '=']).next().unwrap_or(rest);
    if !is_decimal(amount) || name.eq_ignore_ascii_case(NAME) || part_of_gpu(text).is_some() {
        return None;
    }
    if name.eq_ignore_ascii_case("gpu") {
        return instead("a part of a GPU is asked for without a Type", None, amount);
    }
    instead(
        "Slurm counts GRES of this name in whole numbers",
        mechanism(name),
        amount,
    )
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn mechanism(word: &str) -> Option<Mechanism> {
    word.to_ascii_lowercase().parse().ok()
}

/// The text to write for an amount; an example if there is no such fraction.
fn fraction(mechanism: Option<Mechanism>, amount: &str) -> String {
    let by = mechanism.map(|name| format!("{name}:")).unwrap_or_default();
    match Fraction::parse_decimal(amount) {
        Ok(fraction) => format!("{NAME}:{by}{fraction}"),
        Err(_) => format!("for example {NAME}:{by}0.25 (at most 1)"),
    }
}

/// The mistake in an item with a misplaced `percent`: with a mechanism, behind the number, or in capital letters.
pub(super) fn percent(text: &str, parts: &[&str]) -> Option<RequestError> {
    let is_unit = |word: &&str| word.eq_ignore_ascii_case(PERCENT);
    let instead = |why, write| {
        Some(RequestError::Instead {
            item: quoted(text),
            why,
            write,
        })
    };
    match parts {
        [first, amount] if is_unit(first) && *first != PERCENT => instead(
            "percent is in small letters",
            format!("{NAME}:{PERCENT}:{amount}"),
        ),
        [amount, last] if is_unit(last) && is_digits(amount) => {
            instead("percent comes first", format!("{NAME}:{PERCENT}:{amount}"))
        }
        [first, second, amount] if is_unit(first) || is_unit(second) => {
            let known = mechanism(first).or_else(|| mechanism(second))?;
            let part = value::other_notation(&format!("{amount}%"));
            let part = part.map_or_else(|| "0".to_owned(), |part| part.to_string());
            instead("percent takes no mechanism", fraction(Some(known), &part))
        }
        _ => None,
    }
}

/// The mistake in `gpufrac:A:B` if A is not a mechanism, but the meaning of B is clear.
pub(super) fn swapped(text: &str, first: &str, second: &str) -> Option<RequestError> {
    let instead = |why, write| {
        Some(RequestError::Instead {
            item: quoted(text),
            why,
            write,
        })
    };
    if let Some(known) = mechanism(first) {
        let write = format!("{NAME}:{known}:{second}");
        return instead("names of mechanisms are in small letters", write);
    }
    if first.is_empty() {
        return instead(
            "a word is missing between the colons",
            fraction(None, second),
        );
    }
    // Users do not write units.
    let amount = Fraction::parse_decimal(first).is_ok() || value::is_memory(first);
    if !amount {
        return None;
    }
    if let Some(known) = mechanism(second) {
        let write = format!("{NAME}:{known}:{first}");
        return instead("the mechanism comes first", write);
    }
    if is_digits(second) {
        instead(
            "a job gets one slice on each node, or one for each task (--tres-per-task), and no number of them",
            format!("{NAME}:{first}"),
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_fractions_are_told_what_to_write() {
        for (list, message) in [
            (
                "gpufrac:0,25",
                "\"gpufrac:0,25\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.25",
            ),
            (
                "gres:tmpdisk:1,gres:gpufrac:0,gres:25",
                "\"gpufrac:0,25\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.25",
            ),
            (
                "gpufrac:,5",
                "\"gpufrac:,5\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.5",
            ),
            (
                "gpufrac:mig:0,25",
                "\"gpufrac:mig:0,25\": a fraction has a point, and a comma begins another GRES; write gpufrac:mig:0.25",
            ),
            (
                "gpufrac:1,5",
                "\"gpufrac:1,5\": a fraction has a point, and a comma begins another GRES; write for example gpufrac:0.25 (at most 1)",
            ),
            (
                "gpufrac:percent:12,5",
                "\"gpufrac:percent:12,5\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.125",
            ),
            (
                "gpufrac:percent:112,5",
                "\"gpufrac:percent:112,5\": a fraction has a point, and a comma begins another GRES; write for example gpufrac:0.25 (at most 1)",
            ),
            (
                "gpu:gpufrac:0,25",
                "\"gpu:gpufrac:0,25\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.25",
            ),
            (
                "gpu=0,25",
                "\"gpu=0,25\": a fraction has a point, and a comma begins another GRES; write gpufrac:0.25",
            ),
            (
                "frac:0.25",
                "\"frac:0.25\": Slurm counts GRES of this name in whole numbers; write gpufrac:0.25",
            ),
            (
                "gres/gpu_frac=.5",
                "\"gpu_frac=.5\": Slurm counts GRES of this name in whole numbers; write gpufrac:0.5",
            ),
            (
                "gpufraction:0.25",
                "\"gpufraction:0.25\": Slurm counts GRES of this name in whole numbers; write gpufrac:0.25",
            ),
            (
                "mps:0.3",
                "\"mps:0.3\": Slurm counts GRES of this name in whole numbers; write gpufrac:mps:0.3",
            ),
            (
                "shard:1.5",
                "\"shard:1.5\": Slurm counts GRES of this name in whole numbers; write for example gpufrac:0.25 (at most 1)",
            ),
            (
                "gpu:h100:0.25",
                "\"gpu:h100:0.25\": a part of a GPU is asked for without a Type; write gpufrac:0.25",
            ),
            (
                "GPUfrac0.25",
                "\"GPUfrac0.25\": there is no GRES of this name; write gpufrac:0.25",
            ),
            (
                "gpufrac-0.25",
                "\"gpufrac-0.25\": there is no GRES of this name; write gpufrac:0.25",
            ),
        ] {
            let error = refuse_misspelt(list).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(super::super::means_fraction(list), "{list}");
        }
    }

    #[test]
    fn texts_with_another_meaning_are_not_taken_for_fractions() {
        for list in [
            "",
            ",",
            "gpufrac:0.25",
            "gpufrac:0.25,tmpdisk:5",
            "gpufrac:25,shard:25",
            "gres:gpufrac:25,gres:shard:25",
            "gpu:1,shard:5",
            "gpu:h100:2,5x",
            "gpu:h100,2",
            "gpu:0.25",
            "gpu:mps:0.5",
            "gpu:2g.20gb:1",
            "tmpdisk:10,5",
            "lustre:1.5x",
            "gpufrac",
            "license:v1.2-x",
        ] {
            assert_eq!(refuse_misspelt(list), Ok(()), "{list}");
        }
    }
}
