//! Writes a .deb: the tree and the control files, packed by dpkg-deb.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::build::Processor;
use super::contents::{Need, Package, What, after};
use xtask_front::cargo::run;

/// Slurm's packages with its plugins: Debian's, and SchedMD's.
const SLURM: [&str; 2] = ["slurm-wlm-basic-plugins", "slurm-smd"];

/// Writes a package to `output`; the tree is made below `work`.
pub(super) fn write(
    package: &Package,
    version: &str,
    work: &Path,
    output: &Path,
) -> Result<PathBuf> {
    let tree = work.join("deb").join(&package.name);
    let mut size = 0;
    for entry in &package.entries {
        let path = tree.join(entry.path.trim_start_matches('/'));
        size += place(&path, &entry.what)
            .with_context(|| format!("{}: writing {} failed", package.name, entry.path))?;
    }
    let control = tree.join("DEBIAN");
    folder(&control)?;
    let architecture = package.processor.map_or("all", Processor::debian);
    let text = control_file(package, version, architecture, size);
    put(&control.join("control"), text.as_bytes(), 0o644)?;
    let kept: String = package
        .entries
        .iter()
        .filter(|entry| matches!(entry.what, What::Config(_)))
        .map(|entry| format!("{}\n", entry.path))
        .collect();
    if !kept.is_empty() {
        put(&control.join("conffiles"), kept.as_bytes(), 0o644)?;
    }
    // If another package replaces this one (`in-favour`), the files that Slurm needs stay.
    let scripts = [
        (
            "postinst",
            &package.installed,
            "[ \"$1\" = configure ] || exit 0",
        ),
        (
            "prerm",
            &package.removing,
            "[ \"$1\" = remove ] && [ -z \"$2\" ] || exit 0",
        ),
    ];
    for (name, text, when) in scripts {
        if let Some(text) = text {
            let text = format!("#!/bin/sh\nset -e\n{when}\n{text}");
            put(&control.join(name), text.as_bytes(), 0o755)?;
        }
    }
    let path = output.join(format!("{}_{version}_{architecture}.deb", package.name));
    run(Command::new("dpkg-deb")
        .args(["-Zxz", "--root-owner-group", "--build"])
        .arg(&tree)
        .arg(&path)
        .stdout(std::process::Stdio::null()))?;
    Ok(path)
}

/// Adds an entry to the tree; returns its size.
fn place(path: &Path, what: &What) -> Result<u64> {
    if let Some(above) = path.parent() {
        folder(above)?;
    }
    match what {
        What::Folder => folder(path)?,
        What::Link(target) => symlink(target, path)?,
        What::Text(text, mode) => {
            put(path, text, *mode)?;
            return Ok(text.len() as u64);
        }
        What::Copy(from, mode) => return copy(from, path, *mode),
        What::Config(from) => return copy(from, path, 0o644),
    }
    Ok(0)
}

fn copy(from: &Path, to: &Path, mode: u16) -> Result<u64> {
    let size = fs::copy(from, to).with_context(|| format!("copying {} failed", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode.into()))?;
    Ok(size)
}

fn put(path: &Path, text: &[u8], mode: u16) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(mode.into()),
    )?)
}

/// Creates a folder and its parents with the modes of a Debian system.
fn folder(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        folder(above)?;
    }
    fs::create_dir(path)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

fn control_file(package: &Package, version: &str, architecture: &str, size: u64) -> String {
    let mut depends = Vec::new();
    let mut breaks = Vec::new();
    for need in &package.needs {
        match need {
            Need::Own(name) => depends.push(format!("{name} (= {version})")),
            Need::Libc(libc) => depends.push(format!("libc6 (>= {libc})")),
            Need::Slurm { series, library } => {
                let either = SLURM.map(|name| format!("{name} (>= {series}~)"));
                depends.push(either.join(" | "));
                // Ubuntu 24.04 has names for libraries with 64-bit times.
                let library = library_package(library);
                depends.push(format!("{library} | {library}t64 | {}", SLURM[1]));
                breaks.extend(SLURM.map(|name| format!("{name} (<< {series}~)")));
                breaks.extend(SLURM.map(|name| format!("{name} (>= {}~)", after(series))));
            }
        }
    }
    let mut fields = vec![
        ("Package", package.name.clone()),
        ("Version", version.to_owned()),
        ("Architecture", architecture.to_owned()),
        (
            "Maintainer",
            "gpufrac developers <gpufrac@localhost>".to_owned(),
        ),
        ("Installed-Size", size.div_ceil(1024).to_string()),
        ("Section", "admin".to_owned()),
        ("Priority", "optional".to_owned()),
        ("Depends", depends.join(", ")),
        ("Breaks", breaks.join(", ")),
    ];
    if let Some(name) = package.provides {
        fields.push(("Provides", format!("{name} (= {version})")));
        fields.push(("Conflicts", name.to_owned()));
        fields.push(("Replaces", name.to_owned()));
    }
    fields.push((
        "Description",
        format!("{}\n {}", package.summary, package.description),
    ));
    fields.retain(|(_, value)| !value.is_empty());
    fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}

/// Debian's package of a library: `libslurm42` has `libslurm.so.42`.
fn library_package(library: &str) -> String {
    library.replace(".so.", "")
}

#[cfg(test)]
mod tests {
    use super::super::contents::SERIES;
    use super::*;

    #[test]
    fn a_package_of_a_series_takes_no_other() {
        let package = Package {
            name: format!("{SERIES}-24.11"),
            processor: Some(Processor::X86_64),
            summary: "summary".into(),
            description: "description".into(),
            needs: vec![Need::Slurm {
                series: "24.11".into(),
                library: "libslurm.so.42".into(),
            }],
            provides: Some(SERIES),
            entries: vec![],
            installed: None,
            removing: None,
            replaced: None,
        };
        let text = control_file(&package, "0.1.0", "amd64", 1025);
        for line in [
            "Depends: slurm-wlm-basic-plugins (>= 24.11~) | slurm-smd (>= 24.11~), libslurm42 | libslurm42t64 | slurm-smd",
            "Breaks: slurm-wlm-basic-plugins (<< 24.11~), slurm-smd (<< 24.11~), slurm-wlm-basic-plugins (>= 24.12~), slurm-smd (>= 24.12~)",
            "Provides: gpufrac-plugins (= 0.1.0)",
            "Installed-Size: 2",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
    }
}
