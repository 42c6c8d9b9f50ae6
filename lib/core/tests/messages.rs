//! docs/admin/messages has a row for each message of the programs and plugins, and no row for a message that no
//! longer exists.
//!
//! The messages come from the source: texts of `#[error(...)]`, of log lines, of stderr, and of the findings of
//! `gpufrac check` and node-setup. A value in braces is `…` in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the programs and plugins.
const SOURCES: [&str; 6] = ["lib", "slurm-plugin", "prolog", "epilog", "reaper", "cli"];

/// The code before the text of a message. The text may be the argument of `format!`.
const MARKS: [&str; 9] = [
    "#[error(",
    ".error(",
    ".warning(",
    ".info(",
    "log::error(",
    "log::info(",
    "eprintln!(",
    "Finding::of_machine(",
    "fault(",
];

/// A text with fewer letters only passes on another message.
const FEWEST_LETTERS: usize = 6;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of a folder with this ending, without tests and examples.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            if !["tests", "examples", "target"].contains(&name) {
                files(&path, end, found);
            }
        } else if name.ends_with(end) && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The string literal at the start of the code, and the code behind it.
fn literal(code: &str) -> Option<(String, &str)> {
    let mut rest = code.strip_prefix('"')?.chars();
    let mut text = String::new();
    while let Some(next) = rest.next() {
        match next {
            '"' => return Some((text, rest.as_str())),
            '\\' => match rest.next()? {
                'n' => text.push('\n'),
                // The literal continues on the next line.
                '\n' => rest = rest.as_str().trim_start().chars(),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    None
}

/// The first line of a text, with `…` for each value.
fn fixed_parts(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut parts = line.split('{');
    let mut fixed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        fixed.push('…');
        fixed.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    fixed.replace('\u{1}', "{").replace('\u{2}', "}")
}

/// The message at the start of the code; a severity and `format!(` may come before its text.
fn message(code: &str) -> Option<String> {
    let mut code = code.trim_start();
    if let Some(rest) = code.strip_prefix("Severity::") {
        code = rest.split_once(',')?.1.trim_start();
    }
    for before in ["&", "format!("] {
        code = code.strip_prefix(before).unwrap_or(code).trim_start();
    }
    let fixed = fixed_parts(&literal(code)?.0);
    let letters = fixed.chars().filter(|c| c.is_alphabetic()).count();
    (letters >= FEWEST_LETTERS).then_some(fixed)
}

/// The messages of a file's code.
fn messages(code: &str, of_rules: bool) -> Vec<String> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for mark in MARKS {
        found.extend(code.split(mark).skip(1).filter_map(message));
    }
    if of_rules {
        // A pair of a severity and a text.
        let pairs = code
            .match_indices('(')
            .map(|(place, _)| &code[place + 1..])
            .filter(|rest| rest.trim_start().starts_with("Severity::"));
        found.extend(pairs.filter_map(message));
        for mark in ["what:", "error("] {
            found.extend(code.split(mark).skip(1).filter_map(message));
        }
    }
    found
}

/// The messages in the first columns of a page's tables.
fn rows(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let row = row.replace("\\|", "\u{1}");
        let cell = row.split('|').nth(1).unwrap_or_default().trim();
        let text = match cell.strip_prefix("`` ") {
            Some(text) => text.strip_suffix(" ``"),
            None => cell
                .strip_prefix('`')
                .and_then(|text| text.strip_suffix('`')),
        };
        text.unwrap_or(cell).replace('\u{1}', "|")
    })
    .collect()
}

#[test]
fn each_message_has_a_row_and_each_row_a_message() {
    let mut sources = Vec::new();
    for folder in SOURCES {
        files(&root().join(folder), ".rs", &mut sources);
    }
    let mut code: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in sources {
        let text = fs::read_to_string(&path).expect("the file can be read");
        let of_rules = path.components().any(|part| {
            ["slurm-settings", "cli"]
                .iter()
                .any(|name| part.as_os_str() == *name)
        });
        for message in messages(&text, of_rules) {
            code.insert(message, path.clone());
        }
    }
    let mut pages = Vec::new();
    files(&root().join("docs/admin/messages"), ".md", &mut pages);
    let mut listed: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in pages {
        let text = fs::read_to_string(&path).expect("the page can be read");
        listed.extend(rows(&text).into_iter().map(|row| (row, path.clone())));
    }
    let missing: Vec<String> = code
        .iter()
        .filter(|(message, _)| !listed.contains_key(*message))
        .map(|(message, path)| format!("{}: no row for: {message}", path.display()))
        .collect();
    let gone: Vec<String> = listed
        .iter()
        .filter(|(row, _)| !code.contains_key(*row))
        .map(|(row, path)| format!("{}: no program says: {row}", path.display()))
        .collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/admin/messages and the code differ; add, change or remove these rows:\n{}\n{}",
        missing.join("\n"),
        gone.join("\n")
    );
    assert!(code.len() > 300, "{} messages were found", code.len());
}

#[test]
fn messages_are_read_as_the_programs_write_them() {
    let code = "#[error(\n    \"`{}`: {{a}} \\\"b\\\" \\\n     failed: {source}\", x)]\n\
                log.error(format!(\"no {what} here\"));\nfault(Severity::Error, \"nothing is counted\", fix)\n\
                #[error(\"{0}\")]\n#[cfg(test)]\n#[error(\"of a test only\")]";
    assert_eq!(
        messages(code, false),
        [
            "`…`: {a} \"b\" failed: …",
            "no … here",
            "nothing is counted"
        ]
    );
    let rules =
        "(\n Severity::Warning,\n format!(\"{a} is missing\"),\n) what: \"not seen\".into()";
    assert_eq!(messages(rules, true), ["… is missing", "not seen"]);
}

#[test]
fn rows_are_read_as_markdown_has_them() {
    let page = "| message | cause |\n| `a … b` | c |\n| `` `…` is \\| d `` | e |\n";
    let rows: Vec<String> = rows(page).into_iter().collect();
    assert_eq!(rows, ["`…` is | d", "a … b"]);
}
