//! The source of the parts that depend on Slurm's series, with all crates that they need: cargo needs no network for
//! the build.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use xtask_front::cargo::{root, run};

/// The first part of the packages' folders.
const FOLDERS: [&str; 6] = ["lib/", "slurm-plugin/", "prolog", "epilog", "reaper", "cli"];
/// The target systems; crates for other systems are left out.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Makes the tarball below `work`.
pub(super) fn tarball(work: &Path, version: &str) -> Result<PathBuf> {
    let tree = work.join("gpufrac");
    let members = copy(&tree)?;
    reduce(&tree, &members)?;
    fs::write(tree.join("BUILD"), version)?;
    vendor(&tree)?;
    let path = work.join("source.tar.xz");
    // These options give the same file for the same tree.
    run(Command::new("tar")
        .args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--mtime=@0",
            "-cJf",
        ])
        .arg(&path)
        .arg("-C")
        .arg(work)
        .arg("gpufrac"))?;
    Ok(path)
}

/// Copies the packages' files that git knows, without their tests. Returns the packages' folders.
fn copy(tree: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "Cargo.toml", "Cargo.lock", "LICENSE"])
        .args(FOLDERS)
        .current_dir(root())
        .output()
        .context("starting git failed")?;
    if !output.status.success() {
        bail!("`git ls-files` failed; the source is packed from a clone of the repository");
    }
    let mut members = BTreeSet::new();
    for name in String::from_utf8(output.stdout)?.lines() {
        if let Some(member) = name.strip_suffix("/Cargo.toml") {
            members.insert(member.to_owned());
        }
        let to = tree.join(name);
        let folder = to.parent().unwrap_or(tree);
        fs::create_dir_all(folder)?;
        fs::copy(root().join(name), &to).with_context(|| format!("copying {name} failed"))?;
    }
    Ok(members)
}

/// Reduces the workspace to these packages, without the dependencies of their tests.
fn reduce(tree: &Path, members: &BTreeSet<String>) -> Result<()> {
    for member in members {
        change(&tree.join(member).join("Cargo.toml"), |manifest| {
            manifest.remove("dev-dependencies");
        })?;
    }
    change(&tree.join("Cargo.toml"), |manifest| {
        let Some(workspace) = manifest.get_mut("workspace").and_then(Value::as_table_mut) else {
            return;
        };
        let names = members.iter().cloned().map(Value::String).collect();
        workspace.insert("members".into(), Value::Array(names));
        workspace.remove("exclude");
        let is_there = |value: &Value| {
            let path = value.get("path").and_then(Value::as_str);
            path.is_none_or(|path| members.contains(path))
        };
        if let Some(needs) = workspace
            .get_mut("dependencies")
            .and_then(Value::as_table_mut)
        {
            needs.retain(|_, value| is_there(value));
        }
        if let Some(profile) = manifest.get_mut("profile").and_then(Value::as_table_mut) {
            profile.retain(|name, _| name == "release");
        }
    })
}

fn change(path: &Path, how: impl FnOnce(&mut Table)) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("reading {} failed", path.display()))?;
    let mut manifest: Table = text.parse()?;
    how(&mut manifest);
    Ok(fs::write(path, toml::to_string(&manifest)?)?)
}

/// The setting by which cargo takes crates only from the tree.
const SOURCES: &str = "\
[source.crates-io]
replace-with = \"vendored-sources\"

[source.vendored-sources]
directory = \"vendor\"
";

/// Adds all crates to the tree; crates for other systems become empty.
fn vendor(tree: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["vendor", "--quiet", "--versioned-dirs", "vendor"])
        .current_dir(tree)
        .output()
        .context("starting cargo failed")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("`cargo vendor` failed: {said}");
    }
    let settings = tree.join(".cargo");
    fs::create_dir_all(&settings)?;
    fs::write(settings.join("config.toml"), SOURCES)?;
    let used = used(tree, &cargo)?;
    for entry in fs::read_dir(tree.join("vendor"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !used.contains(name.as_ref()) {
            empty(&path)?;
        }
    }
    // A build without a network, and without crates of earlier builds.
    let empty_home = tempfile::tempdir().context("making a temporary folder failed")?;
    run(Command::new(&cargo)
        .args(["metadata", "--frozen", "--quiet", "--format-version=1"])
        .current_dir(tree)
        .env("CARGO_HOME", empty_home.path())
        .stdout(std::process::Stdio::null()))
    .context("the source is not complete")
}

/// `NAME-VERSION` of each crate that is built for one of the target systems.
fn used(tree: &Path, cargo: &std::ffi::OsStr) -> Result<BTreeSet<String>> {
    let mut command = Command::new(cargo);
    command
        .args([
            "tree",
            "--workspace",
            "--offline",
            "--all-features",
            "--prefix=none",
        ])
        .args(["--edges=normal,build", "--format={p}"])
        .current_dir(tree);
    for target in TARGETS {
        command.args(["--target", target]);
    }
    let output = command.output().context("starting cargo failed")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("`cargo tree` failed: {said}");
    }
    let text = String::from_utf8(output.stdout)?;
    let names = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?);
        Some(format!("{name}-{}", version.strip_prefix('v')?))
    });
    Ok(names.collect())
}

/// Makes a crate empty: cargo finds it, but never builds it.
fn empty(path: &Path) -> Result<()> {
    let checksum = path.join(".cargo-checksum.json");
    let mut sums: serde_json::Value = serde_json::from_slice(&fs::read(&checksum)?)?;
    let manifest = fs::read(path.join("Cargo.toml"))?;
    fs::remove_dir_all(path)?;
    fs::create_dir_all(path.join("src"))?;
    fs::write(path.join("Cargo.toml"), manifest)?;
    fs::write(path.join("src/lib.rs"), "")?;
    if let Some(files) = sums.get_mut("files") {
        *files = serde_json::json!({});
    }
    Ok(fs::write(checksum, sums.to_string())?)
}
