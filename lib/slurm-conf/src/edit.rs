//! Changes single values in the text of a file. Comments, blanks and the order of everything else stay the same.

use std::ops::Range;

use crate::conf::{spans, without_comment};

/// A line as Slurm reads it: without comments, joined with the lines that a backslash continues.
#[derive(Debug)]
pub(crate) struct LogicalLine {
    /// The number of its first line, from 1.
    pub number: usize,
    pub text: String,
    /// The position in the file of each byte of `text`.
    at: Vec<usize>,
    /// The range in the file, with the line ends.
    pub range: Range<usize>,
}

/// All lines that are not empty.
pub(crate) fn logical_lines(text: &str) -> Vec<LogicalLine> {
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
    fn in_file(&self, part: Range<usize>) -> Range<usize> {
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

/// The line with this number, counted as in [`crate::Place`].
fn line(text: &str, number: usize) -> Option<LogicalLine> {
    let mut lines = logical_lines(text).into_iter();
    lines.find(|line| line.number == number)
}

/// Sets a key in the line with this number: changes its value, or adds it at the end of the line.
pub fn set(text: &mut String, number: usize, key: &str, value: &str) {
    let Some(line) = line(text, number) else {
        return;
    };
    let mut known = spans(&line.text).into_iter();
    match known.find(|(name, _)| line.text[name.clone()].eq_ignore_ascii_case(key)) {
        Some((_, span)) => text.replace_range(line.in_file(span), value),
        None => {
            let end = line.text.trim_end().len();
            text.replace_range(line.in_file(end..end), &format!(" {key}={value}"));
        }
    }
}

/// Replaces the line with this number.
pub fn replace(text: &mut String, number: usize, with: &str) {
    if let Some(line) = line(text, number) {
        text.replace_range(line.range, with);
    }
}

/// The text of the line with this number, with its line end.
pub fn raw(text: &str, number: usize) -> String {
    let mut raw = line(text, number).map_or(String::new(), |line| text[line.range].to_owned());
    if !raw.is_empty() && !raw.ends_with('\n') {
        raw.push('\n');
    }
    raw
}

/// Adds a line at the end.
pub fn append(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    // The last line may end with a backslash, which would join the new line to it.
    if text.ends_with("\\\n") {
        text.push('\n');
    }
    text.push_str(line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, number: usize, key: &str, value: &str) -> String {
        let mut text = text.to_owned();
        set(&mut text, number, key, value);
        text
    }

    #[test]
    fn one_value_changes_and_nothing_else() {
        let text = "# GresTypes=gpu\n  grestypes = gpu   # of the site\r\nNodeName=\"a b\" CPUs=1 \\\n  Gres=gpu:1 # two\n";
        assert_eq!(
            changed(text, 2, "GresTypes", "gpu,shard"),
            text.replace("= gpu ", "= gpu,shard ")
        );
        assert_eq!(
            changed(text, 3, "Gres", "gpu:2"),
            text.replace("gpu:1", "gpu:2")
        );
        assert_eq!(changed(text, 3, "NodeName", "c"), text.replace("a b", "c"));
        assert_eq!(
            changed(text, 3, "Weight", "7"),
            text.replace("gpu:1", "gpu:1 Weight=7")
        );
    }

    #[test]
    fn a_value_in_two_lines_becomes_one_in_one() {
        let text = "NodeName=a Gres=gpu:\\\nh100:1 CPUs=2\n";
        assert_eq!(changed(text, 1, "Gres", "x"), "NodeName=a Gres=x CPUs=2\n");
    }

    #[test]
    fn a_line_is_added_after_whatever_ends_the_file() {
        for (before, after) in [
            ("", "B=2\n"),
            ("A=1", "A=1\nB=2\n"),
            ("A=1 \\\n", "A=1 \\\n\nB=2\n"),
        ] {
            let mut text = before.to_owned();
            append(&mut text, "B=2");
            assert_eq!(text, after);
        }
    }
}
