//! `cargo xtask setup --hook`: installs a hook by which git refuses commits whose subject is too long.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask_front::cargo::root;

/// git calls the hook with the file of the message.
const HOOK: &str = r#"#!/bin/sh
# gpufrac: checks the subject of a commit (CONTRIBUTING.md, Language).
subject=$(sed -n '/^[^#]/{p;q}' "$1")
if [ "${#subject}" -gt 72 ]; then
    echo "commit failed: the subject has ${#subject} characters; write at most 72" >&2
    exit 1
fi
case $subject in
*.) echo "commit failed: the subject ends with a point; leave the point out" >&2; exit 1 ;;
esac
"#;

/// Installs the hook in the repository.
pub(crate) fn install() -> Result<()> {
    let git = Command::new("git")
        .args(["rev-parse", "--git-path", "hooks/commit-msg"])
        .current_dir(root())
        .output()
        .context("starting git failed; install git")?;
    if !git.status.success() {
        bail!("installing the hook failed: this is no git checkout; clone the repository with git");
    }
    let path = PathBuf::from(String::from_utf8_lossy(&git.stdout).trim());
    write(&root().join(path))
}

/// Writes the hook, unless the file belongs to another hook.
fn write(path: &Path) -> Result<()> {
    let found = fs::read_to_string(path).unwrap_or_default();
    if !found.is_empty() && !found.contains("# gpufrac:") {
        let path = path.display();
        bail!(
            "installing the hook failed: {path} is another hook; move it away, or call it from there"
        );
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, HOOK).with_context(|| format!("writing {} failed", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    println!("git checks the subjects of commits by {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_are_refused_and_foreign_hooks_kept() {
        let folder = tempfile::tempdir().unwrap();
        let hook = folder.path().join("hooks/commit-msg");
        write(&hook).unwrap();
        let message = folder.path().join("message");
        let takes = |text: &str| {
            fs::write(&message, text).unwrap();
            let status = Command::new(&hook).arg(&message).status();
            status.unwrap().success()
        };
        assert!(takes(&format!("{}\n\nbody\n", "x".repeat(72))));
        assert!(takes("# a comment\nAdd a hook\n"));
        assert!(!takes(&"x".repeat(73)));
        assert!(!takes("Add a hook."));
        write(&hook).unwrap();
        fs::write(&hook, "#!/bin/sh\nexit 0\n").unwrap();
        assert!(write(&hook).is_err());
        assert_eq!(fs::read_to_string(&hook).unwrap(), "#!/bin/sh\nexit 0\n");
    }
}
