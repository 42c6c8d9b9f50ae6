//! The table with the series of each end-to-end test and the reasons: `tests/lab/tests/e2e/series.toml`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::programs::Test;

/// The table, by test.
#[derive(Debug)]
pub(crate) struct Table(BTreeMap<String, Row>);

/// The entry of a test.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub on: On,
    /// Whether the test keeps a core busy; other tests of the lab mostly wait.
    pub computes: bool,
    /// The place in the table: slow tests come first, so that a run does not end with one.
    pub place: usize,
}

/// The series of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum On {
    /// One series, drawn in each run.
    One,
    /// All of these series.
    Each(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    on: Word,
    why: String,
    #[serde(default)]
    computes: bool,
    tests: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Word(String),
    Series(Vec<String>),
}

impl Table {
    /// Reads the table. `known`: the existing series.
    /// Errors: the text is not such a table; each error names the group by its reason or the test by its name.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut rows = BTreeMap::new();
        for group in file.group {
            if group.why.trim().is_empty() {
                bail!("the group of {:?} has no reason (`why`)", group.tests);
            }
            let on = group
                .on
                .read(known)
                .with_context(|| format!("the group {:?}", group.why))?;
            for test in group.tests {
                let row = Row {
                    on: on.clone(),
                    computes: group.computes,
                    place: rows.len(),
                };
                if rows.insert(test.clone(), row).is_some() {
                    bail!("{test} stands twice; keep one of the two lines");
                }
            }
        }
        Ok(Self(rows))
    }

    /// The entry of a test.
    pub fn row(&self, test: &str) -> Option<&Row> {
        self.0.get(test)
    }

    /// Compares the table with the existing tests.
    /// Errors: names the tests without an entry and the entries without a test.
    pub fn check(&self, tests: &[Test]) -> Result<()> {
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        let without: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| self.row(name).is_none())
            .collect();
        let stale: Vec<&String> = self
            .0
            .keys()
            .filter(|name| !names.contains(&name.as_str()))
            .collect();
        if !without.is_empty() {
            bail!("add a line, with the reason, for {}", without.join(", "));
        }
        if !stale.is_empty() {
            bail!("remove the lines of tests that do not exist: {stale:?}");
        }
        Ok(())
    }
}

impl Word {
    fn read(self, known: &[&str]) -> Result<On> {
        let those = |wanted: &dyn Fn(&str) -> bool| {
            let names = known.iter().filter(|name| wanted(name));
            Ok(On::Each(names.map(|name| (*name).to_owned()).collect()))
        };
        match self {
            Self::Word(word) => match word.split_once(' ') {
                None if word == "one" => Ok(On::One),
                None if word == "all" => those(&|_| true),
                // Names of series sort by year and month.
                Some(("since", first)) => those(&|name| name >= first),
                Some(("before", first)) => those(&|name| name < first),
                _ => bail!(
                    "`on = {word:?}`: write \"one\", \"all\", \"since SERIES\", \"before SERIES\" or a list of series"
                ),
            },
            Self::Series(series) => {
                match series.iter().find(|name| !known.contains(&name.as_str())) {
                    Some(other) => bail!("Slurm {other} is none of {}", known.join(", ")),
                    None => Ok(On::Each(series)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 2] = ["22.05", "24.11"];

    fn group(on: &str, why: &str, tests: &str) -> String {
        format!("[[group]]\non = {on}\nwhy = {why:?}\ntests = [{tests}]\n")
    }

    fn tests(names: &[&str]) -> Vec<Test> {
        let test = |name: &&str| Test {
            name: (*name).to_owned(),
            only_full: false,
        };
        names.iter().map(test).collect()
    }

    #[test]
    fn a_table_is_read() {
        let text = group("\"one\"", "no Slurm in it", "\"a\", \"b\"")
            + &group("[\"24.11\"]", "a feature of it", "\"c\"")
            + &group("\"all\"", "Slurm decides", "\"d\"")
            + &group("\"since 23.11\"", "a feature of it and later", "\"e\"")
            + &group("\"before 23.11\"", "not in later ones", "\"f\"");
        let table = Table::parse(&text, &KNOWN).unwrap();
        let on = |name| table.row(name).map(|row| row.on.clone());
        let each = |series: &[&str]| On::Each(series.iter().map(|s| (*s).to_owned()).collect());
        assert_eq!(on("b"), Some(On::One));
        assert_eq!(on("c"), Some(each(&["24.11"])));
        assert_eq!(on("d"), Some(each(&KNOWN)));
        assert_eq!(on("e"), Some(each(&["24.11"])));
        assert_eq!(on("f"), Some(each(&["22.05"])));
        table
            .check(&tests(&["a", "b", "c", "d", "e", "f"]))
            .unwrap();
    }

    #[test]
    fn a_table_that_does_not_fit_the_tests_is_refused() {
        let refused = |text: &str| Table::parse(text, &KNOWN).unwrap_err().to_string();
        let twice = group("\"one\"", "x", "\"a\"").repeat(2);
        assert_eq!(refused(&twice), "a stands twice; keep one of the two lines");
        assert!(refused(&group("\"one\"", " ", "\"a\"")).contains("no reason"));
        let error = Table::parse(&group("[\"1.0\"]", "x", "\"a\""), &KNOWN).unwrap_err();
        assert!(format!("{error:#}").contains("Slurm 1.0 is none of 22.05, 24.11"));
        let table = Table::parse(&group("\"all\"", "x", "\"a\""), &KNOWN).unwrap();
        let says = |names: &[&str]| table.check(&tests(names)).unwrap_err().to_string();
        assert!(says(&["a", "new"]).contains("for new"));
        assert!(says(&[]).contains("[\"a\"]"));
    }
}
