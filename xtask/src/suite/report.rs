//! The report of a run, and its JUnit file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use super::case::{Case, Outcome, Verdict};
use crate::cargo::Counts;

/// The number of slowest tests at the end of the report.
const SLOWEST: usize = 10;

/// The outcomes of a run.
#[derive(Default)]
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
    seed: u64,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::NotHere => "n/a",
        }
    }
}

impl Report {
    /// A report without outcomes.
    pub fn new(seed: u64) -> Self {
        Self {
            outcomes: Vec::new(),
            seed,
        }
    }

    /// Prints the line of an outcome, and the whole output of a failed test.
    pub fn add(&mut self, outcome: Outcome) {
        println!("{}", line(&outcome));
        if outcome.verdict == Verdict::Failed {
            println!("{}", self.failure(&outcome));
        }
        self.outcomes.push(outcome);
    }

    /// The number of tests by result.
    pub fn counts(&self) -> Counts {
        let of = |verdict| {
            self.outcomes
                .iter()
                .filter(|it| it.verdict == verdict)
                .count() as u64
        };
        Counts {
            passed: of(Verdict::Passed),
            failed: of(Verdict::Failed),
            skipped: of(Verdict::NotHere),
        }
    }

    /// The command that repeats a case.
    fn command(&self, outcome: &Outcome) -> String {
        let Case { option, test, .. } = &outcome.case;
        let space = if option.is_empty() { "" } else { " " };
        format!(
            "cargo xtask test {option}{space}--seed {} -- {test}",
            self.seed
        )
    }

    fn failure(&self, outcome: &Outcome) -> String {
        format!(
            "---- {} ----\n{}\nseed: {}\nto repeat it: {}\n----",
            title(outcome),
            outcome.output.trim_end(),
            self.seed,
            self.command(outcome)
        )
    }

    /// The end of the report: tests by series, slowest and failed tests.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let matrix = self.matrix();
        if !matrix.is_empty() {
            text.push_str("== what passed on which Slurm (n/a: the test says why it cannot run there; -: not run there)\n");
            text.push_str(&matrix);
        }
        let mut slow: Vec<&Outcome> = self.outcomes.iter().collect();
        slow.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
        // Writing to a String does not fail.
        let _ = writeln!(text, "== the {} slowest tests", slow.len().min(SLOWEST));
        for outcome in slow.iter().take(SLOWEST) {
            let _ = writeln!(text, "{}", line(outcome));
        }
        let labs = self.outcomes.iter().map(Outcome::labs);
        let (up, waited) = labs.fold((0.0, 0.0), |sum, lab| (sum.0 + lab.0, sum.1 + lab.1));
        if up > 0.0 {
            let _ = writeln!(
                text,
                "== labs were up for {up:.0} s in all; tests waited {waited:.0} s of it"
            );
        }
        for outcome in self
            .outcomes
            .iter()
            .filter(|it| it.verdict == Verdict::Failed)
        {
            let _ = writeln!(
                text,
                "FAILED {}\n  to repeat it: {}",
                title(outcome),
                self.command(outcome)
            );
        }
        text
    }

    /// A row for each test that runs on Slurm, a column for each series.
    fn matrix(&self) -> String {
        let mut rows: BTreeMap<&str, BTreeMap<&str, Verdict>> = BTreeMap::new();
        for outcome in &self.outcomes {
            if let Some(series) = outcome.case.series {
                let row = rows.entry(&outcome.case.test).or_default();
                row.insert(series, outcome.verdict);
            }
        }
        let series: BTreeSet<&str> = rows.values().flat_map(BTreeMap::keys).copied().collect();
        let width = rows.keys().map(|test| test.len()).max().unwrap_or(0);
        let mut text = String::new();
        if rows.is_empty() {
            return text;
        }
        let _ = write!(text, "{:width$}", "");
        for name in &series {
            let _ = write!(text, "  {name:>6}");
        }
        for (test, verdicts) in &rows {
            let _ = write!(text, "\n{test:width$}");
            for name in &series {
                let word = verdicts.get(name).map_or("-", |verdict| verdict.word());
                let _ = write!(text, "  {word:>6}");
            }
        }
        text.push('\n');
        text
    }

    /// Writes all outcomes in JUnit's format, with a suite for each program and series.
    /// Errors: the file cannot be written.
    pub fn write_junit(&self, path: &Path) -> Result<()> {
        let mut suites: BTreeMap<String, TestSuite> = BTreeMap::new();
        for outcome in &self.outcomes {
            let program = &outcome.case.program.name;
            let name = match outcome.case.series {
                Some(series) => format!("{program} on Slurm {series}"),
                None => program.clone(),
            };
            let suite = suites
                .entry(name.clone())
                .or_insert_with(|| TestSuite::new(name));
            suite.add_test_case(self.junit_case(outcome));
        }
        let mut report = quick_junit::Report::new("gpufrac");
        report.add_test_suites(suites.into_values());
        let text = report
            .to_string()
            .context("the JUnit report cannot be written as XML")?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text).with_context(|| format!("writing {} failed", path.display()))
    }

    fn junit_case(&self, outcome: &Outcome) -> TestCase {
        let status = match outcome.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::NotHere => {
                let mut status = TestCaseStatus::skipped();
                status.set_message(outcome.not_run());
                status
            }
            Verdict::Failed => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(format!("to repeat it: {}", self.command(outcome)));
                status
            }
        };
        let mut case = TestCase::new(outcome.case.test.clone(), status);
        case.set_classname(outcome.case.program.name.clone());
        case.set_time(outcome.took);
        if outcome.verdict == Verdict::Failed {
            case.set_system_out(outcome.output.clone());
        }
        case
    }
}

/// `lab::e2e plain::a_lab on Slurm 24.11`.
fn title(outcome: &Outcome) -> String {
    match outcome.case.series {
        Some(series) => format!("{} on Slurm {series}", outcome.case.name()),
        None => outcome.case.name(),
    }
}

/// Result, seconds, name, and the times of the test's labs.
fn line(outcome: &Outcome) -> String {
    let (up, waited) = outcome.labs();
    let more = match outcome.not_run() {
        "" if up > 0.0 => format!(" (labs up {up:.1} s, waited {waited:.1} s)"),
        "" => String::new(),
        reason => format!(": not run: {reason}"),
    };
    format!(
        "{:>6} {:>7.1} s  {}{more}",
        outcome.verdict.word(),
        outcome.took.as_secs_f64(),
        title(outcome)
    )
}

#[cfg(test)]
mod tests {
    use super::super::case::tests::outcome;
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(7);
        report.outcomes = vec![
            outcome("a", Some("22.05"), Verdict::Passed),
            outcome("bb", Some("24.11"), Verdict::Failed),
            outcome("a", Some("24.11"), Verdict::NotHere),
            outcome("unit", None, Verdict::Passed),
        ];
        report
    }

    #[test]
    fn a_case_that_was_not_run_is_seen() {
        let text = "     22.05   24.11\na       ok     n/a\nbb       -  FAILED\n";
        assert_eq!(report().matrix(), text);
    }

    #[test]
    fn a_failure_says_how_to_repeat_it() {
        let report = report();
        let command = "cargo xtask test --slurm 24.11 --seed 7 -- bb";
        let told = report.failure(&report.outcomes[1]);
        assert!(told.contains(command) && told.contains("lab: up"), "{told}");
        let summary = report.summary();
        assert!(summary.contains(command), "{summary}");
        assert!(summary.contains("== the 4 slowest tests"), "{summary}");
        assert!(
            summary.contains("labs were up for 56 s in all"),
            "{summary}"
        );
    }

    #[test]
    fn the_junit_file_has_each_case() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/junit.xml");
        let report = report();
        report.write_junit(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for part in [
            "testsuites name=\"gpufrac\" tests=\"4\" skipped=\"1\" failures=\"1\"",
            "testsuite name=\"lab::e2e on Slurm 24.11\" tests=\"2\" skipped=\"1\"",
            "testcase name=\"bb\" classname=\"lab::e2e\" time=\"2.000\"",
            "--slurm 24.11 --seed 7 -- bb",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }
}
