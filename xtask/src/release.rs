//! `cargo xtask release`: follows docs/design/publish.md, whose blocks are the commands of a release.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{root, stage};
use crate::page::{self, Step};
use crate::version;

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
    let missing = missing()?;
    if !missing.is_empty() && !arguments.dry_run {
        bail!(
            "releasing {} failed: {}; mend this first",
            version::RELEASE,
            missing.join("; ")
        );
    }
    let folder = notes()?;
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
fn follow(step: &Step, folder: &PathBuf) -> Result<()> {
    let status = Command::new("sh")
        .args(["-e", "-c", &step.command])
        .current_dir(root())
        .env("VERSION", version::RELEASE)
        .env("RELEASE", folder)
        .status()
        .context("starting sh failed")?;
    if !status.success() {
        bail!("`{}` failed ({status})", step.command);
    }
    Ok(())
}

/// What keeps this tree from being a release.
fn missing() -> Result<Vec<String>> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let mut missing = Vec::new();
    match heading(&changelog) {
        Some((version, _)) if version != version::RELEASE => missing.push(format!(
            "CHANGELOG.md begins with {version}, and Cargo.toml has {}",
            version::RELEASE
        )),
        Some((_, date)) if date.parse::<jiff::civil::Date>().is_err() => missing.push(format!(
            "CHANGELOG.md has `{date}` in place of the day of the release"
        )),
        Some(_) => {}
        None => {
            missing.push("CHANGELOG.md has no heading such as `## [0.1.0] - 2026-12-01`".to_owned())
        }
    }
    if version::is_changed() {
        missing.push("files differ from the last commit".to_owned());
    }
    if version::is_tagged_elsewhere() {
        missing.push(format!(
            "v{} is the tag of another commit",
            version::RELEASE
        ));
    }
    Ok(missing)
}

/// The version and the day of the newest section of a changelog.
fn heading(changelog: &str) -> Option<(&str, &str)> {
    let mut lines = changelog.lines();
    let line = lines.find_map(|line| line.strip_prefix("## ["))?;
    line.split_once("] - ")
}

/// Makes the folder of a release's files, with its notes; returns the folder.
fn notes() -> Result<PathBuf> {
    let folder = root().join("target/release-files");
    fs::create_dir_all(&folder).with_context(|| format!("making {} failed", folder.display()))?;
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let path = folder.join("notes.md");
    fs::write(&path, newest(&changelog))
        .with_context(|| format!("writing {} failed", path.display()))?;
    Ok(folder)
}

/// The newest section of a changelog, without its heading.
fn newest(changelog: &str) -> String {
    let sections = changelog
        .lines()
        .skip_while(|line| !line.starts_with("## "));
    let section = sections.skip(1).take_while(|line| !line.starts_with("## "));
    let mut text = String::new();
    for line in section.skip_while(|line| line.is_empty()) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## [0.2.0] - 2026-12-01\n\nOne.\n### Added\n- Two.\n## [0.1.0] - 2026-11-01\nOld.\n";

    #[test]
    fn notes_are_the_newest_section_of_the_changelog() {
        assert_eq!(heading(CHANGELOG), Some(("0.2.0", "2026-12-01")));
        assert_eq!(newest(CHANGELOG), "One.\n### Added\n- Two.\n");
        assert_eq!(heading("# Changelog\n"), None);
        assert_eq!(newest("# Changelog\n"), "");
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
