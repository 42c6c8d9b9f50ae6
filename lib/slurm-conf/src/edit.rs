//! Changes single values in the text of a file. Comments, blanks and the order of everything else stay the same.

use std::io;
use std::path::Path;

use gpufrac_core::slurm_text::{LogicalLine, logical_lines};

use crate::conf::{Read, each_line, spans};

/// The line with this number, counted as in [`crate::LinePosition`].
fn line(text: &str, number: usize) -> Option<LogicalLine> {
    let mut lines = logical_lines(text).into_iter();
    lines.find(|line| line.number == number)
}

/// Sets a key in the line with this number: changes its last value, the one that Slurm uses, or adds it at the end.
pub fn set(text: &mut String, number: usize, key: &str, value: &str) {
    let Some(line) = line(text, number) else {
        return;
    };
    let mut known = spans(&line.text).into_iter().rev();
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

/// The text of a file as written, with the texts of the files that it includes in place of the lines that include them.
/// Errors: the file cannot be read. A line that includes a file which cannot be read stays.
pub fn with_includes(path: &Path, read: Read<'_>) -> io::Result<String> {
    let mut whole = String::new();
    each_line(path, read, &mut |_, _, line| {
        append(&mut whole, line.trim_end_matches('\n'));
    })?;
    Ok(whole)
}

/// Adds a line before the line with this number.
pub fn insert(text: &mut String, number: usize, new: &str) {
    if let Some(line) = line(text, number) {
        text.insert_str(line.range.start, &format!("{new}\n"));
    }
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
        // Slurm uses the last one.
        assert_eq!(
            changed("NodeName=a Gres=gpu:4 CPUs=1 gres=gpu:8\n", 1, "Gres", "x"),
            "NodeName=a Gres=gpu:4 CPUs=1 gres=x\n"
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
