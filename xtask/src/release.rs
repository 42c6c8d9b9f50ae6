//! `cargo xtask release`: follows docs/design/publish.md, whose blocks are the commands of a release.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::stage;
use crate::page::{self, Step};
use crate::version;
use xtask_front::cargo::{root, run as run_command};

/// The page, relative to the root.
const PAGE: &str = "docs/design/publish.md";

/// The host in the prompt of a command that others see: tags, pushes, uploads.
const OUTSIDE: &str = "publish";

#[derive(clap::Args)]
pub(crate) struct ReleaseArguments {
    /// Run everything except what others would see, and say what is missing for a release
    #[arg(long)]
    dry_run: bool,
    /// Only the commands below this heading of the page, and further ones
    #[arg(long = "section", value_name = "HEADING")]
    sections: Vec<String>,
}

pub(crate) fn run(arguments: &ReleaseArguments) -> Result<()> {
    let text =
        fs::read_to_string(root().join(PAGE)).with_context(|| format!("reading {PAGE} failed"))?;
    let steps = page::steps(&text).with_context(|| format!("reading {PAGE} failed"))?;
    for wanted in &arguments.sections {
        if !steps.iter().any(|step| step.section == *wanted) {
            let mut known: Vec<_> = steps.iter().map(|step| step.section.as_str()).collect();
            known.dedup();
            bail!(
                "{PAGE} has no section `{wanted}`; write one of: {}",
                known.join(", ")
            );
        }
    }
    let changelog =
        fs::read_to_string(root().join("CHANGELOG.md")).context("reading CHANGELOG.md failed")?;
    let newest = newest(&changelog)
        .context("CHANGELOG.md has no section with a heading such as `## [0.1.0] - 2026-12-01`")?;
    let missing = missing(&newest);
    if !missing.is_empty() && !arguments.dry_run {
        bail!(
            "releasing {} failed: {}; mend this first",
            version::RELEASE,
            missing.join("; ")
        );
    }
    let folder = root().join("target/release-files");
    fs::create_dir_all(&folder).with_context(|| format!("making {} failed", folder.display()))?;
    let notes = folder.join("notes.md");
    fs::write(&notes, newest.notes)
        .with_context(|| format!("writing {} failed", notes.display()))?;
    for step in &steps {
        let is_wanted = arguments.sections.is_empty() || arguments.sections.contains(&step.section);
        if !is_wanted {
            println!("== not asked for: {}", step.command);
        } else if step.place.host == OUTSIDE && arguments.dry_run {
            println!("== not in a dry run: {}", step.command);
        } else {
            stage(&step.command, || follow(step, &folder))?;
        }
    }
    for missing in missing {
        println!("missing for a release: {missing}");
    }
    Ok(())
}

/// Runs a command of the page in the root, with the variables VERSION and RELEASE, the folder of its files.
fn follow(step: &Step, folder: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command
        .args(["-e", "-c", &step.command])
        .current_dir(root())
        .env("VERSION", version::RELEASE)
        .env("RELEASE", folder);
    run_command(&mut command)
}

/// What keeps this tree from being a release.
fn missing(newest: &Section<'_>) -> Vec<String> {
    let version = version::RELEASE;
    let mut missing = Vec::new();
    if newest.version != version {
        let found = newest.version;
        missing.push(format!(
            "CHANGELOG.md begins with {found}, and Cargo.toml has {version}"
        ));
    }
    if newest.day.parse::<jiff::civil::Date>().is_err() {
        let day = newest.day;
        missing.push(format!(
            "CHANGELOG.md has `{day}` in place of the day of the release"
        ));
    }
    if version::is_changed() {
        missing.push("files differ from the last commit".to_owned());
    }
    if version::is_tagged_elsewhere() {
        missing.push(format!("v{version} is the tag of another commit"));
    }
    missing
}

/// A section of a changelog.
#[derive(Debug, PartialEq, Eq)]
struct Section<'a> {
    version: &'a str,
    day: &'a str,
    /// What stands below the heading.
    notes: &'a str,
}

/// The newest section.
fn newest(changelog: &str) -> Option<Section<'_>> {
    let section = changelog.split("\n## ").nth(1)?;
    let (heading, notes) = section.split_once('\n')?;
    let (version, day) = heading.strip_prefix('[')?.split_once("] - ")?;
    Some(Section {
        version,
        day,
        notes: notes.trim_start(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## [0.2.0] - 2026-12-01\n\nOne.\n### Added\n- Two.\n## [0.1.0] - 2026-11-01\nOld.\n";

    #[test]
    fn notes_are_the_newest_section_of_the_changelog() {
        let section = Section {
            version: "0.2.0",
            day: "2026-12-01",
            notes: "One.\n### Added\n- Two.",
        };
        assert_eq!(newest(CHANGELOG), Some(section));
        assert_eq!(newest("# Changelog\n"), None);
    }

    #[test]
    fn a_dry_run_of_the_page_shows_others_nothing() -> Result<()> {
        let steps = page::steps(&fs::read_to_string(root().join(PAGE))?)?;
        let commands = |outside: bool| {
            let steps = steps.iter();
            let chosen = steps.filter(move |step| (step.place.host == OUTSIDE) == outside);
            chosen.map(|step| step.command.as_str()).collect::<Vec<_>>()
        };
        let inside = commands(false);
        let is_allowed = |command: &&str| {
            ["cargo xtask ", "cd \"$RELEASE\" ", "rm -f -- \"$RELEASE\"/"]
                .iter()
                .any(|start| command.starts_with(start))
        };
        assert!(inside.iter().all(is_allowed), "{inside:?}");
        let outside = commands(true);
        for word in ["git tag", "git push", "gh release"] {
            assert!(
                outside.iter().any(|command| command.starts_with(word)),
                "{outside:?}"
            );
        }
        // Nothing is published before the packages were tried.
        let last = steps.last().context("a step")?;
        assert_eq!(last.section, "Publish");
        Ok(())
    }
}
