//! Another wall clock for single programs, by libfaketime. The machine's clock stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

/// The library.
pub(crate) fn library() -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let library = debian::Release::open(&cache, "bookworm").and_then(|release| {
        let folder = cache.join("libfaketime");
        debian::extract(&release.package("libfaketime")?, &folder)?;
        Ok(folder)
    });
    let machines = fs::read_dir(test_seed::needed(library).join("usr/lib"))
        .into_iter()
        .flatten()
        .flatten();
    let mut paths = machines.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    paths
        .find(|path| path.exists())
        .expect("the package has the library")
}

/// The environment of a program whose wall clock `file` sets, which [`set`] writes.
pub(crate) fn environment(library: &Path, file: &str) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.to_owned()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// Sets such a clock so many seconds ahead of the machine's, from now on.
pub(crate) fn set(file: &Path, shift: i64) {
    // A program may read it at any moment.
    let next = file.with_extension("next");
    fs::write(&next, format!("{shift:+}\n")).expect("the clock is written");
    fs::rename(&next, file).expect("the clock is set");
}
