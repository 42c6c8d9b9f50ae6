//! The table of packages in ARCHITECTURE.md matches the code, the compiler rejects `unsafe` in all packages except
//! those that the table names, and programs link no package that is not theirs.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The section of ARCHITECTURE.md with the table of packages.
const SECTION: &str = "## The packages\n";
/// The attribute of a program or library without `unsafe`.
const FORBIDDEN: &str = "#![forbid(unsafe_code)]";
/// The tokens that follow the keyword `unsafe` in code.
const FOLLOWERS: [&str; 6] = ["{", "(", "fn ", "impl ", "impl<", "extern "];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of all packages, relative to the root.
fn packages() -> Vec<String> {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let names = members.iter().map(|name| name.as_str().unwrap().to_owned());
    names.collect()
}

/// A row of the table in ARCHITECTURE.md.
struct PackageRow {
    package: String,
    lines: usize,
    /// The reason for unsafe code; empty if the package has none.
    why_unsafe: String,
    used_by: BTreeSet<String>,
}

/// The rows of the table, in order.
fn rows() -> Vec<PackageRow> {
    let page = read(&root().join("ARCHITECTURE.md"));
    let (_, section) = page.split_once(SECTION).expect("the section is there");
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, package, lines, why_unsafe, used_by, _] = cells[..] else {
            panic!("{row}");
        };
        let names = used_by.split(", ").filter(|name| !name.is_empty());
        PackageRow {
            package: package.trim_matches('`').to_owned(),
            lines: lines.parse().unwrap_or_else(|_| panic!("{row}")),
            why_unsafe: why_unsafe.to_owned(),
            used_by: names
                .map(|name| name.trim_matches('`').to_owned())
                .collect(),
        }
    })
    .collect()
}

fn manifest(package: &str) -> toml::Table {
    read(&root().join(package).join("Cargo.toml"))
        .parse()
        .unwrap()
}

/// The packages that depend on this one; for test tools also by dev-dependencies.
fn users(package: &str) -> BTreeSet<String> {
    let own = manifest(package);
    let name = own["package"]["name"].as_str().unwrap();
    let kinds: &[&str] = if package.starts_with("tests/") {
        &["dependencies", "dev-dependencies"]
    } else {
        &["dependencies"]
    };
    let needs = |other: &String| {
        let manifest = manifest(other);
        let mut tables = kinds.iter().filter_map(|kind| manifest.get(*kind));
        other != package && tables.any(|table| table.get(name).is_some())
    };
    packages().into_iter().filter(needs).collect()
}

/// Lines of `src` without files of tests.
fn lines(package: &str) -> usize {
    let source = root().join(package).join("src");
    let is_test = |path: &PathBuf| {
        let below = path.strip_prefix(&source).unwrap();
        let mut parts = below.iter().map(|part| part.to_str().unwrap());
        parts.any(|part| part == "tests" || part == "tests.rs")
    };
    let files = files(&source).into_iter().filter(|path| !is_test(path));
    files.map(|path| read(&path).lines().count()).sum()
}

/// All files of Rust in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
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

/// The root files of the package's library and programs.
fn beginnings(package: &Path) -> Vec<PathBuf> {
    let source = package.join("src");
    let programs = fs::read_dir(source.join("bin")).into_iter().flatten();
    let programs = programs.map(|entry| entry.unwrap().path());
    let programs = programs.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let usual = ["lib.rs", "main.rs"].map(|name| source.join(name));
    let all = usual.into_iter().chain(programs);
    all.filter(|path| path.exists()).collect()
}

#[test]
fn the_table_of_packages_is_that_of_the_code() {
    let rows = rows();
    let listed: BTreeSet<&str> = rows.iter().map(|row| row.package.as_str()).collect();
    let packages = packages();
    let packages: BTreeSet<&str> = packages.iter().map(String::as_str).collect();
    assert_eq!(listed, packages);
    for row in rows {
        let package = &row.package;
        assert_eq!(row.used_by, users(package), "what uses {package}");
        let lines = lines(package);
        let differ = row.lines.abs_diff(lines);
        assert!(differ * 5 <= lines, "{package} has {lines} lines");
        let has_unsafe = has_unsafe(&root().join(package));
        assert_eq!(
            !row.why_unsafe.is_empty(),
            has_unsafe,
            "unsafe code of {package}"
        );
    }
}

/// What a package of the workspace is linked with: the names of all packages that it depends on, through those of the
/// workspace.
fn linked(program: &str) -> BTreeSet<String> {
    let manifests: BTreeMap<String, toml::Table> = packages()
        .iter()
        .map(|package| manifest(package))
        .map(|own| (own["package"]["name"].as_str().unwrap().to_owned(), own))
        .collect();
    let mut found = BTreeSet::new();
    let mut open = vec![program.to_owned()];
    while let Some(name) = open.pop() {
        let own = manifests.get(&name);
        let needed = own.and_then(|own| own.get("dependencies"));
        let needed = needed.and_then(|needed| needed.as_table());
        if found.insert(name) {
            open.extend(needed.into_iter().flat_map(|needed| needed.keys().cloned()));
        }
    }
    found
}

#[test]
fn only_documents_cross_from_the_engine_to_what_people_see() {
    let command = linked("gpufrac");
    let prolog = linked("gpufrac-prolog");
    let daemon = linked("gpufrac-reaper");
    assert!(command.contains("gpufrac-records") && prolog.contains("gpufrac-records"));
    for name in ["gpufrac-reaper", "lettre", "tiny_http", "prometheus-client"] {
        assert!(daemon.contains(name) && !command.contains(name), "{name}");
    }
    for name in ["gpufrac-view", "gpufrac-page", "plotters"] {
        assert!(command.contains(name) && !prolog.contains(name), "{name}");
    }
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
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

/// The names of C functions that a file exports without `for_slurm!`.
fn for_c(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap();
        for (place, _) in line.match_indices("extern ") {
            let rest = line[place + "extern ".len()..].trim_start();
            let rest = match rest.strip_prefix('"') {
                Some(rest) => rest.split_once('"').map_or("", |(_, rest)| rest),
                None => rest,
            };
            if let Some(name) = rest.trim_start().strip_prefix("fn ") {
                found.push(name.split('(').next().unwrap().trim().to_owned());
            }
        }
    }
    found
}

/// Promise (never): a panic in a plugin affects at most the job that it worked on.
/// With `plugins_export_only_the_functions_of_their_tables`,
/// `a_panic_in_job_submit_refuses_the_job_and_slurmctld_stays`,
/// `a_panic_when_slurmctld_ends_still_lets_it_save_its_state`, `a_panic_in_cli_filter_fails_the_command`,
/// `a_panic_in_init_leaves_a_slurmctld_that_serves_all_but_fractions`,
/// `a_panic_in_a_hook_of_slurmstepd_fails_the_job_and_slurmd_stays`,
/// `a_panic_while_the_option_is_registered_costs_the_option_alone`.
// A panic that leaves one of these functions ends slurmctld.
#[test]
fn each_function_that_slurm_calls_catches_panics() {
    let mut sources = files(&root().join("slurm-plugin"));
    sources.extend(files(&root().join("lib/slurm-sys/src")));
    let mut tables = 0;
    for path in sources {
        let code = read(&path);
        if path.ends_with("slurm-sys/src/boundary.rs") {
            assert_eq!(for_c(&code), ["$name"], "the macro");
            continue;
        }
        assert_eq!(for_c(&code), Vec::<String>::new(), "{}", path.display());
        tables += code.matches("for_slurm! {").count();
    }
    assert!(tables >= 4, "{tables}");
    assert_eq!(for_c("pub extern \"C-unwind\" fn f(a: u8) {"), ["f"]);
    assert_eq!(for_c("extern fn f() {"), ["f"]);
    assert!(for_c("check: extern \"C\" fn(value: u8),").is_empty());
    assert!(for_c("extern \"C\" {").is_empty());
}

/// Promise (admins): the oldest Rust that Cargo.toml names builds the code, in the checks of the public forge.
#[test]
fn the_forge_builds_with_the_oldest_rust() {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap();
    assert_eq!(oldest, env!("CARGO_PKG_RUST_VERSION"));
    let jobs = read(&root().join(".github/workflows/ci.yml"));
    assert!(jobs.contains("- run: cargo xtask check\n"), "{jobs}");
    let suite = read(&root().join("xtask/src/suite.rs"));
    let check = suite.split("pub(crate) fn check()").nth(1).unwrap();
    assert!(check.contains("    oldest_rust()?;\n"));
}
