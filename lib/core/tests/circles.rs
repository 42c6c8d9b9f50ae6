//! In no crate two files import from each other, directly or over other files.
//!
//! The test reads the source with syn. A file imports from another file if its code names an item of it, in `use` or by
//! a path; a name that a module passes on (`pub use`) counts for that module and for the file that defines it. A module
//! may use what the modules above it define. Tests (`#[cfg(test)]`) may import what they like, and methods are not
//! seen.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A path of modules from the root of a crate, or from an item in one of them.
type Names = Vec<String>;

/// A module that has a file of its own.
struct Module {
    file: PathBuf,
    /// The names of its items, with the modules below it.
    items: BTreeSet<String>,
    /// What it passes on or imports: each local name with the path that it stands for.
    names: BTreeMap<String, Names>,
    /// The modules whose public names it passes on as a whole.
    globs: Vec<Names>,
    /// The paths that its code names; those of `pub use` are not among them.
    used: BTreeSet<Names>,
}

/// The modules that a module imports from, each with the names of its items.
type Arrows = BTreeMap<Names, BTreeSet<String>>;

/// The modules of one crate by their path.
#[derive(Default)]
struct Crate(BTreeMap<Names, Module>);

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        text.starts_with("# [cfg") && text.contains("test") && !text.contains("not")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Mod(it) => &it.ident,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The names that a `use` makes, each with its path; `*` is the name of a glob.
fn imports(tree: &UseTree, before: &[String], found: &mut Vec<(String, Names)>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => imports(&path.tree, &with(&path.ident), found),
        UseTree::Name(name) if name.ident == "self" => {
            found.push((before.last().cloned().unwrap_or_default(), before.to_vec()));
        }
        UseTree::Name(name) => found.push((name.ident.to_string(), with(&name.ident))),
        UseTree::Rename(rename) => found.push((rename.rename.to_string(), with(&rename.ident))),
        UseTree::Glob(_) => found.push(("*".to_owned(), before.to_vec())),
        UseTree::Group(group) => {
            for tree in &group.items {
                imports(tree, before, found);
            }
        }
    }
}

/// Collects the paths that code names.
struct Paths<'a>(&'a mut Module);

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_path(&mut self, path: &'a syn::Path) {
        let words = path.segments.iter().map(|word| word.ident.to_string());
        self.0.used.insert(words.collect());
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.0.import(item);
    }

    fn visit_macro(&mut self, code: &'a syn::Macro) {
        self.tokens(code.tokens.clone());
        visit::visit_macro(self, code);
    }
}

impl Paths<'_> {
    /// The arguments of a macro are tokens: words with `::` between them are paths, single words may be anything.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut colons = 0;
        let mut end = |path: &mut Names| {
            if path.len() > 1 {
                self.0.used.insert(std::mem::take(path));
            }
            path.clear();
        };
        let mut groups = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        end(&mut path);
                    }
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Group(group) => {
                    end(&mut path);
                    groups.push(group.stream());
                    colons = 0;
                }
                _ => {
                    end(&mut path);
                    colons = 0;
                }
            }
        }
        end(&mut path);
        for group in groups {
            self.tokens(group);
        }
    }
}

impl Crate {
    fn read(root: &Path) -> Crate {
        let mut modules = Crate::default();
        let folder = root.parent().unwrap();
        modules.add(root, folder, Vec::new());
        modules
    }

    /// Adds the module of a file, and the modules that it declares; `folder` has the files of these.
    fn add(&mut self, file: &Path, folder: &Path, path: Names) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let code =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut module = Module {
            file: file.to_owned(),
            items: BTreeSet::new(),
            names: BTreeMap::new(),
            globs: Vec::new(),
            used: BTreeSet::new(),
        };
        let mut below = Vec::new();
        module.take(&code.items, &mut below);
        self.0.insert(path.clone(), module);
        for name in below {
            let path = [&path[..], std::slice::from_ref(&name)].concat();
            let own = folder.join(&name);
            let file = [folder.join(format!("{name}.rs")), own.join("mod.rs")]
                .into_iter()
                .find(|file| file.exists());
            // A module of a build script's output has no file here.
            if let Some(file) = file {
                self.add(&file, &own, path);
            }
        }
    }

    /// The path from the crate's root, if the path begins in this module; none if it belongs to another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut at = module.to_vec();
        match first.as_str() {
            "crate" => return Some(rest.to_vec()),
            "self" => return Some([module, rest].concat()),
            "super" => {
                let mut rest = path;
                while let Some(("super", below)) = rest
                    .split_first()
                    .map(|(first, below)| (first.as_str(), below))
                {
                    at.pop();
                    rest = below;
                }
                return Some([&at[..], rest].concat());
            }
            _ => {}
        }
        let own = self.0.get(module)?;
        let is_module = |name: &String| {
            self.0
                .contains_key(&[module, std::slice::from_ref(name)].concat())
        };
        // A single word is a value or a type: the variable `lab` is not the module `lab`.
        if own.items.contains(first) && !(rest.is_empty() && is_module(first)) {
            return Some([module, path].concat());
        }
        let imported = own.names.get(first)?;
        if imported == path {
            return None;
        }
        let from = self.absolute(module, imported)?;
        Some([&from[..], rest].concat())
    }

    /// The module that defines what an absolute path names, after the modules that pass the name on.
    fn homes(&self, path: &[String], found: &mut Vec<Names>) {
        let known = (0..=path.len()).rev().map(|most| path.split_at(most));
        let Some((module, rest)) = known
            .into_iter()
            .find(|(module, _)| self.0.contains_key(*module))
        else {
            return;
        };
        // A circle of names ends here.
        if found.iter().any(|before| before == module) {
            return;
        }
        found.push(module.to_vec());
        let own = &self.0[module];
        let Some(first) = rest.first().filter(|first| !own.items.contains(*first)) else {
            return;
        };
        let of_glob = |glob: &Names| {
            let glob = self.absolute(module, glob)?;
            let has = self.0.get(&glob)?.items.contains(first);
            has.then(|| [&glob[..], rest].concat())
        };
        let from = match own.names.get(first) {
            Some(from) => self
                .absolute(module, from)
                .map(|from| [&from[..], &rest[1..]].concat()),
            None => own.globs.iter().find_map(of_glob),
        };
        if let Some(from) = from {
            self.homes(&from, found);
        }
    }

    /// The modules that each module imports from, with the names that it takes from them.
    fn arrows(&self) -> BTreeMap<&Names, Arrows> {
        let of = |path: &Names, module: &Module| {
            let mut arrows = Arrows::new();
            for used in module
                .used
                .iter()
                .filter_map(|used| self.absolute(path, used))
            {
                let mut found = Vec::new();
                self.homes(&used, &mut found);
                // A module may use what the modules above it define: `super` is the place for what siblings share.
                for home in found.into_iter().filter(|home| !path.starts_with(home)) {
                    arrows.entry(home).or_default().extend(used.last().cloned());
                }
            }
            arrows
        };
        self.0
            .iter()
            .map(|(path, module)| (path, of(path, module)))
            .collect()
    }

    /// The circles, each as a text with its files, and what they take from each other.
    fn circles(&self, root: &Path) -> BTreeSet<String> {
        let arrows = self.arrows();
        let reach = |from: &Names| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&Names> = arrows[from].keys().collect();
            while let Some(module) = next.pop() {
                if seen.insert(module) {
                    next.extend(arrows[module].keys());
                }
            }
            seen
        };
        let reached: BTreeMap<&Names, BTreeSet<&Names>> = self
            .0
            .keys()
            .map(|module| (module, reach(module)))
            .collect();
        let file = |module: &Names| {
            let file = &self.0[module].file;
            file.strip_prefix(root)
                .unwrap_or(file)
                .display()
                .to_string()
        };
        let mut circles = BTreeSet::new();
        for (module, seen) in reached
            .iter()
            .filter(|(module, seen)| seen.contains(**module))
        {
            let mut text = String::from("a circle:\n");
            let circle: Vec<_> = seen
                .iter()
                .filter(|other| reached[**other].contains(module))
                .collect();
            for from in &circle {
                for (to, names) in arrows[**from]
                    .iter()
                    .filter(|(to, _)| circle.contains(&&&**to))
                {
                    let names = names
                        .iter()
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .join(", ");
                    text += &format!("  {} -> {}: {names}\n", file(from), file(to));
                }
            }
            circles.insert(text);
        }
        circles
    }
}

impl Module {
    fn import(&mut self, item: &syn::ItemUse) {
        let mut found = Vec::new();
        imports(&item.tree, &[], &mut found);
        let passes_on = !matches!(item.vis, Visibility::Inherited);
        for (name, path) in found {
            if !passes_on {
                self.used.insert(path.clone());
            }
            if name == "*" {
                self.globs.push(path);
            } else {
                self.names.insert(name, path);
            }
        }
    }

    /// Takes the items of a file or of a module inside it; `below` gets the modules with files of their own.
    fn take(&mut self, items: &[Item], below: &mut Vec<String>) {
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            self.items.extend(name(item));
            match item {
                Item::Use(item) => self.import(item),
                Item::Mod(item) => match &item.content {
                    Some((_, items)) => self.take(items, &mut Vec::new()),
                    None => below.push(item.ident.to_string()),
                },
                item => Paths(self).visit_item(item),
            }
        }
    }
}

/// The root files of a package's library and programs.
fn roots(package: &Path) -> Vec<PathBuf> {
    let source = package.join("src");
    let programs = fs::read_dir(source.join("bin")).into_iter().flatten();
    let programs = programs.map(|entry| entry.unwrap().path());
    let programs = programs.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let usual = ["lib.rs", "main.rs"].map(|name| source.join(name));
    usual
        .into_iter()
        .chain(programs)
        .filter(|path| path.exists())
        .collect()
}

#[test]
fn no_two_files_of_a_crate_import_from_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml"))
        .unwrap()
        .parse()
        .unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let packages = members.iter().map(|name| root.join(name.as_str().unwrap()));
    let crates = packages.flat_map(|package| roots(&package));
    let found: Vec<String> = crates
        .flat_map(|file| Crate::read(&file).circles(&root))
        .collect();
    assert!(
        found.is_empty(),
        "files import from each other; move what both need to a file below them:\n{}",
        found.concat()
    );
}

/// The circles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, code) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, code).unwrap();
    }
    let circles = Crate::read(&folder.path().join("lib.rs")).circles(folder.path());
    circles.into_iter().collect()
}

#[test]
fn a_circle_is_found_by_use_by_path_in_macros_and_over_a_name_that_is_passed_on() {
    for (a, b) in [
        (
            "use crate::b::two; pub fn one() { two() }",
            "pub fn two() { super::a::one() }",
        ),
        (
            "pub fn one() { format!(\"{}\", crate::b::two()); }",
            "use super::a::one; pub fn two() { one() }",
        ),
        (
            "use super::b; pub fn one() -> b::two { b::two }",
            "pub struct two; fn x() { crate::a::one(); }",
        ),
        (
            "pub fn one() { use super::b::two; two() }",
            "use crate::a::{self}; pub fn two() { a::one() }",
        ),
    ] {
        let found = circles_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]).concat();
        assert!(
            found.contains("a.rs -> b.rs: ") && found.contains("b.rs -> a.rs: "),
            "{a}: {found}"
        );
    }
    let passed_on = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::One; pub struct Two(One);"),
        (
            "b.rs",
            "pub use crate::c::One; use crate::a::Two; fn three(_: Two) {}",
        ),
        ("c.rs", "pub struct One;"),
    ]);
    assert_eq!(
        passed_on,
        ["a circle:\n  a.rs -> b.rs: One\n  b.rs -> a.rs: Two\n"]
    );
}

#[test]
fn what_a_module_above_defines_what_tests_import_and_other_names_are_no_circle() {
    let alone = circles_of(&[
        (
            "lib.rs",
            "mod a; mod b; pub use a::one; pub struct Three; fn four() { b::two() }",
        ),
        (
            "a.rs",
            "use super::Three; pub fn one(_: Three) {}\n#[cfg(test)] mod tests { use crate::b::two; }",
        ),
        (
            "b.rs",
            "pub fn two() { let a = 1; drop(a); crate::one(crate::Three); }",
        ),
    ]);
    assert_eq!(alone, [""; 0]);
}
