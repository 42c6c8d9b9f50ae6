//! `cargo xtask package --try`: runs the commands of docs/admin word by word on small clusters of clean Debian.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::ansible;
use super::build::Build;
use super::site::{HOSTS, Site};
use super::write::debs;
use crate::cargo::stage;
use crate::dist::{PLUGINS, PROGRAMS};
use crate::page::{self, Place, Step};
use lab_tasks::series::Series;
use xtask_front::cargo::{cargo, root, run as run_command};
use xtask_front::setup;

/// The pages, in the order in which an admin needs them.
const PAGES: [&str; 5] = [
    "install.md",
    "going-live.md",
    "change.md",
    "troubleshooting.md",
    "upgrade.md",
];
/// The page for hosts that build for their own Slurm.
const BUILD_PAGES: [&str; 1] = ["other-series.md"];
const BUILDER: &str = "ctl";
/// A profile that replaces that of a release, for quicker builds.
const QUICK: &str = "
mkdir -p /root/.cargo
cat >/root/.cargo/config.toml <<'END'
[profile.release]
lto = \"off\"
opt-level = 0
codegen-units = 16
END";
/// The folder of Rust on this host.
const RUST: &str = "/opt/rust";

/// Tries the packages of these builds on clusters of their series, and prints a table.
pub(super) fn run(builds: &[Build], tarball: &Path, version: &str) -> Result<()> {
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    let newer_builds = newer(builds, work.path())?;
    let newer = debs(
        &newer_builds,
        tarball,
        &format!("{version}.1"),
        &work.path().join("newer"),
    )?;
    on_each(builds, tarball, version, "Slurm", |series, made| {
        let debian = Series::debian(series)?;
        let site = Site::start(
            &debian,
            &of_series(made, series),
            &of_series(&newer, series),
        )?;
        Ok(follow_pages(&site, &PAGES))
    })
}

/// Does something with the packages of these builds for each series, and prints what became of it.
fn on_each(
    builds: &[Build],
    tarball: &Path,
    version: &str,
    what: &str,
    follow: impl Fn(&str, &[PathBuf]) -> Result<Vec<Outcome>>,
) -> Result<()> {
    setup::run(setup::ALL)?;
    run_command(
        cargo(&["build", "--quiet", "--profile", "test", "--lib", "--bins"])
            .args(["-p", "gpusim", "-p", "nvml-sim"]),
    )?;
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    let made = debs(builds, tarball, version, &work.path().join("packages"))?;
    let mut rows = Vec::new();
    for build in builds {
        let series = build.release.series();
        let row = stage(&format!("{what} {series}"), || follow(&series, &made))?;
        rows.push((series, row));
    }
    table(&rows)
}

/// Tries the package of the source on a host with a compiler and without a network.
///
/// `debug`: without optimisations, whose build is slow.
pub(super) fn run_source(
    builds: &[Build],
    tarball: &Path,
    version: &str,
    debug: bool,
) -> Result<()> {
    let rust = captured("rustc", &["--print", "sysroot"])?;
    let what = "build on a host with Slurm";
    on_each(builds, tarball, version, what, |series, made| {
        let debian = Series::debian_to_build_in(series)?;
        let mut site = Site::start(&debian, &of_source(made), &[])?;
        site.let_build();
        site.show(BUILDER, Path::new(rust.trim()), RUST)?;
        let place = Place {
            user: None,
            host: BUILDER.to_owned(),
        };
        let mut commands = format!("ln -s {RUST}/bin/* /usr/local/bin/");
        if debug {
            commands += QUICK;
        }
        let said = site.run(&place, BUILDER, &commands)?;
        if !said.success {
            bail!("showing Rust to {BUILDER} failed:\n{}", said.text);
        }
        Ok(follow_pages(&site, &BUILD_PAGES))
    })
}

/// Tries the role of contrib/ansible.
pub(super) fn run_ansible(builds: &[Build], tarball: &Path, version: &str) -> Result<()> {
    on_each(
        builds,
        tarball,
        version,
        "Ansible on Slurm",
        |series, made| {
            let debian = Series::debian_to_build_in(series)?;
            let site = Site::start(&debian, &of_series(made, series), &[])?;
            let failure = ansible::follow(&site).err();
            Ok(vec![(
                "contrib/ansible".to_owned(),
                failure.map(|error| format!("{error:#}")),
            )])
        },
    )
}

/// The output of a program.
fn captured(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {program} failed"))?;
    if !output.status.success() {
        bail!("`{program} {}` failed", arguments.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The same builds with further bytes at the end, which no program reads: a newer version with different files.
fn newer(builds: &[Build], work: &Path) -> Result<Vec<Build>> {
    let copy = |build: &Build| {
        let folder = work.join("newer-build").join(build.release.to_string());
        fs::create_dir_all(&folder)?;
        for name in PLUGINS.map(|(built, _)| built).into_iter().chain(PROGRAMS) {
            let mut bytes = fs::read(build.folder.join(name))?;
            bytes.extend(b"newer");
            let path = folder.join(name);
            fs::write(&path, bytes)?;
            fs::set_permissions(&path, fs::metadata(build.folder.join(name))?.permissions())?;
        }
        Ok(Build {
            release: build.release,
            processor: build.processor,
            folder,
        })
    };
    builds.iter().map(copy).collect()
}

/// The packages of one series, and those for all series.
fn of_series(debs: &[PathBuf], series: &str) -> Vec<PathBuf> {
    let is_wanted = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let other = name.strip_prefix("gpufrac-plugins-");
        other.is_none_or(|rest| rest.starts_with(&format!("{series}_")))
    };
    debs.iter().filter(is_wanted).cloned().collect()
}

/// The package of the command, and that of the source.
fn of_source(debs: &[PathBuf]) -> Vec<PathBuf> {
    let is_wanted = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("gpufrac_") || name.starts_with("gpufrac-plugins-source_")
    };
    debs.iter().filter(is_wanted).cloned().collect()
}

/// A section of a page, and its failure if there was one.
type Outcome = (String, Option<String>);

/// Runs the pages until a step fails.
fn follow_pages(site: &Site, pages: &[&str]) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut settings = BTreeMap::new();
    for name in pages {
        let path = root().join("docs/admin").join(name);
        let steps = fs::read_to_string(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| page::steps(&text));
        let steps = match steps {
            Ok(steps) => steps,
            Err(error) => {
                outcomes.push((
                    (*name).to_owned(),
                    Some(format!("{}: {error}", path.display())),
                ));
                return outcomes;
            }
        };
        for step in steps {
            if outcomes
                .last()
                .is_none_or(|(section, _)| *section != step.section)
            {
                outcomes.push((step.section.clone(), None));
            }
            if let Err(error) = follow(site, &step, &mut settings) {
                if let Some((_, failure)) = outcomes.last_mut() {
                    *failure = Some(format!("{name}: {error:#}\n{}", site.logs()));
                }
                return outcomes;
            }
        }
    }
    outcomes
}

/// Runs one step on its hosts. Variables that a page sets on a host are also set for later commands there, as in a
/// shell.
fn follow(site: &Site, step: &Step, settings: &mut BTreeMap<String, String>) -> Result<()> {
    let hosts: Vec<&str> = match step.place.host.as_str() {
        "all" => HOSTS.to_vec(),
        host => vec![host],
    };
    for host in hosts {
        let before = settings.entry(host.to_owned()).or_default();
        let said = site.run(&step.place, host, &format!("{before}{}", step.command))?;
        let first = step.command.lines().next().unwrap_or_default();
        if !said.success {
            bail!("`{first}` on {host} failed:\n{}", said.text);
        }
        if !page::is_printed(&step.printed, &said.text) {
            bail!(
                "`{first}` on {host} prints something else than the page says:\n{}",
                said.text
            );
        }
        if is_setting(&step.command) {
            before.push_str(&step.command);
            before.push('\n');
        }
    }
    Ok(())
}

/// Whether a command is `name=...`.
fn is_setting(command: &str) -> bool {
    let name = command.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase())
}

/// Prints the outcome of each section on each series.
fn table(rows: &[(String, Vec<Outcome>)]) -> Result<()> {
    println!();
    let mut failed = 0;
    for (series, outcomes) in rows {
        for (section, failure) in outcomes {
            let word = if failure.is_some() { "FAILED" } else { "ok" };
            println!("Slurm {series:<6} {word:<7} {section}");
        }
    }
    for (series, outcomes) in rows {
        for (section, failure) in outcomes {
            if let Some(text) = failure {
                failed += 1;
                println!("\nSlurm {series}, {section}:\n{text}");
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} series failed", rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_tasks::series::Several;

    #[test]
    fn the_pages_have_commands_and_name_known_hosts() {
        for name in PAGES.into_iter().chain(BUILD_PAGES) {
            let text = fs::read_to_string(root().join("docs/admin").join(name)).unwrap();
            for step in page::steps(&text).unwrap() {
                let host = step.place.host.as_str();
                assert!(host == "all" || HOSTS.contains(&host), "{name}: {step:?}");
            }
        }
    }

    /// Promise (admins): packages: install, upgrade and downgrade with running jobs, removal that leaves a Slurm that
    /// starts, and a refusal to go while Slurm's files name the plugins; pages of docs/admin, word by word on clean
    /// Debian 12, 13 and forky.
    #[test]
    #[ignore = "builds for each series and starts clusters: ten minutes"]
    fn the_pages_for_admins_hold_on_all_series() {
        crate::package::run(&crate::package::PackageArguments {
            slurm: Several::default(),
            processors: Vec::new(),
            output: None,
            try_out: true,
            try_source: false,
            try_ansible: false,
            debug: true,
        })
        .unwrap();
    }

    #[test]
    #[ignore = "builds for each series, and once more on a host of it: half an hour"]
    fn the_source_builds_on_hosts_of_all_series() {
        crate::package::run(&crate::package::PackageArguments {
            slurm: Several::default(),
            processors: Vec::new(),
            output: None,
            try_out: false,
            try_source: true,
            try_ansible: false,
            debug: true,
        })
        .unwrap();
    }

    /// Promise (admins): the role of contrib/ansible: check mode changes nothing, a second run neither, a mistake ends
    /// it on the first host, a run after one without an end restarts slurmctld, a change of layout waits for jobs.
    /// With `ansible_reads_the_playbook_and_its_role`.
    #[test]
    #[ignore = "builds for each series and starts clusters: ten minutes"]
    fn the_role_for_ansible_holds_on_all_series() {
        crate::package::run(&crate::package::PackageArguments {
            slurm: Several::default(),
            processors: Vec::new(),
            output: None,
            try_out: false,
            try_source: false,
            try_ansible: true,
            debug: true,
        })
        .unwrap();
    }

    #[test]
    fn a_variable_is_set_by_a_command_that_is_nothing_else() {
        assert!(is_setting("series=$(sinfo -V)"));
        assert!(!is_setting("scontrol update NodeName=gn01"));
        assert!(!is_setting("[ a = b ]"));
    }
}
