//! Which case passed on which series of Slurm.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The results of a run, by the test's name.
pub(crate) type Results = BTreeMap<String, String>;

/// One column for each series.
#[derive(Default)]
pub(crate) struct Matrix(Vec<(&'static str, Results)>);

impl Matrix {
    /// Adds what was run on a series.
    pub fn add(&mut self, series: &'static str, results: Results) {
        match self.0.iter_mut().find(|(name, _)| *name == series) {
            Some((_, known)) => known.extend(results),
            None => self.0.push((series, results)),
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: BTreeSet<_> = self
            .0
            .iter()
            .flat_map(|(_, results)| results.keys())
            .collect();
        let width = cases.iter().map(|case| case.len()).max().unwrap_or(0);
        write!(f, "{:width$}", "")?;
        for (series, _) in &self.0 {
            write!(f, "  {series:>6}")?;
        }
        for case in cases {
            write!(f, "\n{case:width$}")?;
            for (_, results) in &self.0 {
                write!(f, "  {:>6}", results.get(case).map_or("-", String::as_str))?;
            }
        }
        Ok(())
    }
}

const PASSED: &str = "ok";
const FAILED: &str = "FAILED";
/// Failed beside others, and passed alone.
const AGAIN: &str = "again";
/// Has nothing to show on this series.
const NOT_HERE: &str = "n/a";

/// Takes a line of a test program. A test that has nothing to show says so itself, before the program calls it passed.
pub(crate) fn note(results: &mut Results, line: &str) {
    if let Some((name, result)) = result_of(line)
        && results.get(&name).is_none_or(|known| known != NOT_HERE)
    {
        results.insert(name, result);
    }
}

/// Those that failed.
pub(crate) fn failed(results: &Results) -> Vec<String> {
    let failed = results.iter().filter(|(_, result)| *result == FAILED);
    failed.map(|(name, _)| name.clone()).collect()
}

/// Marks those that failed and passed in a second run; how many these are.
pub(crate) fn passed_again(results: &mut Results, second: &Results) -> u64 {
    let mut passed = 0;
    for (name, result) in results.iter_mut().filter(|(_, result)| *result == FAILED) {
        if second.get(name).is_some_and(|second| second == PASSED) {
            AGAIN.clone_into(result);
            passed += 1;
        }
    }
    passed
}

/// Reads `test NAME ... ok`, as test programs print it.
fn result_of(line: &str) -> Option<(String, String)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let result = result.split([',', ' ']).next()?;
    [PASSED, FAILED, "ignored", NOT_HERE]
        .contains(&result)
        .then(|| (name.trim_end().to_owned(), result.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let read = |line| result_of(line).map(|(name, result)| format!("{name}={result}"));
        assert_eq!(
            read("test life::requeue ... ok").as_deref(),
            Some("life::requeue=ok")
        );
        assert_eq!(read("test a ... FAILED").as_deref(), Some("a=FAILED"));
        assert_eq!(
            read("test a ... ignored, why").as_deref(),
            Some("a=ignored")
        );
        assert_eq!(read("test result: ok. 1 passed; 0 failed"), None);
    }

    #[test]
    fn what_has_nothing_to_show_has_not_passed() {
        let mut results = Results::new();
        for line in ["test a ... n/a", "test a ... ok", "test b ... ok"] {
            note(&mut results, line);
        }
        let of = |name: &str, result: &str| (name.to_owned(), result.to_owned());
        assert_eq!(results, Results::from([of("a", "n/a"), of("b", "ok")]));
    }

    #[test]
    fn what_failed_is_known_for_it_even_if_it_passes_later() {
        let of = |name: &str, result: &str| (name.to_owned(), result.to_owned());
        let mut first = Results::from([of("a", "FAILED"), of("b", "FAILED"), of("c", "ok")]);
        assert_eq!(failed(&first), ["a", "b"]);
        let second = Results::from([of("a", "ok"), of("b", "FAILED")]);
        assert_eq!(passed_again(&mut first, &second), 1);
        let after = Results::from([of("a", "again"), of("b", "FAILED"), of("c", "ok")]);
        assert_eq!(first, after);
    }

    #[test]
    fn a_case_that_was_not_run_is_seen() {
        let mut matrix = Matrix::default();
        let of = |name: &str, result: &str| Results::from([(name.to_owned(), result.to_owned())]);
        matrix.add("22.05", of("a", "ok"));
        matrix.add("24.11", of("bb", "FAILED"));
        matrix.add("24.11", of("a", "ok"));
        let text = "     22.05   24.11\na       ok      ok\nbb       -  FAILED";
        assert_eq!(matrix.to_string(), text);
    }
}
