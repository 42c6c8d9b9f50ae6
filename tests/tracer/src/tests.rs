#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::time::{Duration, Instant};

use super::*;

/// A shell that makes files in `folder`, each by one call.
fn script(folder: &Path, text: &str) -> Command {
    let mut command = Command::new("sh");
    let text = format!("echo '{READY}'; read go; cd \"$0\"; {text}");
    command.args(["-c", &text]).arg(folder);
    command
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn killed(text: &str, nth: usize, moment: Moment) -> (tempfile::TempDir, Run) {
    let folder = tempfile::tempdir().unwrap();
    let death = Some(Death { nth, moment });
    let run = run(script(folder.path(), text), Path::new("/none"), death).unwrap();
    (folder, run)
}

const THREE: &str = ": > a; : > b; cat < b; : > c; exit 3";

#[test]
fn calls_that_change_something_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(script(folder.path(), THREE), Path::new("/none"), None).unwrap();
    assert_eq!(run.code, Some(3));
    let opened = |call: &&Call| call.name == "openat";
    let files: Vec<String> = run
        .calls
        .iter()
        .filter(opened)
        .map(Call::to_string)
        .collect();
    assert_eq!(
        files,
        ["openat a", "openat b", "openat c"],
        "{:?}",
        run.calls
    );
    assert_eq!(names(folder.path()), ["a", "b", "c"]);
}

#[test]
fn it_dies_before_a_call_or_after_it() {
    let (folder, run) = killed(THREE, 2, Moment::Before);
    assert_eq!((run.code, run.calls.len()), (None, 2));
    assert_eq!(names(folder.path()), ["a"]);
    let (folder, run) = killed(THREE, 2, Moment::After);
    assert_eq!((run.code, run.calls.len()), (None, 2));
    assert_eq!(names(folder.path()), ["a", "b"]);
}

#[test]
fn its_children_live_on() {
    let (folder, run) = killed(
        "(while [ ! -e go ]; do sleep 0.01; done; : > late) & : > a",
        2,
        Moment::After,
    );
    assert_eq!(run.code, None);
    assert_eq!(names(folder.path()), ["a"]);
    fs::write(folder.path().join("go"), "").unwrap();
    let start = Instant::now();
    while !folder.path().join("late").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_that_does_not_wait_is_an_error() {
    let error = run(Command::new("true"), Path::new("/none"), None).unwrap_err();
    assert!(
        error.to_string().contains("before it was traced"),
        "{error}"
    );
}
