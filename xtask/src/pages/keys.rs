//! gpufrac.toml(5): the keys of each table, from the rows of lib/core/src/config/keys and their comments.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use gpufrac_core::config::{DocumentedKey, keys_of_page};
use proc_macro2::TokenTree;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Expr, Ident, Item, Token, Type};

use super::{Page, source};

pub(super) const PAGE: &str = "docs/man/gpufrac.toml.5";

/// The start of the paths of the files with the rows.
const SOURCE: &str = "lib/core/src/config/keys";

/// The lines of the page around the keys.
const START: &str =
    ".\\\" The keys: `cargo xtask pages` writes them from lib/core/src/config/keys.\n";
const END: &str = ".\\\" The end of the keys.\n";

/// The lines of the comment of each table, by its heading and an empty name, and of each of its keys.
type Comments = BTreeMap<(String, String), Vec<String>>;

/// Writes the keys, and returns what a person must correct.
pub(super) fn update(code: &[(&str, String)], pages: &mut [Page]) -> Result<Vec<String>> {
    let mut comments = Comments::new();
    for (path, text) in code.iter().filter(|(path, _)| path.starts_with(SOURCE)) {
        let read = |text| -> syn::Result<Comments> { tables(&syn::parse_file(text)?) };
        comments.extend(read(text).with_context(|| format!("reading {path} failed"))?);
    }
    let (mut wrong, mut text) = (Vec::new(), String::new());
    for (heading, rows) in keys_of_page() {
        let of = |name: &str| comments.get(&(heading.to_owned(), name.to_owned()));
        text.push_str(&format!(".SS {heading}\n"));
        text.push_str(&paragraphs(of("").map_or(&[], Vec::as_slice), ".PP"));
        for row in rows.iter().filter(|row| !row.values.is_empty()) {
            match of(row.name).filter(|comment| !comment.is_empty()) {
                Some(comment) => text.push_str(&entry(row, comment)),
                None => wrong.push(format!(
                    "{SOURCE}: write a comment for `{}` of {heading}",
                    row.name
                )),
            }
        }
    }
    let page = pages.iter_mut().find(|page| page.path == PAGE);
    let page = page.with_context(|| format!("{PAGE} is missing"))?;
    let parts = page.text.split_once(START).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{START}{text}{END}{after}"))
    });
    page.text = parts.with_context(|| format!("{PAGE} has no lines {START}{END}"))?;
    Ok(wrong)
}

/// The comments of the tables of a file: constants with a heading and rows.
fn tables(file: &syn::File) -> syn::Result<Comments> {
    let mut found = Comments::new();
    for item in &file.items {
        let Item::Const(item) = item else { continue };
        let Expr::Struct(table) = &*item.expr else {
            continue;
        };
        let mut heading = String::new();
        for field in &table.fields {
            match &field.expr {
                Expr::Lit(_) => heading = source::literal(&field.expr).unwrap_or_default(),
                Expr::Macro(keys) => {
                    for (name, comment) in rows.parse2(keys.mac.tokens.clone())? {
                        found.insert((heading.clone(), name), comment);
                    }
                }
                _ => {}
            }
        }
        found.insert((heading, String::new()), source::comment(&item.attrs));
    }
    Ok(found)
}

/// The names and comments of `rows!`: `Breaker: Default least: count = 4;`.
fn rows(input: ParseStream<'_>) -> syn::Result<Vec<(String, Vec<String>)>> {
    input.parse::<Type>()?;
    input.parse::<Token![:]>()?;
    let mut rows = Vec::new();
    while !input.is_empty() {
        let comment = source::comment(&input.call(Attribute::parse_outer)?);
        input.parse::<Ident>()?;
        rows.push((input.call(Ident::parse_any)?.to_string(), comment));
        while !input.peek(Token![;]) {
            input.parse::<TokenTree>()?;
        }
        input.parse::<Token![;]>()?;
    }
    Ok(rows)
}

/// A key: its heading, and its text.
fn entry(row: &DocumentedKey, comment: &[String]) -> String {
    let notes = if row.notes.is_empty() { String::new() } else { format!(" ({})", row.notes) };
    let heading = format!("{}{notes}", row.values);
    let heading = escaped(&heading).replace('"', "\\(dq");
    let mut text = format!(".TP\n.BR {} \" = {heading}\"\n", row.name);
    let bold = |words: Vec<String>, and: &str| {
        let words: Vec<String> = words.iter().map(|word| format!("\\fB{word}\\fR")).collect();
        match words.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} {and} {last}", others.join(", ")),
            None => String::new(),
        }
    };
    if !row.mechanisms.is_empty() {
        let mechanisms = row.mechanisms.iter().map(ToString::to_string).collect();
        text.push_str(&format!("Only for {}", bold(mechanisms, "and")));
        if !row.layouts.is_empty() {
            let layouts = row.layouts.iter().map(ToString::to_string).collect();
            text.push_str(&format!(" with layout {}", bold(layouts, "or")));
        }
        text.push_str(".\n");
    }
    text + &paragraphs(comment, ".IP")
}

/// The paragraphs of a comment, with this macro before each but the first. A paragraph of a list, with `` - `word`: ``
/// at its start, is an entry with this word.
fn paragraphs(comment: &[String], macro_before: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    let mut begins = true;
    for line in comment {
        if line.is_empty() || begins || line.starts_with("- ") {
            found.extend((!line.is_empty()).then(|| line.clone()));
        } else if let Some(last) = found.last_mut() {
            *last = format!("{last} {line}");
        }
        begins = line.is_empty();
    }
    let (mut text, mut in_list) = (String::new(), false);
    for (place, paragraph) in found.iter().enumerate() {
        let item = paragraph
            .strip_prefix("- `")
            .and_then(|item| item.split_once("`: "));
        match (item.is_some(), in_list) {
            (true, false) => text.push_str(".RS\n"),
            (false, true) => text.push_str(&format!(".RE\n{macro_before}\n")),
            (false, false) if place > 0 => text.push_str(&format!("{macro_before}\n")),
            _ => {}
        }
        in_list = item.is_some();
        match item {
            Some((word, rest)) => text.push_str(&format!(".TP\n.B {word}\n{}\n", lines(rest))),
            None => text.push_str(&format!("{}\n", lines(paragraph))),
        }
    }
    if in_list {
        text.push_str(".RE\n");
    }
    text
}

/// A paragraph with a line for each sentence: code is bold, and `*words*` are in italics.
fn lines(paragraph: &str) -> String {
    let mut text = String::new();
    for (place, part) in paragraph.split('`').enumerate() {
        let page = part.strip_suffix(')').and_then(|part| part.split_once('('));
        let words = match (place % 2, page) {
            (0, _) => {
                let parts = part.split('*').enumerate();
                let fonts = ["\\fR", "\\fI"];
                let parts = parts.map(|(place, part)| match place {
                    0 => escaped(part),
                    _ => format!("{}{}", fonts[place % 2], escaped(part)),
                });
                parts.collect()
            }
            (_, Some((name, section))) => format!("\\fB{}\\fR({section})", escaped(name)),
            _ => format!("\\fB{}\\fR", escaped(part)),
        };
        text.push_str(&words);
    }
    text.replace(". ", ".\n")
        .replace("\n.", "\n\\&.")
        .replace("\n'", "\n\\&'")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_written_as_a_manual_page() {
        let comment = [
            "One `a-b` of",
            "`gpufrac(7)`. Two *and* three.",
            "",
            "- `x`: a",
            "- `y`: b",
            "",
            "End.",
        ];
        let comment = comment.map(str::to_owned);
        assert_eq!(
            paragraphs(&comment, ".IP"),
            "One \\fBa\\-b\\fR of \\fBgpufrac\\fR(7).\nTwo \\fIand\\fR three.\n.RS\n.TP\n.B x\na\n.TP\n.B y\nb\n.RE\n.IP\nEnd.\n"
        );
    }

    #[test]
    fn rows_are_read_with_their_comments() {
        let file = "/// A table.\nconst A: Table<B> = Table { heading: \"[a]\", keys: rows! { B:\n/// A key.\nDefault b: [\"c\" => C::D] = \"c\", for [E] [];\nTable f; } };";
        let found = tables(&syn::parse_file(file).expect("the code can be read"));
        let found = found.expect("the rows can be read");
        let key = |name: &str| found.get(&("[a]".to_owned(), name.to_owned()));
        assert_eq!(key(""), Some(&vec!["A table.".to_owned()]));
        assert_eq!(key("b"), Some(&vec!["A key.".to_owned()]));
        assert_eq!(key("f"), Some(&Vec::new()));
    }
}
