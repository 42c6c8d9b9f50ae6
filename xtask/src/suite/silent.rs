//! No test passes in silence where something is missing: it says so by `test_seed::not_run`.

use std::fs;

use crate::words;
use xtask_front::cargo::root;

/// The lines of a file at which a test returns before it has compared anything: the branch has no other statement. A
/// property may return for a case that it does not cover, and a test `child` is the child process of other tests.
fn silent(text: &str) -> Vec<usize> {
    let (mut found, mut watched, mut is_test) = (Vec::new(), None, false);
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let code = line.trim();
        if code.starts_with("#[test]") {
            is_test = true;
        } else if is_test && code.starts_with("fn ") {
            let is_property = code.contains(" in ") || code.ends_with('(');
            let is_child = code.starts_with("fn child(");
            watched = (!is_property && !is_child).then(|| line.len() - line.trim_start().len());
            is_test = false;
        } else if watched.is_some_and(|indent| line.len() == indent + 1 && code == "}") {
            watched = None;
        }
        let returns = |code: &str| matches!(code, "return" | "return;" | "return Ok(());");
        let branch = code
            .strip_suffix("};")
            .and_then(|code| code.rsplit_once('{'));
        let here = returns(code) && before.ends_with('{')
            || branch.is_some_and(|(_, inner)| returns(inner.trim()));
        if here && watched.is_some() {
            found.push(number + 1);
        }
        if !code.starts_with("//") && !code.starts_with("eprintln!(") {
            before = code;
        }
    }
    found
}

#[test]
fn no_test_returns_in_silence() {
    let mut found = Vec::new();
    for file in words::texts().unwrap() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue;
        };
        if file.ends_with(".rs") {
            found.extend(silent(&text).iter().map(|line| format!("{file}:{line}")));
        }
    }
    let cure = "write test_seed::needed, needs_root or not_run, so that the test counts as skipped";
    assert!(found.is_empty(), "{cure}: {found:#?}");
}

#[test]
fn a_silent_return_is_seen_in_each_form() {
    let of = |body: &str| {
        silent(&format!(
            "#[test]\nfn a() {{\n{body}\n}}\nfn b() {{ return; }}"
        ))
    };
    let missing = "    let Some(x) = y() else {\n        return;\n    };";
    assert_eq!(of(missing), [4]);
    assert_eq!(of("    let Some(x) = y() else { return };"), [3]);
    assert_eq!(
        of("    if !root {\n        // Why.\n        return Ok(());\n    }"),
        [5]
    );
    assert_eq!(
        of("    if !root {\n        eprintln!(\"x\");\n        return;\n    }"),
        [5]
    );
    assert_eq!(
        of("    if x {\n        assert!(y);\n        return;\n    }"),
        [0; 0]
    );
    assert_eq!(silent(&format!("fn a() {{\n{missing}\n}}")), [0; 0]);
    assert_eq!(
        silent(&format!("#[test]\nfn child() {{\n{missing}\n}}")),
        [0; 0]
    );
    let property = format!("    #[test]\n    fn a(x in 0..9) {{\n{missing}\n    }}");
    assert_eq!(silent(&property), [0; 0]);
}
