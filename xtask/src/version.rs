//! The version of this tree, for `--version` and for packages.

use std::process::Command;

use xtask_front::cargo::root;

/// The version in Cargo.toml.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// `0.1.0` if this commit is the release, otherwise `0.1.0~dev512.gd9538f4`, which dpkg and rpm sort before the
/// release and after each earlier commit. With `+changed` if files differ from the commit.
pub(crate) fn of_tree() -> String {
    let Some(commit) = git(&["rev-parse", "--short=7", "HEAD"]) else {
        return RELEASE.to_owned();
    };
    let count = git(&["rev-list", "--count", "HEAD"]).unwrap_or_default();
    name(
        has_tag(&["--points-at", "HEAD"]),
        &count,
        &commit,
        is_changed(),
    )
}

/// Whether files of git differ from the commit.
pub(crate) fn is_changed() -> bool {
    git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty())
}

/// Whether the tag of this release is that of another commit.
pub(crate) fn is_tagged_elsewhere() -> bool {
    has_tag(&[]) && !has_tag(&["--points-at", "HEAD"])
}

/// Whether the tag of this release is among those that `git tag` lists with these options.
fn has_tag(options: &[&str]) -> bool {
    let tag = format!("v{RELEASE}");
    git(&[&["tag"], options].concat()).is_some_and(|tags| tags.lines().any(|line| line == tag))
}

fn name(is_release: bool, count: &str, commit: &str, changed: bool) -> String {
    let changed = if changed { "+changed" } else { "" };
    if is_release {
        format!("{RELEASE}{changed}")
    } else {
        format!("{RELEASE}~dev{count}.g{commit}{changed}")
    }
}

/// The output of git; None if the tree is not a clone.
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
