//! The last configuration without a mistake, of each node of this machine. Prolog, epilog and steps use it while the
//! file is missing, incomplete, wrong, or writable for a user other than root.
//!
//! The folder ([`LAST_GOOD`]) belongs to root and is fixed, because the configuration names all other folders. It
//! survives a reboot: node-setup uses the copy, too.
//!
//! [`LAST_GOOD`]: gpufrac_core::config::LAST_GOOD

use std::path::Path;

use gpufrac_core::config::last_good_name;
use gpufrac_host::files::{FileError, RootDir};

/// Keeps a copy of the text of `config`; an identical copy is not written again. Errors: a file cannot be used.
pub fn keep(folder: &Path, config: &Path, node: &str, text: &str) -> Result<(), FileError> {
    if let Some(above) = folder.parent() {
        // Usage records are below it; all users can read them.
        RootDir::create(above, 0o755)?;
    }
    let (dir, _) = RootDir::create(folder, 0o700)?;
    let name = name(config, node);
    if dir.read(&name)?.as_deref() == Some(text) {
        return Ok(());
    }
    // Prologs of several jobs may do so at the same time.
    let temporary = format!(".{name}.{}.tmp", std::process::id());
    dir.write_through(&temporary, &name, text, 0o600)
}

/// The copy of the text of `config`; None if there is none. Errors: a file cannot be used.
pub fn read(folder: &Path, config: &Path, node: &str) -> Result<Option<String>, FileError> {
    let Some(dir) = RootDir::find(folder)? else {
        return Ok(None);
    };
    dir.read(&name(config, node))
}

/// Removes the copy, if there is one. Errors: a file cannot be used.
pub fn forget(folder: &Path, config: &Path, node: &str) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(folder)? else {
        return Ok(());
    };
    dir.remove(&name(config, node)).map(drop)
}

fn name(config: &Path, node: &str) -> String {
    last_good_name(node, &config.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::node::{Complaint, Node, NodeError};

    const GOOD: &str = r#"version = 1
[pool.p]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "n1"
"#;

    /// Words of the complaint, and the fault in the file.
    type Spoilt = (&'static str, fn(&ConfigFolder));

    struct ConfigFolder {
        _keep: tempfile::TempDir,
        config: std::path::PathBuf,
        copies: std::path::PathBuf,
    }

    fn place() -> ConfigFolder {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        ConfigFolder {
            config: root.join("gpufrac.toml"),
            copies: root.join("run/last-good"),
            _keep: keep,
        }
    }

    impl ConfigFolder {
        fn write(&self, text: &str) {
            fs::write(&self.config, text).unwrap();
            fs::set_permissions(&self.config, fs::Permissions::from_mode(0o644)).unwrap();
        }

        /// The pools of the node, and the complaint.
        fn serve(&self) -> Result<(Vec<String>, String), NodeError> {
            let served = Node::load_to_serve(&self.config, "n1", &self.copies)?;
            if let Some(text) = &served.text {
                keep(&self.copies, &self.config, "n1", text).unwrap();
            }
            let pools = served.node.config.pools.iter();
            let complaint = served.complaint;
            assert_eq!(
                served.text.is_none(),
                matches!(complaint, Some(Complaint::LastGood(_)))
            );
            let said = complaint.map_or(String::new(), |complaint| complaint.to_string());
            Ok((pools.map(|pool| pool.name.clone()).collect(), said))
        }
    }

    #[test]
    fn a_mistake_of_the_reaper_alone_makes_no_difference() {
        let place = place();
        place.write(&format!("{GOOD}[reaper]\nmoed = \"on\"\n"));
        let (pools, said) = place.serve().unwrap();
        assert_eq!(pools, ["p"]);
        assert!(
            said.contains("gpufrac.toml:9: reaper.moed: unknown key"),
            "{said}"
        );
        assert!(said.contains("run `gpufrac check --file-only`"), "{said}");
        // The file is the valid copy, so changes of its pools count.
        assert!(Node::load(&place.config, "n1").is_err());
        place.write("");
        assert_eq!(place.serve().unwrap().0, ["p"]);
    }

    #[test]
    fn a_file_that_cannot_be_used_leaves_the_last_good_one_in_force() {
        let broken: [Spoilt; 8] = [
            ("does not exist", |place| {
                fs::remove_file(&place.config).unwrap();
            }),
            ("version: missing", |place| place.write("")),
            ("pool.p.layuot: unknown key", |place| {
                place.write(&GOOD.replace("layout", "layuot"));
            }),
            // Half of the text.
            ("gpufrac.toml:6: ", |place| {
                place.write(&GOOD[..GOOD.len() - 30])
            }),
            ("version 2 is unknown", |place| {
                place.write(&GOOD.replace("version = 1", "version = 2"));
            }),
            ("only root may be able to change it", |place| {
                place.write(&GOOD.replace("pool.p", "pool.q"));
                fs::set_permissions(&place.config, fs::Permissions::from_mode(0o666)).unwrap();
            }),
            ("is a symbolic link", |place| {
                fs::remove_file(&place.config).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", &place.config).unwrap();
            }),
            ("is not a plain file", |place| {
                fs::remove_file(&place.config).unwrap();
                fs::create_dir(&place.config).unwrap();
            }),
        ];
        for (words, spoil) in broken {
            let without = place();
            without.write(GOOD);
            spoil(&without);
            let said = without.serve().unwrap_err().to_string();
            assert!(said.contains(words), "{words}: {said}");

            let place = place();
            place.write(GOOD);
            assert_eq!(place.serve().unwrap(), (vec!["p".into()], String::new()));
            spoil(&place);
            let (pools, said) = place.serve().unwrap();
            assert_eq!(pools, ["p"], "{words}");
            assert!(said.contains(words), "{words}: {said}");
            assert!(said.contains("last good configuration"), "{said}");
        }
    }

    #[test]
    fn the_copy_is_of_this_file_and_node_and_roots_alone() {
        let place = place();
        place.write(GOOD);
        place.serve().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&place.copies), 0o700);
        assert_eq!(mode(place.copies.parent().unwrap()), 0o755);
        let copy = place.copies.join(name(&place.config, "n1"));
        assert_eq!(mode(&copy), 0o600);
        let of = |config: &Path, node| read(&place.copies, config, node).unwrap();
        assert_eq!(of(&place.config, "n1").as_deref(), Some(GOOD));
        assert_eq!(of(&place.config, "n2"), None);
        assert_eq!(of(Path::new("/etc/gpufrac/gpufrac.toml"), "n1"), None);
        // A copy that others can change is not used.
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o666)).unwrap();
        fs::remove_file(&place.config).unwrap();
        assert!(place.serve().is_err());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(place.serve().is_ok());
        forget(&place.copies, &place.config, "n1").unwrap();
        assert!(place.serve().is_err());
    }
}
