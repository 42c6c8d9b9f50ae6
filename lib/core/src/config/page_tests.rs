//! The headings of the keys in gpufrac.toml(5), which are those of `keys`.

use super::keys::{self, Key};
use super::*;

const PAGE: &str = "../../docs/man/gpufrac.toml.5";

/// The tables as their headings in the page name them, with the keys that are described there.
fn tables() -> Vec<(&'static str, Vec<Key>)> {
    vec![
        ("Top level", keys::TOP.to_vec()),
        ("[gres]", keys::GRES.to_vec()),
        ("[paths]", keys::PATHS.to_vec()),
        ("[pool.NAME]", keys::POOL.to_vec()),
        ("[partition.NAME]", keys::PARTITION.to_vec()),
        ("[reaper]", [keys::POLICY, keys::REAPER].concat()),
        ("[reaper.breaker]", keys::BREAKER.to_vec()),
        ("[reaper.mail]", keys::MAIL.to_vec()),
        ("[reaper.rule.NAME]", keys::CONDITIONS.to_vec()),
        ("[hooks]", keys::HOOKS.to_vec()),
        ("[report]", [keys::REPORT, keys::PRICES].concat()),
        ("[web]", keys::WEB.to_vec()),
    ]
}

/// The page with the headings of the list.
fn written(page: &str) -> String {
    let mut known: Vec<Key> = Vec::new();
    let mut table = "";
    let mut lines: Vec<String> = Vec::new();
    let complete = |table: &str, left: &[Key]| {
        let left: Vec<&Key> = left.iter().filter(|key| !key.1.is_empty()).collect();
        assert!(left.is_empty(), "{table} does not describe {left:?}");
    };
    for line in page.lines() {
        if line.starts_with(".SS ") || line.starts_with(".SH ") {
            complete(table, &known);
            table = &line[4..];
            let found = tables().into_iter().find(|(name, _)| *name == table);
            known = found.map(|(_, keys)| keys).unwrap_or_default();
        }
        let is_heading = lines.last().is_some_and(|last| last == ".TP") && line.contains(" = ");
        let name = line.split(' ').nth(1).unwrap_or_default();
        if !is_heading {
            lines.push(line.to_owned());
            continue;
        }
        let place = known.iter().position(|key| key.0 == name);
        let place = place.unwrap_or_else(|| panic!("{table} has no key {name}: {line}"));
        let (name, shown) = known.remove(place);
        let shown = shown.replace('"', r"\(dq").replace('-', r"\-");
        lines.push(format!(".BR {name} \" = {shown}\""));
    }
    lines.join("\n") + "\n"
}

/// With `GPUFRAC_BLESS=1` it writes the page.
#[test]
fn the_page_has_the_headings_of_the_keys() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let written = written(&page);
    if std::env::var_os("GPUFRAC_BLESS").is_some() {
        return std::fs::write(PAGE, written).unwrap();
    }
    for (line, expected) in page.lines().zip(written.lines()) {
        assert_eq!(line, expected, "{PAGE}; write it with GPUFRAC_BLESS=1");
    }
}

#[test]
fn each_key_without_a_value_is_in_the_page() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    for (table, keys) in tables() {
        let (_, text) = page.split_once(&format!(".SS {table}\n")).unwrap();
        let text = text.split("\n.S").next().unwrap();
        for (name, _) in keys.iter().filter(|key| key.1.is_empty()) {
            let in_text = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            let of_table = format!("[{name}");
            let below = format!(".{name}");
            assert!(
                in_text.into_iter().any(|word| word == *name)
                    || page.contains(&of_table)
                    || page.contains(&below),
                "{table} does not describe {name}"
            );
        }
    }
}

/// Whether a file can have this line, if it has what else the line needs.
fn is_accepted(table: &str, key: &str, value: &str) -> bool {
    let table = table.replace("NAME", "p");
    let heading = if table == "Top level" { "" } else { &table };
    let bases = match table.as_str() {
        "[pool.p]" => vec![
            "mechanism = \"mig\"\nlayout = \"halves\"\n",
            "mechanism = \"mig\"\nlayout = \"uniform\"\nmenu = [0.25]\n",
            "mechanism = \"mps\"\ntenancy = \"shared\"\nburst_max = 1\n",
            "mechanism = \"timeslice\"\n",
            "mechanism = \"hami\"\n",
        ],
        "[reaper]" => vec!["", "signal = \"TERM\"\n"],
        _ => vec![""],
    };
    let full_key = match heading {
        "" => key.to_owned(),
        _ => format!("{}.{key}", &heading[1..heading.len() - 1]),
    };
    bases.into_iter().any(|base| {
        let others: Vec<&str> = base
            .lines()
            .filter(|line| !line.starts_with(&format!("{key} =")))
            .collect();
        let version = if key == "version" { "" } else { "version = 1\n" };
        let text = format!(
            "{version}{heading}\n{}\n{key} = {value}\n",
            others.join("\n")
        );
        let errors = Config::parse(&text, "gpufrac.toml").err();
        let mut errors = errors.iter().flat_map(|errors| &errors.0);
        errors.all(|error| error.key != full_key)
    })
}

#[test]
fn each_value_in_a_heading_is_accepted() {
    for (table, keys) in tables() {
        for (key, shown) in keys.iter().filter(|key| !key.1.is_empty()) {
            for value in shown.split(" | ") {
                assert!(is_accepted(table, key, value), "{table}: {key} = {value}");
            }
        }
    }
    assert!(!is_accepted("[pool.NAME]", "tenancy", "\"public\""));
    assert!(!is_accepted("[hooks]", "time_limit", "30"));
}
