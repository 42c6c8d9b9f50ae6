//! The tiers of the tests: `check`, `test`, `test --full`.
//!
//! Data flow in one direction: cargo builds programs ([`mod@programs`]); the table of end-to-end tests says on which
//! series of Slurm each runs ([`mod@table`]); each run of a test becomes a case ([`mod@case`]); threads run cases in
//! parallel ([`mod@pool`]); the outcomes are printed ([`mod@report`]).

mod case;
mod pool;
mod programs;
mod report;
#[cfg(test)]
mod silent;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use self::case::{Case, Load};
use self::pool::Pool;
use self::programs::Program;
use self::report::Report;
use self::table::{On, Row, Table};
use crate::cargo::{Counts, stage, tests};
use crate::pages;
use crate::words;
use lab_tasks::series::{self, Series, Several};
use xtask_front::cargo::{build, cargo, root, run};
use xtask_front::setup;

/// The program of the end-to-end tests.
const END_TO_END: &str = "lab::e2e";
/// The path of the table of end-to-end tests, below the root.
const TABLE: &str = "tests/lab/tests/e2e/series.toml";
/// The path of the simulator's library that tests load, below the root. cargo writes it under a name without a hash.
const SIMULATOR: &str = "target/debug/deps/libnvidia_ml.so";
/// The path of the results for CI systems, below the root.
const JUNIT: &str = "target/junit.xml";
/// The variable with the seed of all random tests of a run.
const SEED: &str = "GPUFRAC_TEST_SEED";

/// The sizes of random tests in the tier `--full`, unless the environment sets them: numbers of jobs and cases.
const FULL: [(&str, &str); 8] = [
    ("GPUFRAC_BOOKS_JOBS", "3000"),
    // More than all system calls.
    ("GPUFRAC_KILLED_CALLS", "1000000"),
    ("GPUFRAC_PATTERN_JOBS", "1000"),
    ("GPUFRAC_RESTART_JOBS", "50"),
    ("GPUFRAC_SITES", "5000"),
    ("GPUFRAC_SOAK_JOBS", "2000"),
    ("GPUFRAC_SOAK_TENANTS", "1000"),
    ("PROPTEST_CASES", "4096"),
];

/// The tests to run.
#[derive(clap::Args)]
pub(crate) struct Wanted {
    #[command(flatten)]
    slurm: Several,
    /// Everything in real time, on all series, with long soaks: hours. For a release
    #[arg(long)]
    full: bool,
    /// The seed of the random tests; drawn unless given, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Only tests whose names contain this; on the machine's own Slurm, unless another is named. Without NAME the table
    /// tests/lab/tests/e2e/series.toml says on which Slurm each test runs
    #[arg(last = true)]
    name: Option<String>,
    /// Further variables of the tests.
    #[arg(skip)]
    variables: Vec<(&'static str, OsString)>,
}

/// End-to-end tests that add lines to a table.
pub(crate) struct Tabled {
    /// Their module.
    pub(crate) tests: &'static str,
    /// The variable with the path of the table, for the tests.
    pub(crate) variable: &'static str,
    /// The path of the table, below the root.
    pub(crate) table: &'static str,
    /// Why no table was written.
    pub(crate) without: &'static str,
}

impl Tabled {
    /// Runs the tests on these series of Slurm or on all, and prints the sorted lines of their table.
    /// Errors: a test failed, or there is no table.
    pub(crate) fn run(
        &self,
        slurm: &Several,
        full: bool,
        print: impl FnOnce(&[&str]) -> Result<()>,
    ) -> Result<()> {
        let table = self.table;
        let path = root().join(table);
        if path.exists() {
            std::fs::remove_file(&path).with_context(|| format!("removing {table} failed"))?;
        }
        let tested = test(&Wanted {
            slurm: slurm.or_all(),
            full,
            seed: None,
            name: Some(self.tests.to_owned()),
            variables: vec![(self.variable, path.clone().into())],
        });
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{}: reading {table} failed", self.without))?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        print(&lines)?;
        tested
    }
}

/// The second tier: everything that a change must pass, or the tests called NAME.
pub(crate) fn test(wanted: &Wanted) -> Result<()> {
    let began = Instant::now();
    let seed = wanted.seed.unwrap_or_else(fresh_seed);
    let mut known: Vec<&'static str> = series::names().collect();
    let drawn = known[(seed % known.len() as u64) as usize];
    let names = wanted.slurm.names()?;
    known.extend(&names);
    known.sort_unstable();
    known.dedup();
    println!("== seed {seed}: tests in which no version of Slurm takes part run on Slurm {drawn}");
    stage("set-up", || setup::run(setup::ALL))?;
    let choice = Choice {
        known: &known,
        wanted: &names,
        own: wanted.name.is_some().then(Series::own_name).transpose()?,
        drawn,
        full: wanted.full,
    };
    let mut environment = environment(seed, wanted.full);
    environment.extend(wanted.variables.iter().cloned());
    let plan = Plan {
        wanted,
        choice,
        environment,
    };
    let cases = match wanted.name {
        Some(_) => plan.prepare(|name| wanted.slurm.prepare(name))?,
        None => plan.prepare_everything()?,
    };
    let before = programs::written(SIMULATOR)?;
    // Most tests wait, so the compiler can use the cores meanwhile.
    let (counts, checks) = std::thread::scope(|scope| {
        let checks = scope.spawn(|| match wanted.name {
            Some(_) => Ok(Counts::default()),
            None => checks(),
        });
        (run_cases(cases, seed), checks.join())
    });
    let mut counts = counts?;
    counts += checks.map_err(|_| anyhow!("the thread of the checks panicked"))??;
    if programs::written(SIMULATOR)? != before {
        bail!(
            "running the tests failed: cargo wrote {SIMULATOR} again while tests loaded it; see with CARGO_LOG=cargo::core::compiler::fingerprint=info which crate differs between the builds of the suite"
        );
    }
    conclude(counts, began)
}

/// The first tier: format, clippy, unit tests.
pub(crate) fn check() -> Result<()> {
    let began = Instant::now();
    let seed = fresh_seed();
    stage("set-up", || setup::run(setup::ALL))?;
    format()?;
    clippy()?;
    oldest_rust()?;
    let args = ["--workspace", "--exclude", "gpufrac-lab", "--lib", "--bins"];
    let programs = stage("test programs", || programs::build(&args))?;
    let environment = environment(seed, false);
    let programs = programs.into_iter().map(Arc::new);
    let cases = programs.flat_map(|program| plain_cases(&program, &environment, false));
    conclude(run_cases(cases.collect(), seed)?, began)
}

/// Runs cases in parallel, and reports their outcomes.
fn run_cases(cases: Vec<Case>, seed: u64) -> Result<Counts> {
    println!("== {} tests", cases.len());
    let mut report = Report::new(seed);
    let (sender, outcomes) = channel();
    let pool = Pool::new(cases);
    std::thread::scope(|scope| {
        for kinds in pool::threads() {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || pool.work(kinds, &sender));
        }
        drop(sender);
        outcomes.iter().for_each(|outcome| report.add(outcome));
    });
    report.write_junit(&root().join(JUNIT))?;
    print!("{}", report.summary());
    Ok(report.counts())
}

/// Prints the last lines of a run, with its result.
fn conclude(counts: Counts, began: Instant) -> Result<()> {
    let seconds = began.elapsed().as_secs_f64();
    println!("== all in {seconds:.1} s; {JUNIT} has the outcomes\n{counts}");
    match counts.failed {
        0 if counts.passed == 0 => {
            bail!("no test ran: no name has these words in it, or not on this series")
        }
        0 => Ok(()),
        failed => bail!("{failed} failed"),
    }
}

/// The plan of a run of the second or third tier.
struct Plan<'a> {
    wanted: &'a Wanted,
    choice: Choice<'a>,
    /// The environment of each test.
    environment: Vec<(&'static str, OsString)>,
}

impl Plan<'_> {
    /// Builds for all cases, and returns them. Other series of Slurm are downloaded during the build.
    fn prepare_everything(&self) -> Result<Vec<Case>> {
        format()?;
        std::thread::scope(|scope| {
            let mut downloads: BTreeMap<_, _> = self
                .choice
                .order()?
                .into_iter()
                .map(|name| (name, scope.spawn(move || self.wanted.slurm.prepare(name))))
                .collect();
            self.prepare(|name| {
                let download = downloads
                    .remove(name)
                    .context("a series is prepared once")?;
                download
                    .join()
                    .map_err(|_| anyhow!("the download of Slurm {name} panicked"))?
            })
        })
    }

    /// Builds for the requested cases, and returns them. `prepare` prepares a series.
    fn prepare(
        &self,
        mut prepare: impl FnMut(&'static str) -> Result<Series>,
    ) -> Result<Vec<Case>> {
        stage("build", build)?;
        let programs = stage("test programs", programs)?;
        let (end_to_end, plain): (Vec<_>, Vec<_>) = programs
            .into_iter()
            .partition(|program| program.name == END_TO_END);
        let plain = plain.iter();
        let plain = plain
            .flat_map(|program| plain_cases(program, &self.environment, self.wanted.full))
            .filter(|case| self.is_wanted(case));
        let mut on_slurm = Vec::new();
        let program = end_to_end.first();
        let program = program.with_context(|| format!("cargo built no program {END_TO_END}"))?;
        let table = table(program, self.choice.known)?;
        for name in self.choice.order()? {
            let mut found = self.cases(program, &table, name);
            found.retain(|(_, case)| self.is_wanted(case));
            if found.is_empty() {
                continue;
            }
            let series = prepare(name)?;
            stage(&format!("build for Slurm {name}"), || series.build())?;
            for (_, case) in &mut found {
                case.environment.extend(series.environment());
                case.option = series.option();
            }
            on_slurm.append(&mut found);
        }
        series::begin_variants()?;
        // The series alternate. Tests that compute are short, except the soaks.
        on_slurm.sort_by_key(|(place, _)| *place);
        let on_slurm = on_slurm.into_iter().map(|(_, case)| case);
        Ok(on_slurm.chain(plain).collect())
    }

    fn is_wanted(&self, case: &Case) -> bool {
        let name = self.wanted.name.as_ref();
        name.is_none_or(|name| case.name().contains(name.as_str()))
    }

    /// The cases of the end-to-end tests on a series, each with its place in the table, without the environment of
    /// the series.
    fn cases(
        &self,
        program: &Arc<Program>,
        table: &Table,
        series: &'static str,
    ) -> Vec<(usize, Case)> {
        let tests = program.tests.iter();
        tests
            .filter(|test| self.wanted.full || !test.only_full)
            .filter_map(|test| Some((test, table.row(&test.name)?)))
            .filter(|(_, row)| self.choice.of(&row.on).contains(&series))
            .map(|(test, row)| {
                let case = Case {
                    program: Arc::clone(program),
                    test: test.name.clone(),
                    series: Some(series),
                    option: String::new(),
                    environment: self.environment.clone(),
                    load: load(row),
                    full: self.wanted.full,
                };
                (row.place, case)
            })
            .collect()
    }
}

/// The programs of all tests.
fn programs() -> Result<Vec<Arc<Program>>> {
    let mut programs = programs::build(&["--workspace"])?;
    // The crash tests need a build that can crash at each step. The whole workspace is selected, so that dependencies
    // have the same features: otherwise cargo would rebuild the simulator's library, which has no hash in its name,
    // while tests use it.
    let crash = [
        "--workspace",
        "--features",
        "gpufrac-node/failpoints",
        "--test",
        "crash",
    ];
    programs.extend(programs::build(&crash)?);
    Ok(programs.into_iter().map(Arc::new).collect())
}

fn load(row: &Row) -> Load {
    if row.computes { Load::Computes } else { Load::Waits }
}

/// The choice of series for a run.
#[derive(Clone, Copy)]
struct Choice<'a> {
    known: &'a [&'static str],
    /// The series on the command line; none if the table decides.
    wanted: &'a [&'static str],
    /// The machine's own series, if a test was named.
    own: Option<&'static str>,
    /// The series for tests that need any one series.
    drawn: &'static str,
    full: bool,
}

impl Choice<'_> {
    /// The series in the order of their builds: the machine's own first, because its build exists already.
    fn order(&self) -> Result<Vec<&'static str>> {
        let own = Series::own_name()?;
        let names = if self.wanted.is_empty() { self.known } else { self.wanted };
        let mut order = names.to_vec();
        order.sort_by_key(|name| *name != own);
        Ok(order)
    }

    /// The series on which a test runs.
    fn of<'t>(&'t self, on: &'t On) -> Vec<&'t str> {
        let possible: Vec<&str> = match on {
            On::One => self.known.to_vec(),
            On::Each(series) => series.iter().map(String::as_str).collect(),
        };
        let only = |name: &str| -> Vec<&'t str> {
            let mut possible = possible.iter();
            possible
                .find(|it| **it == name)
                .into_iter()
                .copied()
                .collect()
        };
        if !self.wanted.is_empty() {
            return self.wanted.iter().flat_map(|name| only(name)).collect();
        }
        match (self.own, on) {
            (Some(own), _) if only(own).is_empty() => possible[..1].to_vec(),
            (Some(own), _) => only(own),
            (None, On::One) if !self.full => only(self.drawn),
            (None, _) => possible,
        }
    }
}

/// The checks of a change besides its tests.
fn checks() -> Result<Counts> {
    clippy()?;
    stage("documentation", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    stage("examples in the documentation", || {
        tests(&["--workspace", "--doc", "--quiet"])
    })
}

fn format() -> Result<()> {
    stage("format", || run(&mut cargo(&["fmt", "--all", "--check"])))?;
    stage("words", words::check)?;
    stage("pages", pages::check)
}

fn clippy() -> Result<()> {
    let args = ["clippy", "--workspace", "--all-targets", "--quiet"];
    stage(
        "clippy",
        || run(cargo(&args).args(["--", "-D", "warnings"])),
    )
}

/// Builds with the oldest Rust that Cargo.toml names, in a folder of its own; without rustup, or a network, only a
/// forge fails.
fn oldest_rust() -> Result<()> {
    let version = env!("CARGO_PKG_RUST_VERSION");
    let works = |line: &str| rustup(line).output().is_ok_and(|it| it.status.success());
    let install = format!("toolchain install {version} --profile minimal --no-self-update");
    if !works(&format!("run {version} rustc --version")) && !works(&install) {
        // On a forge nobody reads that a check did not run.
        if std::env::var_os("CI").is_some() {
            bail!("installing Rust {version} failed; see `rustup {install}`");
        }
        println!("== Rust {version}: not run, because `rustup {install}` failed");
        return Ok(());
    }
    stage(&format!("Rust {version}"), || {
        let check = format!("run {version} cargo check --workspace --locked --quiet");
        run(rustup(&check)
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("CARGO_TARGET_DIR", root().join("target/oldest-rust")))
    })
}

fn rustup(line: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(line.split(' ')).current_dir(root());
    command
}

/// The cases of a program that needs no Slurm.
fn plain_cases(
    program: &Arc<Program>,
    environment: &[(&'static str, OsString)],
    full: bool,
) -> Vec<Case> {
    let tests = program.tests.iter().filter(|test| full || !test.only_full);
    tests
        .map(|test| Case {
            program: Arc::clone(program),
            test: test.name.clone(),
            series: None,
            option: String::new(),
            environment: environment.to_vec(),
            load: Load::Computes,
            full,
        })
        .collect()
}

/// The environment of each test.
fn environment(seed: u64, full: bool) -> Vec<(&'static str, OsString)> {
    let mut environment = vec![(SEED, seed.to_string().into())];
    if full {
        let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
        environment.extend(
            FULL.into_iter()
                .filter(unset)
                .map(|(name, value)| (name, value.into())),
        );
    }
    environment
}

fn table(program: &Program, known: &[&str]) -> Result<Table> {
    let path = root().join(TABLE);
    let read = || {
        let table = Table::parse(&std::fs::read_to_string(&path)?, known)?;
        table.check(&program.tests)?;
        Ok::<_, anyhow::Error>(table)
    };
    read().with_context(|| TABLE.to_owned())
}

/// A new seed, small enough to be typed.
pub(crate) fn fresh_seed() -> u64 {
    // The standard library seeds its hashes from the system's random source.
    RandomState::new().hash_one(std::process::id()) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["22.05", "24.11", "26.05"];

    fn choice() -> Choice<'static> {
        Choice {
            known: &KNOWN,
            wanted: &[],
            own: None,
            drawn: "24.11",
            full: false,
        }
    }

    #[test]
    fn each_test_runs_where_it_can_show_something() {
        let each = On::Each(vec!["24.11".to_owned(), "26.05".to_owned()]);
        let of = |choice: Choice<'_>| -> [Vec<String>; 2] {
            [&On::One, &each].map(|on| choice.of(on).into_iter().map(str::to_owned).collect())
        };
        let some = |one: &[&str], each: &[&str]| {
            [one, each].map(|names| {
                names
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>()
            })
        };
        let usual = choice();
        assert_eq!(of(usual), some(&["24.11"], &["24.11", "26.05"]));
        let full = Choice {
            full: true,
            ..usual
        };
        assert_eq!(of(full), some(&KNOWN, &["24.11", "26.05"]));
        let own = Choice {
            own: Some("22.05"),
            ..usual
        };
        assert_eq!(of(own), some(&["22.05"], &["24.11"]));
        let wanted = |wanted: &'static [&'static str]| Choice {
            wanted,
            own: Some("22.05"),
            ..usual
        };
        assert_eq!(of(wanted(&["22.05"])), some(&["22.05"], &[]));
        assert_eq!(of(wanted(&["26.05"])), some(&["26.05"], &["26.05"]));
        assert_eq!(of(wanted(&KNOWN)), some(&KNOWN, &["24.11", "26.05"]));
    }
}
