//! Writes an .rpm.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Scriptlet};

use super::build::Processor;
use super::contents::{Entry, Need, Package, What, after};

/// The packages with Slurm's plugins and libslurm: of SchedMD and EPEL, and of OpenHPC.
const SLURM: [&str; 2] = ["slurm", "slurm-ohpc"];

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
    for folder in folders(&package.entries) {
        builder
            .with_dir_entry(FileOptions::dir(folder).permissions(0o755))
            .with_context(|| format!("{}: packing {folder} failed", package.name))?;
    }
    for entry in &package.entries {
        let path = entry.path.as_str();
        let file = |mode: u16| {
            let options = FileOptions::new(path).permissions(mode);
            let is_manual = ["/usr/share/doc/", "/usr/share/man/"];
            match path {
                _ if path.ends_with("/copyright") => options.license(),
                _ if is_manual.iter().any(|place| path.starts_with(place)) => options.doc(),
                _ => options,
            }
        };
        match &entry.what {
            What::Copy(from, mode) => builder.with_file(from, file(*mode)),
            What::Config(from) => builder.with_file(from, file(0o644).config().noreplace()),
            What::Text(text, mode) => builder.with_file_contents(text.clone(), file(*mode)),
            What::Link(target) => builder.with_symlink(FileOptions::symlink(path, target)),
            What::Folder => continue,
        }
        .with_context(|| format!("{}: packing {path} failed", package.name))?;
    }
    let release = format!("{version}-1");
    for need in &package.needs {
        match need {
            Need::Own(name) => builder.requires(Dependency::eq(*name, release.as_str())),
            Need::Libc(libc) => builder.requires(Dependency::greater_eq("glibc", libc.as_str())),
            Need::Slurm { series, .. } => builder.requires(Dependency::any(slurm(series))),
        };
    }
    if let Some(name) = package.provides {
        builder.provides(Dependency::eq(name, release.as_str()));
        builder.conflicts(Dependency::any(name));
    }
    scripts(package, &mut builder);
    let built = builder
        .build()
        .with_context(|| format!("{}: packing failed", package.name))?;
    let path = output.join(format!("{}-{release}.{architecture}.rpm", package.name));
    built
        .write_file(&path)
        .with_context(|| format!("writing {} failed", path.display()))?;
    Ok(path)
}

/// The dependency on Slurm of a series, in the package of one of its makers. `with` is about one package: rpm takes two
/// dependencies for a range as fulfilled by two packages.
fn slurm(series: &str) -> String {
    let range = |name| format!("({name} >= {series} with {name} < {})", after(series));
    format!("({})", SLURM.map(range).join(" or "))
}

/// gpufrac's own folders of a package. Unlike dpkg, rpm removes only folders that a package names.
fn folders(entries: &[Entry]) -> BTreeSet<&str> {
    let mut folders = BTreeSet::new();
    for entry in entries {
        if matches!(entry.what, What::Folder) {
            folders.insert(entry.path.as_str());
        }
        for (at, _) in entry.path.match_indices('/') {
            let above = &entry.path[..at];
            if above.split('/').any(|name| name == "gpufrac") {
                folders.insert(above);
            }
        }
    }
    folders
}

/// Adds the scripts. rpm passes the number of versions that will be installed: 1 at an installation and at the removal
/// of the old version of an upgrade or downgrade, which comes after the installation of the new one.
fn scripts(package: &Package, builder: &mut PackageBuilder) {
    let units: Vec<&str> = package.entries.iter().filter_map(unit).collect();
    let units = units.join(" ");
    let mut installed = package.installed.clone().unwrap_or_default();
    if !units.is_empty() {
        // The preset of the package leaves them disabled; one of the site may have another opinion.
        installed += &format!(
            "if [ \"$1\" = 1 ] && command -v systemctl >/dev/null; then\n    systemctl --no-reload preset {units} || true\nfi\n"
        );
        builder.post_uninstall_script(shell(
            "if [ -d /run/systemd/system ]; then\n    systemctl daemon-reload || true\nfi\n",
        ));
    }
    if !installed.is_empty() {
        builder.post_install_script(shell(installed));
    }
    if let Some(text) = &package.removing {
        let replaced = match &package.replaced {
            // The new package is already there when rpm removes the old one.
            Some(test) => format!("{test} || exit 0\n"),
            None => String::new(),
        };
        let text = format!("[ \"$1\" = 0 ] || exit 0\n{replaced}{text}");
        builder.pre_uninstall_script(shell(text));
        for program in ["findutils", "grep", "sed"] {
            builder.requires(Dependency::script_preun(program));
        }
    }
}

fn shell(text: impl Into<String>) -> Scriptlet {
    Scriptlet::new(text).prog(vec!["/bin/sh"])
}

/// The name of systemd's unit, if a file is one.
fn unit(entry: &Entry) -> Option<&str> {
    entry.path.strip_prefix("/usr/lib/systemd/system/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_may_come_from_either_maker() {
        assert_eq!(
            slurm("24.11"),
            "((slurm >= 24.11 with slurm < 24.12) or (slurm-ohpc >= 24.11 with slurm-ohpc < 24.12))"
        );
    }

    #[test]
    fn own_folders_are_named_and_those_of_the_system_are_not() {
        let entry = |path: &str| Entry {
            path: path.into(),
            what: What::Text(Vec::new(), 0o644),
        };
        let entries = [
            entry("/usr/bin/gpufrac"),
            entry("/usr/share/doc/gpufrac/admin/page.md"),
        ];
        let own = ["/usr/share/doc/gpufrac", "/usr/share/doc/gpufrac/admin"];
        assert_eq!(folders(&entries), own.into());
    }
}
