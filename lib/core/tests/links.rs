//! Every file that a page of the project links to exists.

use std::fs;
use std::path::{Path, PathBuf};

/// The project's pages, without folders of builds and downloads.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Targets of the links and pictures of a page, without links to other sites and within the page.
fn links(page: &str) -> Vec<String> {
    let mut code = false;
    let text: Vec<&str> = page
        .lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !code && !fence
        })
        .collect();
    let text = text.join("\n");
    let ends = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')];
    let all = ends.iter().flat_map(|(open, close)| {
        let rest = text.split(open).skip(1);
        rest.filter_map(|rest| Some(rest.split_once(*close)?.0.to_owned()))
    });
    let relative = all.filter(|link| !link.contains("://") && !link.starts_with('#'));
    relative
        .map(|link| link.split('#').next().unwrap_or_default().to_owned())
        .collect()
}

/// Promise (users): every link between pages leads to a file.
#[test]
fn every_link_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    pages(&root, &mut all);
    let mut checked = 0;
    for page in &all {
        let text = fs::read_to_string(page).expect("the page can be read");
        for link in links(&text) {
            let target = page.parent().unwrap_or(&root).join(&link);
            assert!(target.exists(), "{}: {link} is missing", page.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked} links were found");
}

#[test]
fn links_in_code_and_to_other_sites_are_left_out() {
    let page = "[a](b.md#c) [d](https://e) [f](#g)\n```\n[h](i)\n```\n<img src=\"j.svg\">";
    assert_eq!(links(page), ["b.md", "j.svg"]);
}

/// Whether the book contains the file: Markdown pages and manual pages.
fn has_a_place_in_the_book(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    let manual = path
        .parent()
        .is_some_and(|folder| folder.ends_with("docs/man"));
    manual || (name.ends_with(".md") && name != "SUMMARY.md")
}

#[test]
fn every_page_has_one_place_in_the_summary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().expect("the root exists");
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).expect("the summary is there");
    let mut listed: Vec<PathBuf> = links(&summary)
        .iter()
        .map(|link| root.join("docs").join(link))
        .map(|path| path.canonicalize().unwrap_or(path))
        .collect();
    let mut all = Vec::new();
    pages(&root, &mut all);
    let manual = fs::read_dir(root.join("docs/man")).expect("the folder can be read");
    all.extend(manual.map(|entry| entry.expect("the entry can be read").path()));
    all.retain(|path| has_a_place_in_the_book(path));
    for page in &all {
        let places = listed.iter().filter(|path| *path == page).count();
        assert_eq!(places, 1, "docs/SUMMARY.md: places of {}", page.display());
    }
    listed.retain(|path| !all.contains(path));
    assert_eq!(
        listed,
        Vec::<PathBuf>::new(),
        "docs/SUMMARY.md lists no page"
    );
}
