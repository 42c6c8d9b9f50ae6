//! `unsafe` is where ARCHITECTURE.md says, and the compiler keeps it out of everything else.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The section of ARCHITECTURE.md with the table of packages.
const SECTION: &str = "### Where `unsafe` is\n";
/// What stands in a program or library without `unsafe`.
const FORBIDDEN: &str = "#![forbid(unsafe_code)]";
/// What follows the word in code.
const FOLLOWERS: [&str; 6] = ["{", "(", "fn ", "impl ", "impl<", "extern "];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of all packages, below the root.
fn packages() -> Vec<String> {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let names = members.iter().map(|name| name.as_str().unwrap().to_owned());
    names.collect()
}

/// The packages that the table in ARCHITECTURE.md names.
fn listed() -> BTreeSet<String> {
    let page = read(&root().join("ARCHITECTURE.md"));
    let (_, section) = page.split_once(SECTION).expect("the section is there");
    let section = section.split("\n#").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = cells.map(|cell| cell.split('`').next().unwrap().to_owned());
    names.collect()
}

/// All files of Rust in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

fn is_unsafe(code: &str) -> bool {
    code.lines().any(|line| {
        let code = line.split("//").next().unwrap();
        code.match_indices("unsafe").any(|(place, word)| {
            let in_name = |before: char| before.is_alphanumeric() || before == '_';
            let after = code[place + word.len()..].trim_start();
            !code[..place].ends_with(in_name)
                && FOLLOWERS.iter().any(|code| after.starts_with(code))
        })
    })
}

fn has_unsafe(folder: &Path) -> bool {
    files(folder).iter().any(|path| is_unsafe(&read(path)))
}

/// The files with which the library and the programs of a package begin.
fn beginnings(package: &Path) -> Vec<PathBuf> {
    let source = package.join("src");
    let programs = fs::read_dir(source.join("bin")).into_iter().flatten();
    let programs = programs.map(|entry| entry.unwrap().path());
    let programs = programs.map(|path| match path.is_dir() {
        true => path.join("main.rs"),
        false => path,
    });
    let usual = ["lib.rs", "main.rs"].map(|name| source.join(name));
    let all = usual.into_iter().chain(programs);
    all.filter(|path| path.exists()).collect()
}

#[test]
fn the_list_of_packages_with_unsafe_code_is_true() {
    let packages = packages().into_iter();
    let found: BTreeSet<String> = packages
        .filter(|package| has_unsafe(&root().join(package)))
        .collect();
    let listed = listed();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "not in ARCHITECTURE.md: {new:?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "without any, but listed: {gone:?}");
}

#[test]
fn what_needs_no_unsafe_code_forbids_it() {
    for package in packages() {
        let package = root().join(package);
        if has_unsafe(&package.join("src")) {
            continue;
        }
        let files = beginnings(&package);
        assert!(!files.is_empty(), "{} has neither", package.display());
        for file in files {
            let forbids = read(&file).lines().any(|line| line == FORBIDDEN);
            assert!(forbids, "{} lacks {FORBIDDEN}", file.display());
        }
    }
}

#[test]
fn unsafe_code_is_told_from_words() {
    let word = "unsafe";
    for code in [
        format!("let x = {word} {{ f() }};"),
        format!("    pub const {word} fn new()"),
        format!("{word} impl Send for X {{}}"),
        format!("{word} extern \"C\" {{"),
        format!("#[{word}(no_mangle)]"),
    ] {
        assert!(is_unsafe(&code), "{code}");
    }
    for code in [
        format!("#![forbid({word}_code)]"),
        format!("fn {word}_library(name: &str)"),
        format!("is_{word}(code)"),
        format!("/// As {word} fn is."),
        format!("let a = 1; // {word} {{"),
    ] {
        assert!(!is_unsafe(&code), "{code}");
    }
}
