//! What gpufrac.toml(5) says about the keys: values and defaults.

use super::*;

/// The start of a file with a table of this heading.
fn start(table: &str) -> String {
    let table = table.replace("NAME", "p");
    match table.split(" and ").next() {
        Some("Top level") | None => String::new(),
        Some(heading) => heading.to_owned(),
    }
}

/// The file with this line, in a table with these lines.
fn file(heading: &str, base: &str, key: &str, value: &str) -> Result<Config, ConfigErrors> {
    let others: Vec<&str> = base
        .lines()
        .filter(|line| !line.starts_with(&format!("{key} =")))
        .collect();
    let version = if key == "version" { "" } else { "version = 1\n" };
    let text = format!(
        "{version}{heading}\n{}\n{key} = {value}\n",
        others.join("\n")
    );
    Config::parse(&text, "gpufrac.toml")
}

/// Whether a file can have this line, if it has what else the line needs.
fn is_accepted(table: &str, key: &str, value: &str) -> bool {
    let heading = start(table);
    let bases = match heading.as_str() {
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
    let full_key = match heading.as_str() {
        "" => key.to_owned(),
        _ => format!("{}.{key}", &heading[1..heading.len() - 1]),
    };
    bases.into_iter().any(|base| {
        let errors = file(&heading, base, key, value).err();
        let mut errors = errors.iter().flat_map(|errors| &errors.0);
        errors.all(|error| error.key != full_key)
    })
}

#[test]
fn each_value_in_a_heading_is_accepted() {
    for (table, rows) in keys_of_page() {
        for DocumentedKey { name, values, .. } in rows.iter().filter(|row| !row.values.is_empty()) {
            for value in values.split(" | ") {
                assert!(is_accepted(table, name, value), "{table}: {name} = {value}");
            }
        }
    }
    assert!(!is_accepted("[pool.NAME]", "tenancy", "\"public\""));
    assert!(!is_accepted("[hooks]", "time_limit", "30"));
}

#[test]
fn each_default_in_the_page_is_that_of_the_code() {
    let other = "[pool.q]\nmechanism = \"timeslice\"\ngpu = \"T4-16\"\npartitions = [\"p\"]\nnodes = \"n1\"\n";
    let parse = |lines: &str| {
        let text = format!("version = 1\n{lines}{other}");
        Config::parse(&text, "gpufrac.toml").unwrap()
    };
    let mut seen = 0;
    for (table, rows) in keys_of_page() {
        let has_default = |row: &&DocumentedKey| {
            let without = ["no default", "example", "required"];
            !row.values.is_empty() && !without.iter().any(|word| row.notes.contains(word))
        };
        for row in rows.iter().filter(has_default) {
            let needed = match (table, row.name) {
                ("[pool.NAME]", "memory_limits" | "framework_hints" | "visible" | "cdi") => {
                    "mechanism = \"timeslice\"\ngpu = \"T4-16\"\npartitions = [\"b\"]\nnodes = \"n2\"\n".to_owned()
                }
                ("[pool.NAME]", _) => format!(
                    "mechanism = \"mig\"\nlayout = \"{}\"\nmenu = [0.5]\ngpu = \"H100-80\"\npartitions = [\"b\"]\nnodes = \"n2\"\n",
                    row.layouts[0]
                ),
                (_, "checkpoint") => "signal = \"TERM\"\n".to_owned(),
                _ => String::new(),
            };
            let value = row.notes.strip_prefix("default ").unwrap_or(&row.values);
            let without = parse(&format!("{}\n{needed}", start(table)));
            let with = parse(&format!(
                "{}\n{needed}{} = {value}\n",
                start(table),
                row.name
            ));
            assert_eq!(with, without, "{table}: {} = {value}", row.name);
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}
