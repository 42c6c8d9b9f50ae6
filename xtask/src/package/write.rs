//! Writes all packages of some builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::build::{Build, Processor};
use super::contents::{self, Package};
use super::{deb, redhat};
use crate::cargo::stage;

/// The plugin folders of Slurm's packages for Debian: Debian's own, and SchedMD's.
fn debian_folders(processor: Processor) -> Vec<String> {
    let library = format!("/usr/lib/{}-linux-gnu", processor.name());
    ["slurm-wlm", "slurm"]
        .map(|name| format!("{library}/{name}"))
        .into()
}

/// The plugin folder of SchedMD's packages for Red Hat, and of EPEL's.
const REDHAT_FOLDER: &str = "/usr/lib64/slurm";

/// Writes the Debian packages of these builds.
pub(super) fn debs(
    builds: &[Build],
    tarball: &Path,
    version: &str,
    output: &Path,
) -> Result<Vec<PathBuf>> {
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    stage("packages for Debian", || {
        let packages = packages(builds, tarball, debian_folders, output)?;
        let write = |package| deb::write(package, version, work.path(), output);
        packages.iter().map(write).collect()
    })
}

/// Writes the Red Hat packages of these builds.
pub(super) fn rpms(
    builds: &[Build],
    tarball: &Path,
    version: &str,
    output: &Path,
) -> Result<Vec<PathBuf>> {
    stage("packages for Red Hat", || {
        let packages = packages(builds, tarball, |_| vec![REDHAT_FOLDER.to_owned()], output)?;
        let write = |package| redhat::write(package, version, output);
        packages.iter().map(write).collect()
    })
}

/// All packages of these builds, whose plugins Slurm finds in `folders`. Creates the output folder.
fn packages(
    builds: &[Build],
    tarball: &Path,
    folders: impl Fn(Processor) -> Vec<String>,
    output: &Path,
) -> Result<Vec<Package>> {
    fs::create_dir_all(output).with_context(|| format!("making {} failed", output.display()))?;
    let mut packages = Vec::new();
    // The packages without machine code are made with a build that this machine can run.
    let own = Processor::own()?;
    if let Some(build) = builds.iter().find(|build| build.processor == own) {
        packages.push(contents::common(completions(build)?)?);
        packages.push(contents::node()?);
        packages.push(contents::source(tarball)?);
    }
    for build in builds {
        packages.push(contents::series(build, &folders(build.processor))?);
    }
    Ok(packages)
}

/// The completion files of shells, as `gpufrac completions` prints them.
fn completions(build: &Build) -> Result<Vec<(String, Vec<u8>)>> {
    let program = build.folder.join("gpufrac");
    let places = [
        ("bash", "/usr/share/bash-completion/completions/gpufrac"),
        ("zsh", "/usr/share/zsh/vendor-completions/_gpufrac"),
        ("fish", "/usr/share/fish/vendor_completions.d/gpufrac.fish"),
    ];
    let print = |(shell, path): (&str, &str)| {
        let output = Command::new(&program)
            .args(["completions", shell])
            .output()
            .with_context(|| format!("starting {} failed", program.display()))?;
        if !output.status.success() {
            bail!("`gpufrac completions {shell}` failed ({})", output.status);
        }
        Ok((path.to_owned(), output.stdout))
    };
    places.into_iter().map(print).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::package::stand_ins::fake;

    /// The files and links in the output of `dpkg-deb --contents`: `-rw-r--r-- root/root /usr/...`.
    fn of_deb(path: &Path) -> BTreeSet<String> {
        let output = Command::new("dpkg-deb").arg("-c").arg(path).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('d'));
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let path = words[5..].join(" ");
            format!("{} {} {}", words[0], words[1], path.trim_start_matches('.'))
        };
        lines.map(row).collect()
    }

    /// The files and links of an .rpm.
    fn of_rpm(path: &Path) -> BTreeSet<String> {
        let package = rpm::Package::open(path).unwrap();
        let files = package.metadata.get_file_entries().unwrap();
        let row = |file: &rpm::FileEntry<'_>| {
            let (kind, link) = match file.linkto().filter(|to| !to.is_empty()) {
                Some(to) => ('l', format!(" -> {to}")),
                None => ('-', String::new()),
            };
            let bit = |position: u16| file.permissions() >> (8 - position) & 1 == 1;
            let letters = (0..9).zip("rwxrwxrwx".chars());
            let mode: String = letters
                .map(|(at, letter)| if bit(at) { letter } else { '-' })
                .collect();
            let path = file.path();
            format!(
                "{kind}{mode} {}/{} {}{link}",
                file.user(),
                file.group(),
                path.display()
            )
        };
        let files = files
            .iter()
            .filter(|file| file.file_type() != rpm::FileType::Dir);
        files.map(row).collect()
    }

    /// Promise (admins): .deb and .rpm have the same files, root's, and need what the build needs.
    /// With `dependencies_of_a_package_are_read_from_its_build`.
    #[test]
    fn both_kinds_of_packages_have_the_same_files() {
        let place = tempfile::tempdir().unwrap();
        let build = fake(place.path(), "24.11");
        let packages = [
            contents::node().unwrap(),
            contents::series(&build, &["/usr/lib64/slurm".to_owned()]).unwrap(),
        ];
        for package in &packages {
            let (version, here) = ("0.1.0~dev1", place.path());
            let deb = of_deb(&deb::write(package, version, here, here).unwrap());
            let rpm = of_rpm(&redhat::write(package, version, here).unwrap());
            assert_eq!(deb, rpm);
            let owned = |row: &String| row.contains(" root/root ");
            assert!(deb.iter().all(owned), "{deb:?}");
        }
        let architecture = build.processor.debian();
        let name = format!("gpufrac-plugins-24.11_0.1.0~dev1_{architecture}.deb");
        let rows = of_deb(&place.path().join(name));
        let link = "lrwxrwxrwx root/root /usr/lib64/slurm/spank_gpufrac.so -> /usr/lib/gpufrac/spank_gpufrac.so";
        assert!(rows.contains(link), "{rows:?}");
    }

    #[test]
    fn dependencies_of_a_package_are_read_from_its_build() {
        let place = tempfile::tempdir().unwrap();
        let package = contents::series(&fake(place.path(), "24.11"), &[]).unwrap();
        assert_eq!(package.name, "gpufrac-plugins-24.11");
        let slurm = contents::Need::Slurm {
            series: "24.11".into(),
            library: "libslurm.so.42".into(),
        };
        assert_eq!(package.needs, [slurm, contents::Need::Libc("2.28".into())]);
    }
}
