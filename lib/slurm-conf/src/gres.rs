//! The texts of `Gres=`.

use std::collections::BTreeMap;

use gpufrac_core::slurm_text::items;

/// Counts by name and Type; the name in small letters, the Type empty where there is none.
pub type Counts = BTreeMap<(String, String), u64>;

/// A count in Slurm's notation: `800`, `1K`.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The counts of `Gres=`: `gpu:half:4(S:0-1),shard:half:200`.
#[must_use]
pub fn counts(text: &str) -> Counts {
    let mut counts = Counts::new();
    for item in items(text).filter(|item| !item.is_empty()) {
        // The part in brackets names sockets or devices.
        let (item, rest) = item.split_once('(').unwrap_or((item, ""));
        let rest = rest.rsplit_once(')').map_or("", |(_, rest)| rest);
        let item = [item, rest].concat();
        let mut parts: Vec<&str> = item
            .split(':')
            .filter(|part| *part != "no_consume")
            .collect();
        let count = parts.last().copied().and_then(number);
        if count.is_some() {
            parts.pop();
        }
        let name = parts.first().copied().unwrap_or_default();
        let type_name = parts.get(1).copied().unwrap_or_default();
        *counts
            .entry((name.to_ascii_lowercase(), type_name.to_owned()))
            .or_default() += count.unwrap_or(1);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_slurm_writes_them() {
        let gres = counts("gpu:half:4(S:0-1),gpu:a:1,shard:1K,gpufrac:800,license");
        let get = |name: &str, type_name: &str| gres.get(&(name.into(), type_name.into())).copied();
        assert_eq!(get("gpu", "half"), Some(4));
        assert_eq!(get("gpu", "a"), Some(1));
        assert_eq!(get("shard", ""), Some(1024));
        assert_eq!(get("gpufrac", ""), Some(800));
        assert_eq!(get("license", ""), Some(1));
    }
}
