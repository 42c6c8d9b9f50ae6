//! `cargo xtask package`: .deb and .rpm for each series of Slurm, from one list of contents.

mod ansible;
mod contents;
mod deb;
mod elf;
mod page;
mod redhat;
mod site;
mod source;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{root, stage};
use crate::dist::{Build, build};
use crate::series::{self, Series};
use crate::version;
use contents::Package;

#[derive(clap::Args)]
pub(crate) struct PackageArguments {
    /// A series of Slurm (22.05, 24.11, 26.05), and further ones; all of them unless said
    #[arg(long = "slurm")]
    series: Vec<String>,
    /// Where the packages go [default: target/packages]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Try them instead, on small clusters of each series: docs/admin is followed word by word
    #[arg(long = "try", conflicts_with = "output")]
    try_out: bool,
    /// Try the package of the source: build it on a host of each series without a network, as
    /// docs/admin/other-series.md has it
    #[arg(long, conflicts_with_all = ["output", "try_out"])]
    try_source: bool,
    /// Try the role of contrib/ansible, on small clusters of each series
    #[arg(long, conflicts_with_all = ["output", "try_out", "try_source"])]
    try_ansible: bool,
    /// Package a build for tests, which takes less time
    #[arg(long)]
    debug: bool,
}

/// The plugin folders of Slurm's packages for Debian: Debian's own, and SchedMD's.
fn debian_folders() -> [String; 2] {
    let library = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    ["slurm-wlm", "slurm"].map(|name| format!("{library}/{name}"))
}

/// The plugin folder of SchedMD's packages for Red Hat, and of EPEL's.
const REDHAT_FOLDER: &str = "/usr/lib64/slurm";

pub(crate) fn run(arguments: &PackageArguments) -> Result<()> {
    let names: Vec<&str> = if arguments.series.is_empty() {
        series::names().collect()
    } else {
        arguments.series.iter().map(String::as_str).collect()
    };
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => root().join("target/packages"),
    };
    let builds = names
        .into_iter()
        .map(|name| build_series(name, arguments.debug))
        .collect::<Result<Vec<_>>>()?;
    let version = version::of_tree();
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    let tarball = stage("source", || source::tarball(work.path(), &version))?;
    if arguments.try_out {
        return trial::run(&builds, &tarball, &version);
    }
    if arguments.try_source {
        return trial::run_source(&builds, &tarball, &version, arguments.debug);
    }
    if arguments.try_ansible {
        return trial::run_ansible(&builds, &tarball, &version);
    }
    let mut made = debs(&builds, &tarball, &version, &output)?;
    made.extend(rpms(&builds, &tarball, &version, &output)?);
    for path in made {
        println!("{}", path.display());
    }
    Ok(())
}

/// Builds for a series of Slurm.
fn build_series(name: &str, debug: bool) -> Result<Build> {
    let series = Series::prepare(name)?;
    stage(&format!("build for Slurm {name}"), || {
        if debug {
            series.build_for_packages()?;
            return Ok(Build {
                release: series.slurm()?.release(),
                folder: series.build_folder(),
            });
        }
        build(&series.slurm()?.include())
    })
}

/// Writes the Debian packages of these builds.
fn debs(builds: &[Build], tarball: &Path, version: &str, output: &Path) -> Result<Vec<PathBuf>> {
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    let folders = debian_folders();
    stage("packages for Debian", || {
        let packages = packages(
            builds,
            tarball,
            &folders.each_ref().map(String::as_str),
            output,
        )?;
        let write = |package| deb::write(package, version, work.path(), output);
        packages.iter().map(write).collect()
    })
}

/// Writes the Red Hat packages of these builds.
fn rpms(builds: &[Build], tarball: &Path, version: &str, output: &Path) -> Result<Vec<PathBuf>> {
    stage("packages for Red Hat", || {
        let packages = packages(builds, tarball, &[REDHAT_FOLDER], output)?;
        let write = |package| redhat::write(package, version, output);
        packages.iter().map(write).collect()
    })
}

/// All packages of these builds, whose plugins Slurm finds in `folders`. Creates the output folder.
fn packages(
    builds: &[Build],
    tarball: &Path,
    folders: &[&str],
    output: &Path,
) -> Result<Vec<Package>> {
    let Some(first) = builds.first() else {
        bail!("no series of Slurm is named; write for example `--slurm 24.11`");
    };
    fs::create_dir_all(output).with_context(|| format!("making {} failed", output.display()))?;
    let mut packages = vec![
        contents::common(completions(first)?)?,
        contents::node()?,
        contents::source(tarball)?,
    ];
    for build in builds {
        packages.push(contents::series(build, folders)?);
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

/// The name of the architecture for dpkg and for rpm.
struct Architecture {
    debian: &'static str,
    redhat: &'static str,
}

fn architecture(package: &Package) -> Result<Architecture> {
    let (debian, redhat) = match (package.native, std::env::consts::ARCH) {
        (false, _) => ("all", "noarch"),
        (true, "x86_64") => ("amd64", "x86_64"),
        (true, "aarch64") => ("arm64", "aarch64"),
        (true, other) => bail!("packages for {other} are not known; build on x86_64 or aarch64"),
    };
    Ok(Architecture { debian, redhat })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpufrac_lab::Release;

    use super::*;
    use crate::dist::{PLUGINS, PROGRAMS};

    /// A build with files that are not programs, but name the libraries that they need.
    fn fake(folder: &Path) -> Build {
        let plugins = PLUGINS.map(|(built, _)| built);
        for name in plugins.into_iter().chain(PROGRAMS) {
            let text = format!("{name} GLIBC_2.34 libslurm.so.42 ");
            fs::write(folder.join(name), text).unwrap();
        }
        Build {
            release: Release(0x18_0b_05),
            folder: folder.to_owned(),
        }
    }

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
        files.iter().map(row).collect()
    }

    #[test]
    fn both_kinds_of_packages_have_the_same_files() {
        let place = tempfile::tempdir().unwrap();
        let build = fake(place.path());
        let packages = [
            contents::node().unwrap(),
            contents::series(&build, &["/usr/lib64/slurm"]).unwrap(),
        ];
        for package in &packages {
            let (version, here) = ("0.1.0~dev1", place.path());
            let deb = of_deb(&deb::write(package, version, here, here).unwrap());
            let rpm = of_rpm(&redhat::write(package, version, here).unwrap());
            assert_eq!(deb, rpm);
            let owned = |row: &String| row.contains(" root/root ");
            assert!(deb.iter().all(owned), "{deb:?}");
        }
        let name = format!(
            "gpufrac-plugins-24.11_0.1.0~dev1_{}.deb",
            architecture(&packages[1]).unwrap().debian
        );
        let rows = of_deb(&place.path().join(name));
        let link = "lrwxrwxrwx root/root /usr/lib64/slurm/spank_gpufrac.so -> /usr/lib/gpufrac/spank_gpufrac.so";
        assert!(rows.contains(link), "{rows:?}");
    }

    #[test]
    fn dependencies_of_a_package_are_read_from_its_build() {
        let place = tempfile::tempdir().unwrap();
        let package = contents::series(&fake(place.path()), &[]).unwrap();
        assert_eq!(package.name, "gpufrac-plugins-24.11");
        let slurm = contents::Need::Slurm {
            series: "24.11".into(),
            library: "libslurm.so.42".into(),
        };
        assert_eq!(package.needs, [slurm, contents::Need::Libc("2.34".into())]);
    }
}
