//! `cargo xtask pages`: the tables of docs whose words stand in the source: messages and promises; and the keys
//! of gpufrac.toml(5).
//!
//! A table keeps the order of its rows. The command writes the words of each row, removes a row whose message or
//! test is gone, and adds a new one behind that of the code before it.

mod keys;
mod messages;
mod promises;
mod source;
mod table;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::words::texts;
use xtask_front::cargo::root;

pub(crate) fn write() -> Result<()> {
    for page in stale()? {
        fs::write(root().join(&page.path), &page.text)
            .with_context(|| format!("writing {} failed", page.path))?;
        println!("{} is written", page.path);
    }
    Ok(())
}

/// Fails if a page differs from the source.
pub(crate) fn check() -> Result<()> {
    let stale: Vec<String> = stale()?.into_iter().map(|page| page.path).collect();
    if stale.is_empty() {
        return Ok(());
    }
    bail!(
        "checking the pages failed: these differ from the source; run `cargo xtask pages`:\n{}",
        stale.join("\n")
    );
}

/// The text that a page should have.
struct Page {
    /// Relative to the root.
    path: String,
    text: String,
}

impl Page {
    fn read(path: &str) -> Result<Page> {
        let text = fs::read_to_string(root().join(path))
            .with_context(|| format!("reading {path} failed"))?;
        Ok(Page {
            path: path.to_owned(),
            text,
        })
    }
}

/// The pages that differ from the source, as they should be.
fn stale() -> Result<Vec<Page>> {
    let names = texts()?;
    let mut code = Vec::new();
    for path in names.iter().filter(|name| name.ends_with(".rs")) {
        // The file was removed, but the removal is not committed yet.
        let Ok(text) = fs::read_to_string(root().join(path)) else {
            continue;
        };
        code.push((path.as_str(), text));
    }
    let listed = names
        .iter()
        .filter(|name| name.starts_with(messages::FOLDER));
    let mut pages = listed
        .map(|path| Page::read(path))
        .collect::<Result<Vec<Page>>>()?;
    pages.push(Page::read(promises::PAGE)?);
    pages.push(Page::read(keys::PAGE)?);
    let before: Vec<String> = pages.iter().map(|page| page.text.clone()).collect();
    let mut wrong = messages::update(&code, &mut pages)?;
    wrong.extend(promises::update(&code, &mut pages));
    wrong.extend(keys::update(&code, &mut pages)?);
    if !wrong.is_empty() {
        bail!(
            "making the pages failed: {} mistakes:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }
    let pages = pages.into_iter().zip(before);
    Ok(pages
        .filter(|(page, before)| page.text != *before)
        .map(|(page, _)| page)
        .collect())
}
