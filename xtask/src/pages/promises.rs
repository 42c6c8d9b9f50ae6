//! docs/promises.md: a row for each promise, with the tests that hold it.
//!
//! The comment of a test has the promise, the word of its section, and the other tests that hold it:
//!
//! ```text
//! /// Promise (users): fractions count per node.
//! /// With `two_node_job`, `several.rs::two_node_job`.
//! ```

use std::collections::BTreeMap;

use super::{Page, table};

pub(super) const PAGE: &str = "docs/promises.md";

/// The word of each section, and its heading.
const SECTIONS: [(&str, &str); 6] = [
    ("users", "## For users"),
    ("isolation", "## Isolation"),
    ("placement", "## Placement"),
    ("admins", "## For admins"),
    ("reaper", "## Idle slices"),
    ("never", "## What may never happen"),
];

struct Test {
    /// Its file and name, as `FILE::NAME`.
    path: String,
    comment: Vec<String>,
}

struct Promise<'a> {
    heading: &'static str,
    text: &'a str,
    tests: Vec<&'a str>,
}

impl Promise<'_> {
    fn row(&self) -> String {
        let tests: Vec<String> = self.tests.iter().map(|path| table::code(path)).collect();
        table::row(&[self.text, &tests.join(" ")])
    }
}

/// Writes the rows, and returns what a person must correct.
pub(super) fn update(code: &[(&str, String)], pages: &mut [Page]) -> Vec<String> {
    let tests: Vec<Test> = code
        .iter()
        .flat_map(|(path, text)| tests(path, text))
        .collect();
    let mut wrong = Vec::new();
    let texts: Vec<String> = tests.iter().map(|test| test.comment.join(" ")).collect();
    let mut promises = Vec::new();
    for (test, comment) in tests.iter().zip(&texts) {
        match promise(test, comment, &tests) {
            Ok(Some(promise)) => promises.push(promise),
            Ok(None) => {}
            Err(why) => wrong.push(format!("{}: {why}", test.path)),
        }
    }
    let Some(page) = pages.iter_mut().find(|page| page.path == PAGE) else {
        return wrong;
    };
    let order: BTreeMap<String, usize> = page
        .text
        .lines()
        .enumerate()
        .filter_map(|(line, text)| Some((first_test(text)?, line)))
        .collect();
    // A new promise stands behind that of the test before it.
    let mut place = 0;
    let mut placed: Vec<(usize, &Promise<'_>)> = Vec::new();
    for promise in &promises {
        place = order.get(promise.tests[0]).copied().unwrap_or(place);
        placed.push((place, promise));
    }
    placed.sort_by_key(|(place, _)| *place);
    let mut text = page
        .text
        .split("\n## ")
        .next()
        .unwrap_or_default()
        .to_owned();
    for (_, heading) in SECTIONS {
        text.push_str(&format!("\n{heading}\n\n| promise | test |\n|---|---|\n"));
        let of_section = placed
            .iter()
            .filter(|(_, promise)| promise.heading == heading);
        of_section.for_each(|(_, promise)| text.push_str(&(promise.row() + "\n")));
    }
    page.text = text;
    wrong
}

fn first_test(line: &str) -> Option<String> {
    let cells = table::cells(line)?;
    Some(
        cells
            .get(1)?
            .strip_prefix('`')?
            .split('`')
            .next()?
            .to_owned(),
    )
}

/// The promise in the comment of a test.
fn promise<'a>(
    test: &'a Test,
    comment: &'a str,
    tests: &'a [Test],
) -> Result<Option<Promise<'a>>, String> {
    let Some((section, text)) = comment
        .strip_prefix("Promise (")
        .and_then(|comment| comment.split_once("): "))
    else {
        return Ok(None);
    };
    let heading = SECTIONS.iter().find(|(word, _)| *word == section);
    let (_, heading) = heading.ok_or_else(|| format!("no section of {PAGE} is `{section}`"))?;
    let (text, others) = text.split_once(" With `").unwrap_or((text, ""));
    let mut paths = vec![test.path.as_str()];
    for name in others.split('`').step_by(2).filter(|name| !name.is_empty()) {
        let named = tests.iter().filter(|test| {
            test.path
                .strip_suffix(name)
                .is_some_and(|before| before.is_empty() || before.ends_with(['/', ':']))
        });
        let named: Vec<&str> = named.map(|test| test.path.as_str()).collect();
        match named[..] {
            [path] => paths.push(path),
            [] => return Err(format!("no test is `{name}`")),
            _ => {
                return Err(format!(
                    "`{name}` is the name of several tests; write `FILE.rs::{name}`"
                ));
            }
        }
    }
    Ok(Some(Promise {
        heading,
        text: text.strip_suffix('.').unwrap_or(text),
        tests: paths,
    }))
}

/// The tests of a file. Only comments and attributes stand between `#[test]` and its function.
fn tests(path: &str, text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let (mut comment, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(line) = line.strip_prefix("///") {
            comment.push(line.trim().to_owned());
        } else if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = line
            .strip_prefix("fn ")
            .and_then(|line| line.split_once('('))
            .filter(|_| is_test)
        {
            let path = format!("{path}::{}", name.0);
            tests.push(Test {
                path,
                comment: std::mem::take(&mut comment),
            });
            is_test = false;
        } else if !line.starts_with(['#', '/']) {
            comment.clear();
            is_test = false;
        }
    }
    tests
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const CODE: &str = "
    @ Promise (users): a fraction counts
    @ per node. With `b`, `x.rs::a`.
    #[test]
    #[ignore = \"long\"]
    fn a() {
    }

    #[test]
    fn b() {}
";
    const ROW: &str = "| a fraction counts per node | `y.rs::a` `y.rs::b` `x.rs::a` |\n";

    /// The text of a file, which this file itself does not have.
    fn code() -> String {
        CODE.replace('@', "///")
    }

    fn page() -> Page {
        let text = "# Promises\n\n## For users\n\n| old | `y.rs::a` |\n".to_owned();
        Page {
            path: PAGE.to_owned(),
            text,
        }
    }

    #[test]
    fn a_row_has_the_promise_and_its_tests() {
        let code = [("x.rs", "#[test]\nfn a() {".to_owned()), ("y.rs", code())];
        let mut pages = [page()];
        assert_eq!(update(&code, &mut pages), Vec::<String>::new());
        let text = &pages[0].text;
        assert!(text.contains(ROW) && !text.contains("old"), "{text}");
        let again = text.clone();
        update(&code, &mut pages);
        assert_eq!(pages[0].text, again);
    }

    #[test]
    fn a_test_that_is_gone_or_has_two_meanings_is_named() {
        for (name, why) in [
            ("c", "no test is `c`"),
            ("a", "is the name of several tests"),
        ] {
            let code = code().replace("x.rs::a", name);
            let code = [("x.rs", "#[test]\nfn a() {".to_owned()), ("y.rs", code)];
            let wrong = update(&code, &mut [page()]);
            assert!(wrong.len() == 1 && wrong[0].contains(why), "{wrong:?}");
        }
    }
}
