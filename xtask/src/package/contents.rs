//! The contents of each package. The writers of .deb and .rpm read only this.
//!
//! Files built against `slurm.h` depend on the series of Slurm: the plugins, and the programs, which read structures
//! of libslurm. All of them are in one package for each series, in [`PROGRAMS`]; a host has one of these packages.
//! The other packages have no programs: they install links to them, and further files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::build::{Build, Processor};
use super::elf;
use crate::dist::{PLUGINS, PROGRAMS as BUILT_PROGRAMS, files_below};
use xtask_front::cargo::root;

/// The folder of a series' plugins and programs.
pub(super) const PROGRAMS: &str = "/usr/lib/gpufrac";
/// The name that the package of each series provides, and the package that is built on the host.
pub(super) const SERIES: &str = "gpufrac-plugins";

/// The file with the series of the installed plugins and programs.
const MARK: &str = "/usr/lib/gpufrac/series";

#[derive(Debug)]
pub(super) struct Package {
    pub name: String,
    /// The processor of its machine code, if it has any.
    pub processor: Option<Processor>,
    pub summary: String,
    pub description: String,
    pub needs: Vec<Need>,
    /// A further name of the package, which only one package of a host may have.
    pub provides: Option<&'static str>,
    pub entries: Vec<Entry>,
    /// Shell script for root after an installation or upgrade.
    pub installed: Option<String>,
    /// Shell script for root before a removal, but not before an upgrade. If it fails, the package stays.
    pub removing: Option<String>,
    /// Shell command that fails if a package of another series has taken this one's place: then nothing is removed.
    pub replaced: Option<String>,
}

/// A dependency of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Need {
    /// Another of these packages, of the same version.
    Own(&'static str),
    /// Slurm of exactly this series, with this library.
    Slurm { series: String, library: String },
    /// The C library, from this version on.
    Libc(String),
}

/// A version before all later series: 24.12 for 24.11.
pub(super) fn after(series: &str) -> String {
    let (year, month) = series.split_once('.').unwrap_or((series, "0"));
    let month: u32 = month.parse().unwrap_or_default();
    format!("{year}.{:02}", month + 1)
}

/// A file, link or folder of a package.
#[derive(Debug)]
pub(super) struct Entry {
    pub path: String,
    pub what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A copy of a file, with its mode.
    Copy(PathBuf, u16),
    /// A copy of a file that the admin may change, and that an upgrade does not overwrite.
    Config(PathBuf),
    /// A text made for the package, with its mode.
    Text(Vec<u8>, u16),
    Link(String),
    Folder,
}

fn entry(path: impl Into<String>, what: What) -> Entry {
    Entry {
        path: path.into(),
        what,
    }
}

fn packaging(name: &str) -> PathBuf {
    root().join("packaging").join(name)
}

fn script(name: &str) -> Result<Option<String>> {
    let path = packaging(name);
    let text =
        fs::read_to_string(&path).with_context(|| format!("reading {} failed", path.display()))?;
    Ok(Some(text))
}

/// The package of the command, the manual, samples and documents. `completions` are the files of shells, by path.
pub(super) fn common(completions: Vec<(String, Vec<u8>)>) -> Result<Package> {
    let mut entries = vec![
        entry("/etc/gpufrac", What::Folder),
        entry(
            "/usr/bin/gpufrac",
            What::Link(format!("{PROGRAMS}/gpufrac")),
        ),
    ];
    for (path, text) in completions {
        entries.push(entry(path, What::Text(text, 0o644)));
    }
    let documents = root().join("docs");
    for page in files_below(&documents.join("man"))? {
        let section = page.extension().unwrap_or_default().to_string_lossy();
        let name = file_name(&page);
        entries.push(entry(
            format!("/usr/share/man/man{section}/{name}"),
            What::Copy(page.clone(), 0o644),
        ));
    }
    let doc = "/usr/share/doc/gpufrac";
    for (path, folder) in [
        (root().join("etc"), "examples"),
        (documents.join("admin"), "admin"),
        (documents.join("user"), "user"),
    ] {
        for file in files_below(&path)? {
            // Units are installed in systemd's folder.
            if file.extension().is_some_and(|end| end == "service") {
                continue;
            }
            let name = file.strip_prefix(&path)?.display().to_string();
            entries.push(entry(
                format!("{doc}/{folder}/{name}"),
                What::Copy(file, 0o644),
            ));
        }
    }
    let pages = fs::read_dir(&documents).context("reading docs failed")?;
    let mut pages: Vec<PathBuf> = pages.flatten().map(|page| page.path()).collect();
    pages.retain(|page| page.is_file());
    pages.extend(["README.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root().join(name)));
    pages.sort();
    for page in pages {
        let path = format!("{doc}/{}", file_name(&page));
        entries.push(entry(path, What::Copy(page, 0o644)));
    }
    entries.push(entry(
        format!("{doc}/copyright"),
        What::Copy(root().join("LICENSE"), 0o644),
    ));
    Ok(Package {
        name: "gpufrac".into(),
        processor: None,
        summary: "fractional GPUs for Slurm: command, manual and samples".into(),
        description: "A job asks for --gres=gpufrac:0.25 and gets a quarter of a GPU: a MIG instance, or a share by MPS, time \
                      slices or HAMi-core. Every host of the cluster has this package and one of gpufrac-plugins-SERIES, \
                      nodes with GPUs also gpufrac-node."
            .into(),
        needs: vec![Need::Own(SERIES)],
        provides: None,
        entries,
        installed: None,
        // Slurm does not start without a plugin that its files name, so the script refuses the removal while they
        // name one.
        removing: script("plugins.removing")?,
        replaced: None,
    })
}

/// The package for nodes with GPUs.
pub(super) fn node() -> Result<Package> {
    let program = |name: &str| {
        entry(
            format!("/usr/sbin/{name}"),
            What::Link(format!("{PROGRAMS}/{name}")),
        )
    };
    let unit = |name: &str| {
        entry(
            format!("/usr/lib/systemd/system/{name}"),
            What::Copy(root().join("etc").join(name), 0o644),
        )
    };
    Ok(Package {
        name: "gpufrac-node".into(),
        processor: None,
        summary: "fractional GPUs for Slurm: compute nodes".into(),
        description: "Prolog, epilog and the reaper of nodes whose GPUs are shared, with their units. Nothing is enabled or \
                      started: see /usr/share/doc/gpufrac/admin/install.md."
            .into(),
        needs: vec![Need::Own("gpufrac"), Need::Own(SERIES)],
        provides: None,
        entries: vec![
            program("gpufrac-prolog"),
            program("gpufrac-epilog"),
            program("gpufrac-reaperd"),
            unit("gpufrac-node-setup.service"),
            unit("gpufrac-reaperd.service"),
            entry(
                "/usr/lib/systemd/system-preset/80-gpufrac.preset",
                What::Copy(packaging("systemd.preset"), 0o644),
            ),
            entry(
                "/usr/lib/tmpfiles.d/gpufrac.conf",
                What::Copy(packaging("tmpfiles.conf"), 0o644),
            ),
            entry(
                "/etc/profile.d/gpufrac.sh",
                What::Config(packaging("profile.sh")),
            ),
            entry(
                "/etc/profile.d/gpufrac.csh",
                What::Config(packaging("profile.csh")),
            ),
            entry(
                "/etc/logrotate.d/gpufrac",
                What::Config(packaging("logrotate")),
            ),
        ],
        installed: script("node.installed")?,
        removing: script("node.removing")?,
        replaced: None,
    })
}

/// The package of the files built against one Slurm, with links in the `folders` in which Slurm looks for plugins.
pub(super) fn series(build: &Build, folders: &[String]) -> Result<Package> {
    let series = build.release.series();
    let mut entries = vec![entry(
        MARK,
        What::Text(format!("{series}\n").into_bytes(), 0o644),
    )];
    let mut library = None;
    let programs = BUILT_PROGRAMS.map(|name| (name, name, 0o755));
    let plugins = PLUGINS.map(|(built, name)| (built, name, 0o644));
    for (built, name, mode) in plugins.into_iter().chain(programs) {
        let path = build.folder.join(built);
        let file = elf::read(&path)?;
        library = library.or(file.libslurm);
        entries.push(entry(format!("{PROGRAMS}/{name}"), What::Copy(path, mode)));
    }
    for folder in folders {
        for (_, name) in PLUGINS {
            entries.push(entry(
                format!("{folder}/{name}"),
                What::Link(format!("{PROGRAMS}/{name}")),
            ));
        }
    }
    let library = library.context("no program of the build names the library libslurm.so.N")?;
    Ok(Package {
        name: format!("{SERIES}-{series}"),
        processor: Some(build.processor),
        summary: format!("fractional GPUs for Slurm: plugins and programs for Slurm {series}"),
        description: format!(
            "The plugins job_submit, cli_filter and SPANK, and gpufrac's programs, built for Slurm {series}: any release of \
             this series, and no other series."
        ),
        needs: vec![
            Need::Slurm {
                series: series.clone(),
                library,
            },
            Need::Libc(elf::LIBC.to_string()),
        ],
        provides: Some(SERIES),
        entries,
        installed: None,
        removing: script("plugins.removing")?,
        replaced: Some(format!("[ \"$(cat {MARK})\" = {series} ]")),
    })
}

/// The package of the source, with the program that builds it on a host.
pub(super) fn source(tarball: &Path) -> Result<Package> {
    Ok(Package {
        name: format!("{SERIES}-source"),
        processor: None,
        summary: "fractional GPUs for Slurm: plugins and programs to be built for this host's Slurm".into(),
        description: "For a series of Slurm that no package gpufrac-plugins-SERIES is made for, or a Slurm with a prefix of \
                      its own. gpufrac-build-plugins builds them for the slurm.h that it finds, without a network, tries \
                      them in a slurmctld of its own, and installs them then. It needs Rust 1.88, libclang and gcc."
            .into(),
        needs: vec![],
        provides: Some(SERIES),
        entries: vec![
            entry(
                "/usr/sbin/gpufrac-build-plugins",
                What::Copy(packaging("gpufrac-build-plugins"), 0o755),
            ),
            entry(
                "/usr/share/gpufrac/package-plugins",
                What::Copy(packaging("package-plugins"), 0o755),
            ),
            entry(
                "/usr/share/gpufrac/plugins.removing",
                What::Copy(packaging("plugins.removing"), 0o644),
            ),
            entry(
                "/usr/share/gpufrac/source.tar.xz",
                What::Copy(tarball.to_owned(), 0o644),
            ),
        ],
        installed: None,
        removing: script("plugins.removing")?.map(|text| format!("{text}{REMOVE_BUILT}")),
        replaced: Some(format!("[ ! -e {MARK} ]")),
    })
}

/// A removal of the package also removes the files that were built on the host.
const REMOVE_BUILT: &str = "\
if [ -f /usr/lib/gpufrac/installed ]; then
    xargs -r -d '\\n' rm -f </usr/lib/gpufrac/installed
    rm -f /usr/lib/gpufrac/installed
    rmdir --ignore-fail-on-non-empty /usr/lib/gpufrac
fi
";

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
