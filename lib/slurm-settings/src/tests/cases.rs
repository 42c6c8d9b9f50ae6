//! Files of `lib/slurm-settings/src/cases`: each changes the right settings in `lib/slurm-settings/src/right`, and
//! lists all findings. `place` and `severity` are exact; `what` and `fix` are words in the finding.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::{World, place};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    expect: Vec<Expected>,
    change: Vec<Change>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    severity: String,
    place: String,
    what: String,
    fix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    file: String,
    from: String,
    to: String,
}

/// Compares a case with its findings; the error is the difference.
fn check(text: &str) -> Result<(), String> {
    let case: Case = toml::from_str(text).map_err(|error| error.to_string())?;
    if case.change.is_empty() {
        return Err("the case changes nothing".into());
    }
    let mut world = World::right();
    for Change { file, from, to } in &case.change {
        world.try_change(file, from, to)?;
    }
    let found = world.judge();
    let matches = found.len() == case.expect.len()
        && found.iter().zip(&case.expect).all(|(finding, expected)| {
            format!("{:?}", finding.severity).to_lowercase() == expected.severity
                && place(finding) == format!("/etc/slurm/{}", expected.place)
                && finding.what.contains(&expected.what)
                && finding.fix.contains(&expected.fix)
        });
    matches
        .then_some(())
        .ok_or_else(|| format!("other findings: {found:#?}"))
}

/// Promise (admins): `gpufrac check` names each wrong setting of Slurm with its place and its fix.
/// With `a_wrong_line_of_a_file_is_named`.
#[test]
fn each_case_has_its_findings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
    let mut wrong = String::new();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "toml", "{}", path.display());
        if let Err(error) = check(&fs::read_to_string(&path).unwrap()) {
            wrong += &format!("{}: {error}\n", path.display());
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 0, "no case in the folder");
}

#[test]
fn a_case_that_proves_nothing_is_refused() {
    let change =
        "[[change]]\nfile = \"slurm.conf\"\nfrom = \"ClusterName=c\"\nto = \"ClusterName=c\\n\"\n";
    let right = format!("expect = []\n{change}");
    assert_eq!(check(&right), Ok(()));
    let refused = |text: &str, why: &str| {
        let error = check(text).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(change, "missing field `expect`");
    refused("expect = []\nchange = []\n", "changes nothing");
    refused(&format!("expects = []\n{right}"), "unknown field `expects`");
    refused(&right.replace("\nto =", "\ninto ="), "unknown field `into`");
    refused(&right.replace("ClusterName=c\"\nto", "gpu\"\nto"), "times");
    refused(&right.replace("slurm.conf", "x.conf"), "no file x.conf");
    refused(
        &right.replace("ClusterName=c\\n", "JobRequeue=0"),
        "other findings",
    );
}
