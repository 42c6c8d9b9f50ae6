//! docs/admin/messages: a row for each message of the programs and plugins.
//!
//! The words of a row stand in the comment above the message: the cause, then `Cure:` and what to do.

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
        let of_rules = RULES.iter().any(|folder| path.starts_with(folder));
        let messages =
            source::messages(text, of_rules).with_context(|| format!("reading {path} failed"))?;
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
                let mut words = messages.iter().filter_map(|message| message.words.as_ref());
                let is_right = |(cause, cure): &(String, String)| cells[1..] == [&**cause, &**cure];
                lines.push(
                    match (words.clone().any(is_right), words.next(), words.next()) {
                        (false, Some((cause, cure)), None) => {
                            table::row(&[&table::code(text), cause, cure])
                        }
                        (false, Some(_), Some(_)) => {
                            let path = &page.path;
                            wrong.push(format!(
                                "{path}: write the words of one of the messages for: {text}"
                            ));
                            line.to_owned()
                        }
                        (true, ..) | (_, None, _) => line.to_owned(),
                    },
                );
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
                "{path}: write cause and `Cure:` in the comment above: {}",
                message.text
            ));
        }
        listed.insert(message.text.clone());
    }
    Ok(wrong)
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
