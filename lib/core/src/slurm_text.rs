//! Texts of Slurm: the lines of its configuration files, and lists of GRES.

use std::collections::BTreeMap;
use std::ops::Range;

/// The greatest depth of Include lines that are followed.
pub const DEPTH: usize = 8;

/// A line as Slurm reads it: without comments, joined with the lines that a backslash continues.
#[derive(Debug)]
pub struct LogicalLine {
    /// The number of its first line, from 1.
    pub number: usize,
    pub text: String,
    /// The position in the file of each byte of `text`.
    at: Vec<usize>,
    /// The range in the file, with the line ends.
    pub range: Range<usize>,
}

/// All lines that are not empty.
pub fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines: Vec<LogicalLine> = Vec::new();
    let (mut goes_on, mut start) = (false, 0);
    for (index, raw) in text.split_inclusive('\n').enumerate() {
        let code = without_comment(raw.trim_end_matches(['\n', '\r']));
        let (code, more) = match code.strip_suffix('\\') {
            Some(code) => (code, true),
            None => (code, false),
        };
        let at = start..start + code.len();
        let end = start + raw.len();
        match lines.last_mut().filter(|_| goes_on) {
            Some(last) => {
                last.text.push_str(code);
                last.at.extend(at);
                last.range.end = end;
            }
            None => lines.push(LogicalLine {
                number: index + 1,
                text: code.to_owned(),
                at: at.collect(),
                range: start..end,
            }),
        }
        (goes_on, start) = (more, end);
    }
    lines.retain(|line| !line.text.trim().is_empty());
    lines
}

impl LogicalLine {
    /// The range in the file of a part of `text`.
    pub fn in_file(&self, part: Range<usize>) -> Range<usize> {
        let after = |position: usize| {
            let before = position.checked_sub(1).and_then(|last| self.at.get(last));
            before.map_or(self.range.start, |at| at + 1)
        };
        if part.is_empty() {
            after(part.start)..after(part.start)
        } else {
            self.at.get(part.start).copied().unwrap_or_default()..after(part.end)
        }
    }
}

fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, character) in line.char_indices() {
        if character == '#' && !escaped {
            return line[..at].trim_end();
        }
        escaped = character == '\\' && !escaped;
    }
    line.trim_end()
}

/// The name of the file that a line includes; empty where it has none.
pub fn included(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_include = |word: &&str| word.eq_ignore_ascii_case("include");
    words.next().filter(is_include)?;
    Some(words.next().unwrap_or_default())
}

/// Calls `each` with every line that is no Include, in the order in which Slurm reads them. `include` reads a file by
/// the name in the text. None if a file cannot be read, or its name is a pattern, or `each` returns None.
pub(crate) fn each_line(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    each: &mut dyn FnMut(&str) -> Option<()>,
) -> Option<()> {
    walk(text, include, each, DEPTH)
}

fn walk(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    each: &mut dyn FnMut(&str) -> Option<()>,
    depth: usize,
) -> Option<()> {
    for line in logical_lines(text) {
        match included(&line.text) {
            // A name with `%c` or `*` is a pattern, not a file.
            Some(file) if file.contains(['%', '*']) => return None,
            Some(file) => walk(&include(file)?, include, each, depth.checked_sub(1)?)?,
            None => each(line.text.trim())?,
        }
    }
    Some(())
}

/// The items of a list of GRES; commas in brackets divide none: `gpu:2(IDX:0,3),lustre:1`.
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// Counts by name and Type; the name in small letters, the Type empty where there is none.
pub type Counts = BTreeMap<(String, String), u64>;

/// A count in Slurm's notation: `800`, `1K`.
pub fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The counts of `Gres=`: `gpu:half:4(S:0-1),shard:half:200`.
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
        let key = (name.to_ascii_lowercase(), type_name.to_owned());
        let sum = counts.entry(key).or_insert(0_u64);
        *sum = sum.saturating_add(count.unwrap_or(1));
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
