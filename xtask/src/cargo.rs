//! Runs what cargo installs and tests, and prints the time of stages.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use xtask_front::cargo::{cargo, line, root, run};

/// The path of a crate's program of this version in target/tools; installs it if it is missing.
pub(crate) fn tool(name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let program = tools.join("bin").join(name);
    let found = Command::new(&program).arg("--version").output();
    let is_version = found.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .ends_with(version)
    });
    if !is_version {
        let install = ["install", name, "--locked", "--version", version, "--root"];
        run(cargo(&install).arg(tools).args(options))?;
    }
    Ok(program)
}

/// The number of tests of a run, by outcome.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs `cargo test`, prints its output and adds up its result lines. A failure without a failed test, such as a test
/// that does not compile, counts as one failed test.
pub(crate) fn tests(args: &[&str]) -> Result<Counts> {
    let mut command = cargo(&["test", "--no-fail-fast"]);
    command.args(args).stdout(Stdio::piped());
    let words = line(&command);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting `{words}` failed"))?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if let Some(found) = result_line(&line) {
                counts += found;
            }
            writeln!(std::io::stdout(), "{line}")?;
        }
    }
    if !child.wait()?.success() && counts.failed == 0 {
        counts.failed = 1;
    }
    Ok(counts)
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`.
fn result_line(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number = |word: &str| {
        rest.split([';', '.'])
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    Some(Counts {
        passed: number("passed")?,
        failed: number("failed")?,
        // Doc tests that are only compiled are not counted.
        skipped: 0,
    })
}

/// Runs a stage and prints its time.
pub(crate) fn stage<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("== {name}");
    let before = Instant::now();
    let result = work();
    let word = if result.is_ok() { "done" } else { "FAILED" };
    println!(
        "== {name}: {word} in {:.1} s",
        before.elapsed().as_secs_f64()
    );
    result
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The crates that a build of the packages needs, each with its features.
    fn crates(packages: &[&str]) -> BTreeSet<String> {
        let args = ["tree", "--locked", "--edges", "normal,build"];
        let format = ["--prefix", "none", "--format", "{p} {f}"];
        let output = cargo(&args).args(format).args(packages).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| line.trim_end_matches(" (*)").to_owned())
            .collect()
    }

    /// A missing feature goes into the list of xtask/Cargo.toml.
    #[test]
    fn what_xtask_shares_with_the_workspace_is_compiled_once() {
        let twice = &crates(&["--package", "xtask"]) - &crates(&["--workspace"]);
        assert!(twice.is_empty(), "{twice:#?}");
    }

    #[test]
    fn result_lines_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; \
                    finished in 0.00s";
        assert_eq!(
            result_line(line),
            Some(Counts {
                passed: 12,
                failed: 3,
                skipped: 0
            })
        );
        assert_eq!(result_line("test a ... ok"), None);
    }
}
