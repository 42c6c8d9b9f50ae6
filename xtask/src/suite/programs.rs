//! The test programs that cargo builds, with their tests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use xtask_front::cargo::{cargo, line, root};

/// A test program and its tests.
#[derive(Debug)]
pub(crate) struct Program {
    /// The package and the target, `gpufrac-node::crash`.
    pub name: String,
    pub path: PathBuf,
    /// The folder of the package, in which its tests run.
    pub folder: PathBuf,
    pub tests: Vec<Test>,
}

/// A test of a program.
#[derive(Debug)]
pub(crate) struct Test {
    /// The path in the program, `reaper::stalls::tenants_of_mps`.
    pub name: String,
    /// Whether it only runs in the tier `--full`.
    pub only_full: bool,
}

/// A line of cargo's `--message-format=json` ("External tools" in the book of cargo).
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// When cargo wrote a file, which is a path below the root. Errors: the file is missing.
pub(crate) fn written(path: &str) -> Result<SystemTime> {
    let metadata = fs::metadata(root().join(path));
    let metadata = metadata.with_context(|| format!("reading {path} failed"))?;
    Ok(metadata.modified()?)
}

/// Builds the test programs that `cargo test ARGS` would run, and lists their tests.
/// Errors: a program does not compile, or does not list its tests.
pub(crate) fn build(args: &[&str]) -> Result<Vec<Program>> {
    let mut command = cargo(&[
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    command.args(args).stdout(Stdio::piped());
    let words = line(&command);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting `{words}` failed"))?;
    let mut programs = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            // With this option tests print nothing, so each line is cargo's.
            let message: Message = serde_json::from_str(&line?)?;
            programs.extend(program(message));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{words}` failed ({status})");
    }
    for program in &mut programs {
        program.tests = tests(&program.path, &program.folder)?;
    }
    Ok(programs)
}

/// The test program of a message, without its tests.
fn program(message: Message) -> Option<Program> {
    let is_test = message.reason == "compiler-artifact" && message.profile?.test;
    let folder = message.manifest_path?.parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    is_test.then_some(Program {
        name: format!("{package}::{}", message.target?.name),
        path: message.executable?,
        folder,
        tests: Vec::new(),
    })
}

fn tests(program: &Path, folder: &Path) -> Result<Vec<Test>> {
    let ignored = list(program, folder, &["--ignored"])?;
    let all = list(program, folder, &[])?.into_iter();
    Ok(all
        .map(|name| Test {
            only_full: ignored.contains(&name),
            name,
        })
        .collect())
}

fn list(program: &Path, folder: &Path, args: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(program);
    command.args(["--list", "--format", "terse"]).args(args);
    let output = command
        .current_dir(folder)
        .output()
        .with_context(|| format!("starting {} failed", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("`{} --list` failed: {said}", program.display());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let found = |text: &str| program(serde_json::from_str(text).unwrap()).map(|p| p.name);
        let artifact = r#"{"reason":"compiler-artifact","executable":"/t/deps/crash-1",
            "manifest_path":"/w/node/Cargo.toml","target":{"name":"crash","kind":["test"]},
            "profile":{"test":true,"opt_level":"0"},"package_id":"x"}"#;
        assert_eq!(found(artifact).as_deref(), Some("node::crash"));
        assert_eq!(
            found(&artifact.replace("\"test\":true", "\"test\":false")),
            None
        );
        assert_eq!(found(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
