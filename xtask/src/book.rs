//! `cargo xtask book`: the manual of docs/ as HTML pages with a search.

mod links;
mod man;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::tool;
use xtask_front::cargo::{root, run};

/// The version of mdbook for which docs/book.toml was written.
const VERSION: &str = "0.5.4";

/// The pages of the book, in order.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Builds the book in target/book/html and checks each link of its pages.
pub(crate) fn build() -> Result<()> {
    let program = tool(
        "mdbook",
        VERSION,
        &["--no-default-features", "--features", "search"],
    )?;
    let place = root().join("target/book");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    let source = place.join("src");
    fs::create_dir_all(&source)?;
    for name in ["book.toml", "book.css"] {
        fs::copy(root().join("docs").join(name), place.join(name))?;
    }
    stage(&source)?;
    run(Command::new(program).arg("build").arg(&place))?;
    let html = place.join("html");
    let wrong = links::wrong(&html)?;
    if !wrong.is_empty() {
        bail!(
            "building the book failed: {} links lead nowhere; correct them:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }
    println!("the book is {}", html.join("index.html").display());
    Ok(())
}

/// Copies the pages of the summary and the files that they link to, in the same folders as in the repository.
fn stage(source: &Path) -> Result<()> {
    let summary = fs::read_to_string(root().join(SUMMARY))?;
    let pages: BTreeSet<PathBuf> = links::relative(&summary)
        .iter()
        .map(|link| links::resolve(Path::new(SUMMARY), link))
        .collect();
    write(
        &source.join("SUMMARY.md"),
        &links::in_book(&summary, Path::new(SUMMARY), true),
    )?;
    let mut files = BTreeSet::new();
    for page in &pages {
        if man::is_page(page) {
            let text = man::to_markdown(&root().join(page))?;
            write(&source.join(links::chapter(page)), &text)?;
            continue;
        }
        let text = fs::read_to_string(root().join(page))
            .with_context(|| format!("reading {} failed", page.display()))?;
        files.extend(
            links::relative(&text)
                .iter()
                .map(|link| links::resolve(page, link)),
        );
        write(&source.join(page), &links::in_book(&text, page, false))?;
    }
    for file in files.difference(&pages) {
        let found = root().join(file);
        if !found.is_file() {
            let file = file.display();
            bail!("building the book failed: {file} is not a file; link to a page or a file");
        }
        if file.extension().is_some_and(|end| end == "md") {
            let file = file.display();
            bail!("building the book failed: {file} is not in {SUMMARY}; add the page there");
        }
        let place = source.join(file);
        fs::create_dir_all(place.parent().unwrap_or(source))?;
        fs::copy(found, place)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("writing {} failed", path.display()))
}
