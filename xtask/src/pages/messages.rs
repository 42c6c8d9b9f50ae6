//! docs/admin/messages: a row for each message of the programs and plugins.
//!
//! The words of an error stand in the comment of its variant: the cause, then `Cure:` and what to do. Those of log
//! lines, of stderr, and of the findings of `gpufrac check` and node-setup are written in the page.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::source::{self, Message};
use super::{Page, table};

/// The folder of the pages.
pub(super) const FOLDER: &str = "docs/admin/messages/";

/// The folders of the programs and plugins.
const SOURCES: [&str; 6] = [
    "lib/",
    "slurm-plugin/",
    "prolog/",
    "epilog/",
    "reaper/",
    "cli/",
];

/// The folders with findings.
const RULES: [&str; 2] = ["lib/slurm-settings/", "cli/"];

/// Whether the file can have messages.
fn in_source(path: &str) -> bool {
    let of_tests =
        path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/examples/");
    SOURCES.iter().any(|folder| path.starts_with(folder)) && !of_tests
}

/// Writes the rows, and returns what a person must correct.
pub(super) fn update(code: &[(&str, String)], pages: &mut [Page]) -> Result<Vec<String>> {
    let mut found: Vec<(&str, Message)> = Vec::new();
    for (path, text) in code.iter().filter(|(path, _)| in_source(path)) {
        let file = syn::parse_file(text).with_context(|| format!("reading {path} failed"))?;
        let of_rules = RULES.iter().any(|folder| path.starts_with(folder));
        let messages = source::messages(&file, of_rules);
        found.extend(messages.into_iter().map(|message| (*path, message)));
    }
    let mut by_text: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
    for (_, message) in &found {
        by_text.entry(&message.text).or_default().push(message);
    }
    let mut wrong = Vec::new();
    let mut listed = BTreeSet::new();
    for page in pages
        .iter_mut()
        .filter(|page| page.path.starts_with(FOLDER))
    {
        let mut lines = Vec::new();
        for line in page.text.lines() {
            let Some(cells) = table::cells(line).filter(|cells| cells[0].starts_with('`')) else {
                lines.push(line.to_owned());
                continue;
            };
            let text = table::text(&cells[0]);
            if let Some(messages) = by_text.get(text) {
                lines.push(match words(messages, &cells[1..]) {
                    Words::OfError(cause, cure) => table::row(&[&table::code(text), cause, cure]),
                    Words::OfPage => line.to_owned(),
                    Words::Unknown => {
                        let path = &page.path;
                        wrong.push(format!(
                            "{path}: write the words of one of the errors for: {text}"
                        ));
                        line.to_owned()
                    }
                });
                listed.insert(text.to_owned());
            }
        }
        page.text = lines.join("\n") + "\n";
    }
    for (place, (path, message)) in found.iter().enumerate() {
        if listed.contains(&message.text) {
            continue;
        }
        let before = found[..place]
            .iter()
            .rev()
            .take_while(|(other, _)| other == path);
        let before = before.map(|(_, message)| message.text.as_str());
        if !message
            .words
            .as_ref()
            .is_some_and(|words| insert(pages, before, &message.text, words))
        {
            wrong.push(format!(
                "{path}: write a row in {FOLDER} for: {}",
                message.text
            ));
        }
        listed.insert(message.text.clone());
    }
    Ok(wrong)
}

/// The place of a row's words.
enum Words<'a> {
    OfError(&'a str, &'a str),
    OfPage,
    /// Several errors have the text, and the row has the words of none.
    Unknown,
}

fn words<'a>(messages: &[&'a Message], row: &[String]) -> Words<'a> {
    let of_errors = messages.iter().filter_map(|message| message.words.as_ref());
    let mut of_errors = of_errors.map(|(cause, cure)| [cause, cure]);
    if of_errors.clone().any(|words| row.iter().eq(words)) {
        return Words::OfPage;
    }
    match (of_errors.next(), of_errors.next()) {
        (Some([cause, cure]), None) => Words::OfError(cause, cure),
        (None, _) => Words::OfPage,
        _ => Words::Unknown,
    }
}

/// Writes a new row behind that of the nearest message before it; false if no page has one.
fn insert<'a>(
    pages: &mut [Page],
    before: impl Iterator<Item = &'a str>,
    text: &str,
    (cause, cure): &(String, String),
) -> bool {
    for before in before {
        let start = format!("| {} | ", table::code(before).replace('|', "\\|"));
        for page in pages.iter_mut() {
            let Some(place) = page.text.find(&start) else {
                continue;
            };
            let end = page.text[place..]
                .find('\n')
                .map_or(page.text.len(), |end| place + end + 1);
            let row = table::row(&[&table::code(text), cause, cure]);
            page.text.insert_str(end, &(row + "\n"));
            return true;
        }
    }
    false
}
