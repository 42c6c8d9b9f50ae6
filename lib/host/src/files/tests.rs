//! Files in folders with right and with wrong permissions.

use gpufrac_core::ids::UserId;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn folder() -> (tempfile::TempDir, RootDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let root = RootDir::open(&path).unwrap();
    (dir, root)
}

#[test]
fn a_file_is_written_whole_and_read_back() {
    let (_keep, dir) = folder();
    assert_eq!(dir.read("a").unwrap(), None);
    dir.write("a", "one", 0o644).unwrap();
    dir.write("a", "two", 0o644).unwrap();
    assert_eq!(dir.read("a").unwrap().as_deref(), Some("two"));
    assert_eq!(dir.names().unwrap(), ["a"]);
    assert!(dir.remove("a").unwrap());
    assert!(!dir.remove("a").unwrap());
}

#[test]
fn a_leftover_of_a_killed_writer_does_not_stop_the_next() {
    let (_keep, dir) = folder();
    std::fs::write(dir.path().join(".a.tmp"), "half").unwrap();
    dir.write("a", "whole", 0o644).unwrap();
    assert_eq!(dir.names().unwrap(), ["a"]);
}

/// Promise (isolation): root follows no link, and uses no folder that others can write.
/// With `a_directory_that_others_can_write_is_refused`, `a_lease_that_is_a_link_is_not_read`.
#[test]
fn links_are_not_followed() {
    let (_keep, dir) = folder();
    let real = dir.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::fs::write(real.join("f"), "x").unwrap();
    symlink(&real, dir.path().join("link")).unwrap();
    symlink(real.join("f"), dir.path().join("file_link")).unwrap();
    assert!(matches!(
        RootDir::open(&dir.path().join("link")),
        Err(FileError::Link { .. })
    ));
    assert!(matches!(
        RootDir::create(&dir.path().join("link/below"), 0o755),
        Err(FileError::Link { .. })
    ));
    assert!(matches!(dir.read("file_link"), Err(FileError::Link { .. })));
    // A write replaces the link itself, never its target.
    dir.write("file_link", "new", 0o644).unwrap();
    assert_eq!(std::fs::read_to_string(real.join("f")).unwrap(), "x");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let (_keep, dir) = folder();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(
        RootDir::open(&open),
        Err(FileError::Untrusted { mode: 0o777, .. })
    ));
    assert!(matches!(
        RootDir::create(&open.join("below"), 0o755),
        Err(FileError::Untrusted { .. })
    ));
    // The sticky bit is enough for a directory on the way, not for the last one.
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o1777)).unwrap();
    RootDir::create(&open.join("below"), 0o755).unwrap();
    assert!(RootDir::open(&open).is_err());
}

#[test]
fn somebody_elses_directory_and_file_are_refused() {
    test_seed::needs_root();
    let (_keep, dir) = folder();
    std::fs::create_dir(dir.path().join("theirs")).unwrap();
    std::os::unix::fs::chown(dir.path().join("theirs"), Some(1000), None).unwrap();
    assert!(matches!(
        RootDir::create(&dir.path().join("theirs/ours"), 0o755),
        Err(FileError::Untrusted { owner: 1000, .. })
    ));
    dir.write("f", "x", 0o644).unwrap();
    std::os::unix::fs::chown(dir.path().join("f"), Some(1000), None).unwrap();
    assert!(matches!(
        dir.read("f"),
        Err(FileError::Untrusted { owner: 1000, .. })
    ));
}

#[test]
fn a_lock_lies_where_nobody_else_can_open_it() {
    let (_keep, dir) = folder();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for open in [0o755, 0o711, 0o750, 0o701, 0o704] {
        let path = dir.path().join(format!("{open:o}"));
        let (open_dir, _) = RootDir::create(&path, open).unwrap();
        assert!(
            matches!(open_dir.lock_file("lock"), Err(FileError::NotPrivate { mode, .. }) if mode == open)
        );
        assert!(open_dir.names().unwrap().is_empty());
    }
    let (private, _) = RootDir::create(&dir.path().join("locks"), 0o700).unwrap();
    private.lock_file("lock").unwrap();
    assert_eq!(mode(&private.path().join("lock")), 0o600);
    private.lock_file("lock").unwrap();
}

#[test]
fn relative_paths_and_dots_are_refused() {
    for path in ["run", "/tmp/../etc", ""] {
        assert!(matches!(
            RootDir::open(Path::new(path)),
            Err(FileError::Relative { .. })
        ));
    }
}

#[test]
fn a_device_node_is_made_kept_replaced_and_never_made_over_a_file() {
    test_seed::needs_root();
    let (_keep, dir) = folder();
    let (one, two) = (
        DeviceNumber {
            major: 60,
            minor: 1,
        },
        DeviceNumber {
            major: 60,
            minor: 2,
        },
    );
    let ensure = |number, uid| dir.ensure_device("d", number, uid, 0o400);
    assert_eq!(ensure(one, UserId::ROOT).unwrap(), Made::Created);
    assert_eq!(ensure(one, UserId(1000)).unwrap(), Made::Kept);
    let meta = std::fs::metadata(dir.path().join("d")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o400);
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), 1000);
    assert_eq!(ensure(two, UserId::ROOT).unwrap(), Made::Replaced);
    assert_eq!(dir.device("d").unwrap(), Some(two));
    std::fs::write(dir.path().join("f"), "").unwrap();
    assert!(matches!(
        dir.ensure_device("f", one, UserId::ROOT, 0o400),
        Err(FileError::Foreign { .. })
    ));
}

#[test]
fn a_confined_folder_is_full_by_itself() {
    test_seed::needs_root();
    let (_keep, dir) = folder();
    let text = "x".repeat(64 << 10);
    for _ in 0..2 {
        // The second call finds it already mounted.
        let inside = dir.confine("small", 64 << 10, 0o700).unwrap();
        inside.write("a", "kept", 0o644).unwrap();
        let error = inside.write("b", &text, 0o644).unwrap_err();
        assert!(error.is_shortage(), "{error}");
        assert_eq!(inside.names().unwrap(), ["a"], "half a file is no file");
        dir.write("b", &text, 0o644).unwrap();
    }
    dir.unconfine("small").unwrap();
    dir.unconfine("small").unwrap();
    assert!(!dir.exists("small/a").unwrap());
    assert!(dir.remove_all("small").unwrap());
    dir.unconfine("small").unwrap();
}
