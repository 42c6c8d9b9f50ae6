//! The files of `tests/config`: the valid ones are read; each invalid one is refused with exactly the messages in its
//! first lines (`# expect: `).

use std::fs;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;

fn files(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut files: Vec<PathBuf> = fs::read_dir(root.join(folder))
        .expect("a folder of files")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn valid_files_are_read() {
    for file in files("valid") {
        let text = fs::read_to_string(&file).unwrap();
        if let Err(errors) = Config::parse(&text, "gpufrac.toml") {
            panic!("{}:\n{errors}", file.display());
        }
    }
}

/// Promise (admins): a mistake in the file is reported with file, line and key, all at once.
/// With `check_prints_every_mistake_with_file_line_and_key`.
#[test]
fn invalid_files_are_refused_with_these_messages() {
    for file in files("invalid") {
        let text = fs::read_to_string(&file).unwrap();
        let expected: Vec<&str> = text
            .lines()
            .map_while(|line| line.strip_prefix("# expect: "))
            .collect();
        let Err(errors) = Config::parse(&text, "gpufrac.toml") else {
            panic!("{} is taken for valid", file.display());
        };
        let found = errors.to_string();
        let found: Vec<&str> = found.lines().collect();
        assert!(!expected.is_empty(), "{}:\n{errors}", file.display());
        assert_eq!(found, expected, "{}", file.display());
    }
}
