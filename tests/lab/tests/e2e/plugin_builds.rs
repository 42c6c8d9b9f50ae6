//! Plugins that are built differently from the installed ones: with a feature of the tests, or for other headers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

/// The plugins' packages.
pub(crate) const PLUGINS: [&str; 3] = ["job_submit_gpufrac", "cli_filter_gpufrac", "spank_gpufrac"];

/// The build folder of variants: one for all, because they differ in little.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/variants")
}

/// Builds all plugins with cargo as `adjust` changes it; returns the folder `name` with them.
pub(crate) fn build(name: &str, adjust: impl FnOnce(&mut Command)) -> PathBuf {
    let target = folder();
    let variant = target.join(name);
    fs::create_dir_all(&variant).expect("a folder below target");
    let lock = fs::File::create(target.join("lock")).expect("a file below target");
    // The next variant's libraries replace these.
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).expect("a lock");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([
            "build",
            "--quiet",
            "--profile",
            "test",
            "--lib",
            "--target-dir",
        ])
        .arg(&target)
        .args(PLUGINS.iter().flat_map(|plugin| ["-p", plugin]))
        // With the features of the crates with which the folder begins.
        .args(["-p", "xtask"]);
    adjust(&mut cargo);
    assert!(cargo.status().expect("cargo starts").success());
    for library in PLUGINS.map(|plugin| format!("lib{plugin}.so")) {
        let (built, place) = (target.join("debug").join(&library), variant.join(&library));
        replace(&built, &place);
    }
    variant
}

/// Replaces a library that may be in use.
pub(crate) fn replace(library: &Path, place: &Path) {
    gpufrac_lab::install(library, place, 0o644)
        .expect("a library, and a folder that can be written");
}
