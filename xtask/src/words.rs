//! The check of words that the project does not write: xtask/words.toml, over all texts of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use xtask_front::cargo::root;

/// The path of the list, relative to the root.
const LIST: &str = "xtask/words.toml";

/// The endings of text files. Files of docs/man, etc/ and packaging/ are texts whatever their ending.
const ENDS: [&str; 6] = ["md", "rs", "toml", "sh", "py", "yml"];
const FOLDERS: [&str; 3] = ["docs/man/", "etc/", "packaging/"];

/// The most characters of a line that is a comment in Rust, as .editorconfig says.
const WIDTH: usize = 120;

/// The most words that a `*` stands for.
const GAP: usize = 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// Each phrase, with the words to write instead.
    words: BTreeMap<String, String>,
    /// Each whole comment, with the words to write instead.
    comments: BTreeMap<String, String>,
    /// Phrases that a file may keep.
    keep: BTreeMap<String, Vec<String>>,
}

/// A word of a text.
struct Token<'a> {
    text: &'a str,
    /// The line, from 1.
    line: usize,
    /// Whether a sentence begins with this word.
    begins: bool,
}

/// Fails if the repository has a phrase of the list, or a comment that is too wide; the error has file and line.
pub(crate) fn check() -> Result<()> {
    let list =
        fs::read_to_string(root().join(LIST)).with_context(|| format!("reading {LIST} failed"))?;
    let list: List = toml::from_str(&list).with_context(|| format!("reading {LIST} failed"))?;
    let (mut found, mut wide) = (Vec::new(), Vec::new());
    for file in texts()? {
        // The file was removed, but the removal is not committed yet.
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue;
        };
        if file.ends_with(".rs") {
            wide.extend(too_wide(&text).map(|line| format!("{file}:{line}")));
        }
        let kept = list.keep.get(&file).map_or(&[][..], Vec::as_slice);
        found.extend(
            hits(&text, &list, kept)
                .into_iter()
                .map(|(line, phrase, instead)| {
                    format!("{file}:{line}: \"{phrase}\": write {instead}")
                }),
        );
    }
    if !wide.is_empty() {
        bail!(
            "checking the comments failed: {} lines are wider than {WIDTH} characters; wrap them:\n{}",
            wide.len(),
            wide.join("\n")
        );
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!(
        "checking the words failed: {} phrases are on the list {LIST}; write the words that it names:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The numbers, from 1, of the lines that are comments beyond the width. A comment of one word, such as an address,
/// cannot be wrapped.
fn too_wide(text: &str) -> impl Iterator<Item = usize> {
    let numbered = text.lines().enumerate();
    let wide = numbered.filter(|(_, line)| {
        let comment = line.trim_start();
        comment.starts_with("//") && line.chars().count() > WIDTH && comment.split(' ').count() > 2
    });
    wide.map(|(number, _)| number + 1)
}

/// The text files that git knows, and new ones that it does not ignore.
pub(crate) fn texts() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("starting git failed; install git")?;
    if !output.status.success() {
        bail!("listing the files failed: this is no git checkout; clone the repository with git");
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let names = names.lines().filter(|name| {
        let end = Path::new(name).extension().and_then(|end| end.to_str());
        let text = end.is_some_and(|end| ENDS.contains(&end));
        (text || FOLDERS.iter().any(|folder| name.starts_with(folder))) && *name != LIST
    });
    Ok(names.map(str::to_owned).collect())
}

/// Line, phrase and the words to write, for each occurrence in a text.
fn hits<'a>(text: &str, list: &'a List, kept: &[String]) -> Vec<(usize, &'a str, &'a str)> {
    let tokens = tokens(text);
    let mut hits = Vec::new();
    for (phrase, instead) in &list.words {
        if kept.contains(phrase) {
            continue;
        }
        let words: Vec<&str> = phrase.split(' ').collect();
        for start in 0..tokens.len() {
            if matches(&tokens[start..], &words, true) {
                hits.push((tokens[start].line, phrase.as_str(), instead.as_str()));
            }
        }
    }
    let marks = ["///", "//!", "//"];
    for (line, content) in text.lines().enumerate() {
        let line_of_comment = |mark: &&str| content.trim_start().strip_prefix(*mark);
        let Some(comment) = marks.iter().find_map(line_of_comment) else {
            continue;
        };
        if let Some((phrase, instead)) = list.comments.get_key_value(comment.trim()) {
            hits.push((line + 1, phrase, instead));
        }
    }
    hits.sort_unstable();
    hits
}

/// Whether the tokens begin with the words.
fn matches(tokens: &[Token<'_>], words: &[&str], first: bool) -> bool {
    let Some((word, rest)) = words.split_first() else {
        return true;
    };
    if *word == "*" {
        return (1..=GAP).any(|gap| {
            tokens.len() > gap
                && tokens[..gap].iter().all(|token| !token.begins)
                && matches(&tokens[gap..], rest, false)
        });
    }
    tokens.split_first().is_some_and(|(token, left)| {
        (first || !token.begins)
            && token.text.eq_ignore_ascii_case(word)
            && matches(left, rest, false)
    })
}

/// The words of a text. Comment marks and quotes between two words do not end a sentence.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut begins = true;
    for (number, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some(start) = rest.find(|c: char| c.is_alphanumeric()) {
            begins |= rest[..start].contains(['.', ';', ':', '(', ')', '|', '!', '?']);
            rest = &rest[start..];
            let end = rest.find(|c: char| !c.is_alphanumeric());
            let (word, left) = rest.split_at(end.unwrap_or(rest.len()));
            tokens.push(Token {
                text: word,
                line: number + 1,
                begins,
            });
            begins = false;
            rest = left;
        }
        begins |= rest.contains(['.', ';', ':', '(', ')', '|', '!', '?']);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        toml::from_str(
            "words = { \"can not\" = \"cannot\", \"rather the * than\" = \"a cause\" }\n\
             comments = { \"Why.\" = \"the cause\" }\nkeep = {}",
        )
        .unwrap()
    }

    fn found(text: &str, kept: &[String]) -> Vec<(usize, String)> {
        let list = list();
        let hits = hits(text, &list, kept);
        let hits = hits
            .iter()
            .map(|(line, phrase, _)| (*line, (*phrase).to_owned()));
        hits.collect()
    }

    #[test]
    fn a_wide_comment_is_found_and_wide_code_and_addresses_are_not() {
        let words = "word ".repeat(25);
        let one = "x".repeat(125);
        let text =
            format!("/// {words}\n    // {words}\n// short\nlet a = \"{words}\";\n/// {one}\n");
        assert_eq!(too_wide(&text).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn phrases_are_found_across_lines_and_names() {
        let text = "/// It can\n/// not be.\nfn it_can_not_be() {}\n";
        let phrase = "can not".to_owned();
        assert_eq!(found(text, &[]), [(1, phrase.clone()), (3, phrase.clone())]);
        assert_eq!(found(text, &[phrase]), []);
        assert_eq!(found("Users can. Not all do. cannot", &[]), []);
    }

    #[test]
    fn a_star_is_some_words_of_one_sentence() {
        let phrase = "rather the * than".to_owned();
        assert_eq!(
            found("Rather the measurement is wrong than", &[]),
            [(1, phrase)]
        );
        assert_eq!(found("rather the node. More than two", &[]), []);
    }

    #[test]
    fn comments_without_content_are_found() {
        assert_eq!(
            found("    /// Why.\n/// Why it fails.", &[]),
            [(1, "Why.".into())]
        );
    }
}
