//! Folders that are closed to users where Slurm's `PrivateData` hides their content, and the folders in which a user
//! finds what is the user's own.
//!
//! Files in a closed folder keep their modes: only root reaches them, whichever program wrote them. The modes of the
//! folders are the only note of what is private; every program on the node reads them.
//!
//! | folder | closed with |
//! |---|---|
//! | `<run>/leases`, `<run>/without`, `<run>/reaper/jobs`, `<state>/reaper` | `jobs` |
//! | `<shared>/records`, `<shared>/claims`, `<shared>/nodes` | `jobs` |
//! | `<shared>/usage`; `usage.jsonl` in `<state>` with its older files | `jobs` or `usage` |
//! | `<shared>/status` | `nodes` |
//!
//! A user's own leases, records and usage are copied to `own/UID` in `<run>`, `<state>` and the shared folder. An
//! access list lets that user alone into the folder.

use std::path::{Path, PathBuf};

use gpufrac_core::ids::UserId;
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::{FileError, RootDir};

use super::usage;

/// The folder with a folder for each user.
pub const OWN: &str = "own";
/// A user's folder of records of running jobs.
pub const JOBS: &str = "jobs";
/// A user's folder of kept records.
pub const RECORDS: &str = "records";
/// Root's programs alone.
pub const CLOSED: u32 = 0o700;
/// All users.
pub const OPEN: u32 = 0o755;
/// Users may pass to folders that they know.
const PASSED: u32 = 0o711;

/// The mode of a folder.
pub fn mode(is_private: bool) -> u32 {
    if is_private { CLOSED } else { OPEN }
}

/// Whether jobs of others are hidden on a node; false where the folder of leases does not exist.
pub fn hides_jobs(run: &Path) -> bool {
    is_closed(&run.join("leases"))
}

/// Whether a folder is closed; false where it does not exist.
pub fn is_closed(folder: &Path) -> bool {
    let closed = RootDir::open(folder).and_then(|dir| dir.is_closed());
    closed.unwrap_or(false)
}

/// Opens and closes the folders of a node. `<run>/own` goes when nothing is hidden any more.
/// Errors: a mode cannot be set.
pub fn apply(run: &Path, state: &Path, private: PrivateData) -> Result<(), FileError> {
    for folder in ["leases", "without", "reaper/jobs"] {
        set(run, folder, private.jobs)?;
    }
    set(state, "reaper", private.jobs)?;
    usage_files(state, private.hides_usage())?;
    if !private.jobs
        && !private.nodes
        && let Some(run) = RootDir::find(run)?
    {
        run.remove_all(OWN)?;
    }
    Ok(())
}

/// As [`apply`], for the folder that the nodes share.
/// Errors: the folder cannot be used, as its file system is not mounted.
pub fn apply_shared(shared: &Path, private: PrivateData) -> Result<(), FileError> {
    for folder in ["records", "claims", "nodes"] {
        set(shared, folder, private.jobs)?;
    }
    set(shared, "usage", private.hides_usage())?;
    set(shared, "status", private.nodes)
}

/// Sets the mode of a folder. A missing one is made where it is private, so that it never stands open.
fn set(above: &Path, name: &str, is_private: bool) -> Result<(), FileError> {
    let path = above.join(name);
    let wanted = mode(is_private);
    let dir = match RootDir::open(&path) {
        Err(error) if error.is_not_found() && !is_private => return Ok(()),
        Err(error) if error.is_not_found() => {
            // A file system that is not mounted must not get a folder.
            RootDir::open(above)?;
            open_above(above, name)?;
            RootDir::create(&path, wanted)?.0
        }
        other => other?,
    };
    if dir.mode()? == wanted { Ok(()) } else { dir.set_mode(wanted) }
}

/// Makes the folders between `above` and `above/name`.
fn open_above(above: &Path, name: &str) -> Result<(), FileError> {
    match Path::new(name).parent() {
        Some(between) if between != Path::new("") => {
            RootDir::create(&above.join(between), OPEN).map(drop)
        }
        _ => Ok(()),
    }
}

/// Sets the modes of the node's usage records. A new file gets the mode of the folder ([`RootDir::append`]).
fn usage_files(state: &Path, is_private: bool) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(state)? else {
        return Ok(());
    };
    let (folder, file) = if is_private { (PASSED, 0o600) } else { (OPEN, 0o644) };
    if dir.mode()? != folder {
        dir.set_mode(folder)?;
    }
    // Also those that logrotate made since the last round.
    for name in dir.names()? {
        if name.starts_with(usage::FILE) {
            dir.set_file_mode(&name, file)?;
        }
    }
    Ok(())
}

/// The folder of what is a user's own, in `<run>`, `<state>` or the shared folder.
pub fn own(above: &Path, user: UserId) -> PathBuf {
    above.join(OWN).join(user.to_string())
}

/// Makes the folder `name` in [`own`], or opens it. Its user alone may enter it.
/// Errors: it cannot be made, or the file system keeps no access lists: then root alone can enter it.
pub fn make_own(above: &Path, user: UserId, name: &str) -> Result<RootDir, FileError> {
    RootDir::open(above)?;
    RootDir::create(&above.join(OWN), PASSED)?;
    let path = own(above, user);
    let (dir, made) = RootDir::create(&path, CLOSED)?;
    // The mode of a folder with an access list has the permissions of its users.
    if (made || dir.mode()? & 0o070 == 0) && user.0 != 0 {
        dir.let_list(&[user])?;
    }
    Ok(RootDir::create(&path.join(name), OPEN)?.0)
}

/// The users who have a folder of their own. Errors: the folder cannot be listed.
pub fn users(above: &Path) -> Result<Vec<UserId>, FileError> {
    let Some(dir) = RootDir::find(&above.join(OWN))? else {
        return Ok(Vec::new());
    };
    let users = dir.names()?.into_iter();
    Ok(users
        .filter_map(|name| name.parse().ok().map(UserId))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::node::Node;
    use gpufrac_core::config::Config;

    const HIDDEN: PrivateData = PrivateData {
        jobs: true,
        usage: false,
        nodes: true,
    };

    struct World {
        _keep: tempfile::TempDir,
        root: PathBuf,
        node: Node,
    }

    impl World {
        fn new() -> World {
            let keep = tempfile::tempdir().unwrap();
            let root = keep.path().canonicalize().unwrap();
            let mut node = Node::new(Config::empty(), "gn01");
            node.run = root.join("run");
            node.state = root.join("state");
            node.shared = Some(root.join("shared"));
            for folder in ["run/leases", "state/reaper", "shared"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            World {
                _keep: keep,
                root,
                node,
            }
        }

        fn mode(&self, path: &str) -> Option<u32> {
            let meta = fs::metadata(self.root.join(path)).ok()?;
            Some(meta.permissions().mode() & 0o777)
        }

        fn apply(&self, private: PrivateData) {
            apply(&self.node.run, &self.node.state, private).unwrap();
            apply_shared(&self.root.join("shared"), private).unwrap();
        }
    }

    #[test]
    fn folders_are_closed_and_opened_with_all_that_is_in_them() {
        let world = World::new();
        let record = |name: &str| world.root.join("state").join(name);
        usage::append(&world.node.state, "one\n".to_owned(), None).unwrap();
        assert_eq!(world.mode("state/usage.jsonl"), Some(0o644));
        fs::write(record("usage.jsonl-20261101"), "old").unwrap();
        world.apply(HIDDEN);
        for closed in [
            "run/leases",
            "run/without",
            "run/reaper/jobs",
            "state/reaper",
            "shared/records",
            "shared/claims",
            "shared/nodes",
            "shared/usage",
            "shared/status",
        ] {
            assert_eq!(world.mode(closed), Some(0o700), "{closed}");
        }
        assert!(hides_jobs(&world.node.run));
        assert_eq!(world.mode("run/reaper"), Some(0o755));
        assert_eq!(world.mode("state"), Some(0o711));
        for file in ["state/usage.jsonl", "state/usage.jsonl-20261101"] {
            assert_eq!(world.mode(file), Some(0o600), "{file}");
        }
        // After logrotate an epilog makes a new file.
        fs::remove_file(record("usage.jsonl")).unwrap();
        usage::append(&world.node.state, "two\n".to_owned(), None).unwrap();
        assert_eq!(world.mode("state/usage.jsonl"), Some(0o600));
        make_own(&world.node.run, UserId(1001), "leases").unwrap();
        make_own(&world.node.state, UserId(1001), "records").unwrap();

        world.apply(PrivateData::default());
        for open in ["run/leases", "state/reaper", "shared/usage", "state"] {
            assert_eq!(world.mode(open), Some(0o755), "{open}");
        }
        assert_eq!(world.mode("state/usage.jsonl"), Some(0o644));
        assert!(!hides_jobs(&world.node.run));
        // Leases of a moment ago would be wrong; records stay right.
        assert_eq!(world.mode("run/own"), None);
        assert!(world.mode("state/own/1001/records").is_some());
    }

    #[test]
    fn a_shared_folder_that_is_not_mounted_gets_no_folder() {
        let world = World::new();
        let shared = world.root.join("shared");
        fs::remove_dir(&shared).unwrap();
        assert!(apply_shared(&shared, HIDDEN).is_err());
        assert!(make_own(&shared, UserId(1001), "records").is_err());
        assert!(!shared.exists());
    }

    #[test]
    fn a_user_enters_the_own_folder_alone() {
        test_seed::needs_root();
        let world = World::new();
        let mut above = Some(world.root.as_path());
        while let Some(folder) = above.filter(|folder| folder.starts_with(std::env::temp_dir())) {
            if folder == std::env::temp_dir() {
                break;
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
            above = folder.parent();
        }
        let run = &world.node.run;
        for user in [8, 9] {
            let dir = make_own(run, UserId(user), "leases").unwrap();
            dir.write("7", "a lease", 0o644).unwrap();
        }
        let reads = |user: u32, what: &str| {
            let mut program = std::process::Command::new("sh");
            program.args(["-c", &format!("cd '{}' && {what}", run.display())]);
            std::os::unix::process::CommandExt::uid(&mut program, user);
            std::os::unix::process::CommandExt::gid(&mut program, user);
            program.output().unwrap().status.success()
        };
        assert!(reads(8, "ls own/8/leases && cat own/8/leases/7"));
        assert!(!reads(8, "ls own/9"));
        assert!(!reads(8, "cat own/9/leases/7"));
        assert!(!reads(8, "ls own"));
        assert!(!reads(8, "touch own/8/leases/x"));
        assert_eq!(users(run).unwrap(), [UserId(8), UserId(9)]);
    }
}
