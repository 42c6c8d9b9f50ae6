//! `cargo xtask fuzz`: runs the targets of `tests/fuzz` under libFuzzer.
//!
//! The readers are built with LLVM's counters of edges and comparisons. rustc has stable options for them, so neither
//! cargo-fuzz nor a nightly compiler is needed. Only a memory sanitizer would need one, and the readers have no
//! unsafe code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use xtask_front::cargo::{cargo, root, run};

/// The instrumentation that libFuzzer needs, with the checks of a test build.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// The longest input in bytes; longer ones take more time and find no more.
const LONGEST_INPUT: u32 = 4096;
/// The limits of one input in seconds and MiB.
const INPUT_LIMITS: (u32, u32) = (10, 2048);

#[derive(clap::Args)]
pub(crate) struct FuzzArguments {
    /// One target, such as `lease`; all of them unless given
    target: Option<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// The outcome of one target.
struct Outcome {
    target: String,
    executions: u64,
    seconds: u64,
    /// Inputs that reached new code, with the seeds.
    corpus: usize,
    findings: Vec<PathBuf>,
}

/// Runs one target or all of them, and prints a table.
pub(crate) fn run_targets(arguments: &FuzzArguments) -> Result<()> {
    let all = targets()?;
    let chosen = match &arguments.target {
        Some(name) if all.contains(name) => vec![name.clone()],
        Some(name) => bail!("no target is called `{name}`; there are {}", all.join(", ")),
        None => all,
    };
    let program = build()?;
    let mut outcomes = Vec::new();
    for target in chosen {
        outcomes.push(fuzz(&program, &target, arguments.seconds)?);
    }
    println!("| target | executions | seconds | inputs kept | findings |");
    println!("|---|---|---|---|---|");
    for it in &outcomes {
        let found = it.findings.len();
        println!(
            "| `{}` | {} | {} | {} | {found} |",
            it.target, it.executions, it.seconds, it.corpus
        );
    }
    let findings: Vec<String> = outcomes
        .iter()
        .flat_map(|it| it.findings.iter().map(|path| path.display().to_string()))
        .collect();
    if !findings.is_empty() {
        bail!(
            "inputs that fail: {}; mend the reader and put them with its seeds",
            findings.join(", ")
        );
    }
    Ok(())
}

/// The names of the targets, from the folders of their seeds.
fn targets() -> Result<Vec<String>> {
    let folder = root().join("tests/fuzz/seeds");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("reading {} failed", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// Builds the program that contains all targets.
fn build() -> Result<PathBuf> {
    let target_folder = root().join("target/fuzz");
    let host = host()?;
    let mut cargo = cargo(&[
        "build",
        "--release",
        "--quiet",
        "--manifest-path",
        "tests/fuzz/libfuzzer/Cargo.toml",
    ]);
    // With `--target` the flags do not apply to build scripts.
    cargo
        .args(["--target", &host, "--target-dir"])
        .arg(&target_folder);
    run(cargo.env("RUSTFLAGS", RUSTFLAGS))?;
    Ok(target_folder.join(host).join("release/fuzz-libfuzzer"))
}

/// The machine's target triple.
fn host() -> Result<String> {
    let said = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("starting rustc failed")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = said.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("`rustc -vV` says no host")
}

fn fuzz(program: &Path, target: &str, seconds: u32) -> Result<Outcome> {
    let work = root().join("target/fuzz/work").join(target);
    let (corpus, findings) = (work.join("corpus"), work.join("findings"));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder)
            .with_context(|| format!("making {} failed", folder.display()))?;
    }
    println!("== {target}: {seconds} s");
    let (input_seconds, memory) = INPUT_LIMITS;
    let output = Command::new(program)
        .env("GPUFRAC_FUZZ_TARGET", target)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={LONGEST_INPUT}"))
        .arg(format!("-timeout={input_seconds}"))
        .arg(format!("-rss_limit_mb={memory}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args(["-print_final_stats=1", "-use_value_profile=1"])
        .args([&corpus, &root().join("tests/fuzz/seeds").join(target)])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {} failed", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let found = files(&findings)?;
    if !output.status.success() {
        let last: Vec<&str> = said.lines().rev().take(40).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        println!("{}", last.join("\n"));
        if found.is_empty() {
            bail!("libFuzzer ended with {} and no finding", output.status);
        }
    }
    Ok(Outcome {
        target: target.to_owned(),
        executions: number(&said, "stat::number_of_executed_units:").unwrap_or_default(),
        seconds: number(&said, " runs in ").unwrap_or(u64::from(seconds)),
        corpus: files(&corpus)?.len(),
        findings: found,
    })
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("reading {} failed", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// The number after a word.
fn number(said: &str, word: &str) -> Option<u64> {
    said.split(word)
        .nth(1)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_output_of_libfuzzer() {
        let said = "Done 1234 runs in 11 second(s)\nstat::number_of_executed_units: 1234\nstat::average: 1\n";
        assert_eq!(number(said, "stat::number_of_executed_units:"), Some(1234));
        assert_eq!(number(said, " runs in "), Some(11));
        assert_eq!(number("", "stat::number_of_executed_units:"), None);
    }

    #[test]
    fn each_folder_of_seeds_is_a_target() {
        assert!(targets().unwrap().contains(&"lease".to_owned()));
    }
}
