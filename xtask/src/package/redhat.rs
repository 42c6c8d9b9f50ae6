//! Writes an .rpm.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet};

use super::build::Processor;
use super::contents::{Need, Package, What, after};

/// The package with Slurm's plugins and libslurm: SchedMD's, and EPEL's.
const SLURM: &str = "slurm";

pub(super) fn write(package: &Package, version: &str, output: &Path) -> Result<PathBuf> {
    let architecture = package.processor.map_or("noarch", Processor::name);
    let mut builder = PackageBuilder::new(
        &package.name,
        version,
        "GPL-2.0-or-later",
        architecture,
        &package.summary,
    );
    builder
        .using_config(BuildConfig::v4().compression(CompressionType::Gzip))
        .release("1")
        .description(package.description.clone());
    for entry in &package.entries {
        let path = entry.path.as_str();
        let file = |mode: u16| FileOptions::new(path).permissions(mode);
        match &entry.what {
            What::Copy(from, mode) => builder.with_file(from, file(*mode)),
            What::Config(from) => builder.with_file(from, file(0o644).config().noreplace()),
            What::Text(text, mode) => builder.with_file_contents(text.clone(), file(*mode)),
            What::Link(target) => builder.with_symlink(FileOptions::symlink(path, target)),
            What::Folder => builder.with_dir_entry(FileOptions::dir(path).permissions(0o755)),
        }
        .with_context(|| format!("{}: packing {path} failed", package.name))?;
    }
    let release = format!("{version}-1");
    for need in &package.needs {
        match need {
            Need::Own(name) => builder.requires(Dependency::eq(*name, release.as_str())),
            Need::Libc(libc) => builder.requires(Dependency::greater_eq("glibc", libc.as_str())),
            Need::Slurm { series, .. } => builder
                .requires(Dependency::greater_eq(SLURM, series.as_str()))
                .requires(Dependency::less(SLURM, after(series))),
        };
    }
    if let Some(name) = package.provides {
        builder.provides(Dependency::eq(name, release.as_str()));
        builder.conflicts(Dependency::any(name));
    }
    if let Some(text) = &package.installed {
        builder.post_install_script(Scriptlet::new(text.clone()));
    }
    if let Some(text) = &package.removing {
        // rpm passes 1 during an upgrade.
        let text = format!("[ \"$1\" = 0 ] || exit 0\n{text}");
        builder.pre_uninstall_script(Scriptlet::new(text));
    }
    let built = builder
        .build()
        .with_context(|| format!("{}: packing failed", package.name))?;
    let path = output.join(format!("{}-{release}.{architecture}.rpm", package.name));
    built
        .write_file(&path)
        .with_context(|| format!("writing {} failed", path.display()))?;
    Ok(path)
}
