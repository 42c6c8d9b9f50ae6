//! `cargo xtask dist`: a release build for one Slurm, installed in a tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpufrac_lab::Release;

use crate::version;
use xtask_front::cargo::{PACKAGES, cargo, root, run as run_command};

#[derive(clap::Args)]
pub(crate) struct DistArguments {
    /// The folder that holds `slurm/slurm.h` of the Slurm to build for
    #[arg(long, default_value = "/usr/include")]
    slurm_include: PathBuf,
    /// The tree to install in
    #[arg(long)]
    destdir: PathBuf,
    /// Where programs go in the tree
    #[arg(long, default_value = "/usr")]
    prefix: PathBuf,
    /// Where Slurm's plugins are in the tree; unless given, `../lib/slurm` or `../lib64/slurm` of the headers if
    /// plugins are there, else PREFIX/lib/MULTIARCH/slurm-wlm
    #[arg(long)]
    plugin_dir: Option<PathBuf>,
}

/// The names of the plugins for Cargo and for Slurm.
pub(crate) const PLUGINS: [(&str, &str); 3] = [
    ("libjob_submit_gpufrac.so", "job_submit_gpufrac.so"),
    ("libcli_filter_gpufrac.so", "cli_filter_gpufrac.so"),
    ("libspank_gpufrac.so", "spank_gpufrac.so"),
];

pub(crate) const PROGRAMS: [&str; 4] = [
    "gpufrac-prolog",
    "gpufrac-epilog",
    "gpufrac-reaperd",
    "gpufrac",
];

/// A release build for one Slurm.
struct Build {
    release: Release,
    /// The folder of the plugins, with Cargo's names, and of the programs.
    folder: PathBuf,
}

/// Builds for the Slurm with these headers.
fn build(slurm_include: &Path) -> Result<Build> {
    let release = Release::read(slurm_include)
        .context("which Slurm is this: does the folder hold `slurm/slurm.h`?")?;
    // A separate folder for each release: bindings of one must not be used for another.
    let target = root().join("target/dist").join(release.to_string());
    let mut build = cargo(&["build", "--release", "--locked", "--target-dir"]);
    build
        .arg(&target)
        .env("GPUFRAC_SLURM_INCLUDE", slurm_include)
        .env("GPUFRAC_BUILD", version::of_tree());
    for package in PACKAGES {
        build.args(["-p", package]);
    }
    run_command(&mut build)?;
    let folder = target.join("release");
    Ok(Build { release, folder })
}

/// Builds `gpufrac-plan` without shared libraries: it must run on login nodes with an older C library.
fn build_plan() -> Result<PathBuf> {
    let target = root().join("target/dist/static");
    // With a target named, the flags are not those of build scripts and macros, which cannot be static.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cargo(&[
        "build",
        "--release",
        "--locked",
        "-p",
        "gpufrac-plan",
        "--target",
    ]);
    build
        .args([&triple, "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("GPUFRAC_BUILD", version::of_tree());
    run_command(&mut build)?;
    Ok(target.join(triple).join("release/gpufrac-plan"))
}

pub(crate) fn run(arguments: &DistArguments) -> Result<()> {
    let Build {
        release,
        folder: built,
    } = build(&arguments.slurm_include)?;
    let tree = Tree(&arguments.destdir);
    let plugins = plugin_folder(arguments)?;
    for (name, installed) in PLUGINS {
        tree.install(&built.join(name), &plugins.join(installed), 0o644)?;
    }
    let prefix = &arguments.prefix;
    for program in ["gpufrac-prolog", "gpufrac-epilog", "gpufrac-reaperd"] {
        tree.install(
            &built.join(program),
            &prefix.join("sbin").join(program),
            0o755,
        )?;
    }
    tree.install(&built.join("gpufrac"), &prefix.join("bin/gpufrac"), 0o755)?;
    tree.install(&build_plan()?, &prefix.join("bin/gpufrac-plan"), 0o755)?;
    let doc = prefix.join("share/doc/gpufrac");
    for sample in files_below(&root().join("etc"))? {
        let name = sample.strip_prefix(root().join("etc"))?;
        tree.install(&sample, &doc.join("examples").join(name), 0o644)?;
    }
    for page in ["README.md", "LICENSE", "CHANGELOG.md"] {
        tree.install(&root().join(page), &doc.join(page), 0o644)?;
    }
    for folder in ["user", "admin"] {
        for page in files_below(&root().join("docs").join(folder))? {
            let name = page.file_name().unwrap_or_default();
            tree.install(&page, &doc.join(folder).join(name), 0o644)?;
        }
    }
    for page in files_below(&root().join("docs/man"))? {
        let section = page
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let name = page.file_name().unwrap_or_default();
        let place = prefix
            .join("share/man")
            .join(format!("man{section}"))
            .join(name);
        tree.install(&page, &place, 0o644)?;
    }
    println!(
        "gpufrac for Slurm {release} is in {}; its plugins are for {}",
        arguments.destdir.display(),
        plugins.display()
    );
    Ok(())
}

/// The plugin folder of this Slurm, as Slurm sees it.
fn plugin_folder(arguments: &DistArguments) -> Result<PathBuf> {
    if let Some(folder) = &arguments.plugin_dir {
        return Ok(folder.clone());
    }
    let include = std::path::absolute(&arguments.slurm_include)?;
    if let Some(folder) = plugins_beside(&include) {
        return Ok(folder);
    }
    let library = arguments.prefix.join("lib");
    Ok(library.join(multiarch()?).join("slurm-wlm"))
}

/// The plugins of the Slurm with these headers, if it is not packaged by Debian: in its own prefix (`/opt/slurm`), or
/// `/usr/lib64/slurm`.
fn plugins_beside(include: &Path) -> Option<PathBuf> {
    let prefix = include.parent()?;
    let folders = ["lib/slurm", "lib64/slurm"].map(|name| prefix.join(name));
    let is_plugin = |path: PathBuf| path.extension().is_some_and(|end| end == "so");
    folders.into_iter().find(|folder| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(is_plugin)
    })
}

fn multiarch() -> Result<String> {
    let output = Command::new("gcc")
        .arg("-print-multiarch")
        .output()
        .context("starting gcc failed; give --plugin-dir")?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if name.is_empty() {
        bail!("gcc knows no multiarch name here; give --plugin-dir");
    }
    Ok(name)
}

struct Tree<'a>(&'a Path);

impl Tree<'_> {
    fn install(&self, from: &Path, to: &Path, mode: u32) -> Result<()> {
        let to = self.0.join(to.strip_prefix("/").unwrap_or(to));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("creating {} failed", folder.display()))?;
        }
        // The tree may be that of a running Slurm.
        Ok(gpufrac_lab::install(from, &to, mode)?)
    }
}

/// All files below a folder; none if it does not exist.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !folder.exists() {
        return Ok(files);
    }
    let entries =
        fs::read_dir(folder).with_context(|| format!("reading {} failed", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_go_where_the_slurm_of_the_headers_has_its_own() {
        let place = tempfile::tempdir().unwrap();
        let prefix = place.path().join("opt/slurm");
        let (lib, lib64) = (prefix.join("lib/slurm"), prefix.join("lib64/slurm"));
        for folder in [&lib, &lib64, &prefix.join("include")] {
            fs::create_dir_all(folder).unwrap();
        }
        let mut arguments = DistArguments {
            slurm_include: prefix.join("include/"),
            destdir: place.path().join("tree"),
            prefix: "/usr".into(),
            plugin_dir: None,
        };
        // There is no plugin: the folder of Debian is used.
        fs::write(lib.join("select_cons_tres.a"), "").unwrap();
        let debian = plugin_folder(&arguments).unwrap();
        assert!(debian.starts_with("/usr/lib"), "{debian:?}");
        assert!(debian.ends_with("slurm-wlm"), "{debian:?}");
        fs::write(lib64.join("select_cons_tres.so"), "").unwrap();
        assert_eq!(plugin_folder(&arguments).unwrap(), lib64);
        fs::write(lib.join("select_cons_tres.so"), "").unwrap();
        assert_eq!(plugin_folder(&arguments).unwrap(), lib);
        // In the tree the files are at this path.
        let tree = Tree(&arguments.destdir);
        let plugin = plugin_folder(&arguments).unwrap().join("ours.so");
        tree.install(&lib.join("select_cons_tres.so"), &plugin, 0o644)
            .unwrap();
        let inside = plugin.strip_prefix("/").unwrap();
        assert!(arguments.destdir.join(inside).exists());
        arguments.plugin_dir = Some("/else/where".into());
        assert_eq!(plugin_folder(&arguments).unwrap(), Path::new("/else/where"));
    }
}
