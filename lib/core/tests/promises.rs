//! Every test that docs/promises.md names exists.

use std::fs;
use std::path::Path;

#[test]
fn every_promise_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/promises.md")).expect("the page can be read");
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let tests = row.split('`').filter_map(|words| words.split_once("::"));
        for (file, test) in tests {
            let code = fs::read_to_string(root.join(file))
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            let head = format!("fn {test}(");
            let place = code
                .find(&head)
                .unwrap_or_else(|| panic!("no {test} in {file}"));
            // The `#[test]` attribute is directly above the function, with only other attributes between.
            let above = code[..place].trim_end().lines().rev();
            let mut attributes = above.take_while(|line| line.trim().starts_with("#["));
            assert!(
                attributes.any(|line| line.trim() == "#[test]"),
                "{test} in {file} is no test"
            );
            named += 1;
        }
        let title = row.starts_with("| promise |");
        assert!(
            title || row.contains("::"),
            "a promise without a test: {row}"
        );
    }
    assert!(named > 50, "{named} tests are named");
}
