//! The version of this tree: what programs say to `--version`, and what packages are called.

use std::process::Command;

use crate::cargo::root;

/// That of Cargo.toml.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// `0.1.0` where this commit is the release, else `0.1.0~dev512.gd9538f4`: before the release for dpkg and rpm, after each
/// earlier commit. `+changed` where files differ from the commit.
pub(crate) fn of_tree() -> String {
    let Some(commit) = git(&["rev-parse", "--short=7", "HEAD"]) else {
        return RELEASE.to_owned();
    };
    let tag = format!("v{RELEASE}");
    let is_release = git(&["tag", "--points-at", "HEAD"])
        .is_some_and(|tags| tags.lines().any(|line| line == tag));
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|files| !files.is_empty());
    let count = git(&["rev-list", "--count", "HEAD"]).unwrap_or_default();
    name(is_release, &count, &commit, changed)
}

fn name(is_release: bool, count: &str, commit: &str, changed: bool) -> String {
    let changed = if changed { "+changed" } else { "" };
    match is_release {
        true => format!("{RELEASE}{changed}"),
        false => format!("{RELEASE}~dev{count}.g{commit}{changed}"),
    }
}

/// What git says; None where the tree is no clone.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(root())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_commit_until_the_release() {
        assert_eq!(name(true, "9", "abcdef0", false), RELEASE);
        let before = format!("{RELEASE}~dev9.gabcdef0");
        assert_eq!(name(false, "9", "abcdef0", false), before);
        assert_eq!(
            name(false, "9", "abcdef0", true),
            format!("{before}+changed")
        );
    }
}
