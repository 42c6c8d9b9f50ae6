//! Links between pages of the repository, and between pages of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use super::man;

/// The text before and after the target of a link or a picture in Markdown.
const ENDS: [(&str, char); 3] = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')];

/// For each target the text before it and the target.
fn targets<'a>(text: &'a str, open: &'a str, close: char) -> Vec<&'a str> {
    let rest = text.split(open).skip(1);
    rest.filter_map(|rest| Some(rest.split_once(close)?.0))
        .collect()
}

/// Whether a target is a file of the repository.
fn is_file(target: &str) -> bool {
    !target.is_empty()
        && !target.contains("://")
        && !target.starts_with(['#', '`'])
        && !target.starts_with("mailto:")
        && !target.contains(char::is_whitespace)
}

/// The text outside of code blocks, where links are.
fn prose(text: &str) -> String {
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The files that a page links to, as written, without the anchor.
pub(super) fn relative(page: &str) -> Vec<String> {
    let prose = prose(page);
    let all = ENDS
        .iter()
        .flat_map(|(open, close)| targets(&prose, open, *close));
    all.filter(|target| is_file(target))
        .map(|target| target.split('#').next().unwrap_or_default().to_owned())
        .collect()
}

/// The path, relative to the root, of a link's target.
pub(super) fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The file name of a page in the book; mdbook only reads Markdown.
pub(super) fn chapter(page: &Path) -> PathBuf {
    if man::is_page(page) {
        page.with_file_name(format!(
            "{}.md",
            page.file_name().unwrap_or_default().to_string_lossy()
        ))
    } else {
        page.to_path_buf()
    }
}

/// The page with the book's links: to the chapters of manual pages, and relative to the root for the summary, which
/// is at the book's root.
pub(super) fn in_book(text: &str, page: &Path, from_root: bool) -> String {
    let mut parts = text.split("](");
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        written.push_str("](");
        let Some((target, rest)) = part.split_once(')') else {
            written.push_str(part);
            continue;
        };
        let (file, place) = target.split_once('#').unwrap_or((target, ""));
        let mark = if place.is_empty() { "" } else { "#" };
        if is_file(target) {
            let resolved = resolve(page, file);
            let file = match from_root {
                true => chapter(&resolved),
                // mdbook renames a README.md to index.html, but does not change links to it.
                false if resolved.ends_with("README.md") => {
                    Path::new(file).with_file_name("index.md")
                }
                false => chapter(Path::new(file)),
            };
            written.push_str(&format!("{}{mark}{place}){rest}", file.display()));
        } else {
            written.push_str(&format!("{target}){rest}"));
        }
    }
    written
}

/// Links of the built pages whose page or anchor does not exist.
pub(super) fn wrong(html: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(html, html, &mut pages)?;
    let places: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(page, text)| (page, targets(text, " id=\"", '"').into_iter().collect()))
        .collect();
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for target in targets(text, "href=\"", '"') {
            if target.contains(':') {
                continue;
            }
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let found = match file {
                "" => page.clone(),
                file => resolve(page, file),
            };
            let known = match places.get(&found) {
                Some(places) => place.is_empty() || places.contains(place),
                None => html.join(&found).is_file(),
            };
            if !known {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    Ok(wrong)
}

/// Reads the pages below a folder, by their paths in the book. `print.html` repeats all pages, and `404.html` has no
/// folder.
fn read_pages(html: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let page = path.strip_prefix(html).unwrap_or(&path).to_path_buf();
        let whole = ["print.html", "404.html", "toc.html"];
        if path.is_dir() {
            read_pages(html, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html")
            && !whole.iter().any(|name| page == Path::new(name))
        {
            pages.insert(page, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_that_has_them() {
        let page = Path::new("docs/admin/install.md");
        assert_eq!(resolve(page, "../../etc/a.toml"), Path::new("etc/a.toml"));
        assert_eq!(resolve(page, "./b.md"), Path::new("docs/admin/b.md"));
        assert_eq!(
            relative("[a](b.md#c) [d](https://e) [f](#g)\n```\n[h](i)\n```\n<img src=\"j.svg\">"),
            ["b.md", "j.svg"]
        );
    }

    #[test]
    fn manual_pages_are_chapters_in_the_book() {
        let text = "[a](man/gpufrac.1) [b](../README.md#c)";
        let page = Path::new("docs/SUMMARY.md");
        assert_eq!(
            in_book(text, page, true),
            "[a](docs/man/gpufrac.1.md) [b](README.md#c)"
        );
        assert_eq!(
            in_book(text, page, false),
            "[a](man/gpufrac.1.md) [b](../index.md#c)"
        );
    }

    #[test]
    fn a_link_to_no_page_or_place_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let page =
            "<h2 id=\"x\"></h2><a href=\"#x\"></a><a href=\"b.html#y\"></a><a href=\"c.html\"></a>";
        fs::write(folder.path().join("a.html"), page).unwrap();
        fs::write(folder.path().join("b.html"), "<p id=\"z\"></p>").unwrap();
        assert_eq!(
            wrong(folder.path()).unwrap(),
            ["a.html: b.html#y", "a.html: c.html"]
        );
    }
}
