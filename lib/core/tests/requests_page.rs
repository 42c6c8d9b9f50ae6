//! The tables of docs/user/requests.md, row by row: a user's text, and its result with the sample configuration. The
//! table of submitters in docs/admin/neighbours.md: what their tools give to sbatch is a quarter of a GPU.

use gpufrac_core::config::Config;
use gpufrac_core::submit::{JobRequest, Occasion, Verdict, decide};

const PAGE: &str = include_str!("../../../docs/user/requests.md");
const NEIGHBOURS: &str = include_str!("../../../docs/admin/neighbours.md");
const SAMPLE: &str = include_str!("../../../etc/gpufrac.toml");

/// The cells of the table under a heading, without the header row.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, after) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("the page has no heading {heading:?}"));
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| row.trim_matches('|').split('|').map(cell).collect())
        .collect()
}

fn outcome(option: &str) -> Result<(String, String), String> {
    let config = Config::parse(SAMPLE, "etc/gpufrac.toml").expect("the sample is right");
    let (name, value) = option.split_once('=').expect("an option");
    // The form into which Slurm turns the value of these options.
    let gpus = format!("gpu:{value}");
    let request = JobRequest {
        partitions: Some("gpu"),
        tres_per_node: match name {
            "--gres" => Some(value),
            "--gpus-per-node" => Some(&gpus),
            _ => None,
        },
        tres_per_job: (name == "--gpus").then_some(&gpus),
        tres_per_task: (name == "--tres-per-task").then_some(value),
        ..JobRequest::default()
    };
    match decide(&config, &request, Occasion::Submit) {
        Ok(Verdict::Rewritten { text, note, .. }) => {
            Ok((text.replace("gres/", ""), note.unwrap_or_default()))
        }
        Ok(Verdict::Untouched) => Err("nothing is done".to_owned()),
        Err(refusal) => Err(refusal.to_string()),
    }
}

/// Promise (users): the tables of docs/user/requests.md show the counts that requests get.
/// With `refusals_are_worded_as_the_page_says`.
#[test]
fn requests_become_the_counts_in_the_manual() {
    let rows = table(PAGE, "### What you write");
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let [gres, counted, said] = row.as_slice() else {
            panic!("{row:?}");
        };
        assert_eq!(outcome(gres), Ok((counted.clone(), said.clone())), "{gres}");
    }
}

#[test]
fn refusals_are_worded_as_the_page_says() {
    let rows = table(PAGE, "### What is refused");
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let [gres, said] = row.as_slice() else {
            panic!("{row:?}");
        };
        assert_eq!(outcome(gres), Err(said.clone()), "{gres}");
    }
}

#[test]
fn submitters_get_a_quarter_as_the_page_says() {
    let rows = table(NEIGHBOURS, "## Submitting with other tools");
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let [tool, written, option, _] = row.as_slice() else {
            panic!("{row:?}");
        };
        let (_, gres) = option.split_once('=').expect("an option");
        assert!(written.contains(gres), "{tool}");
        let quarter = ("gpufrac:25,shard:25".to_owned(), String::new());
        assert_eq!(outcome(option), Ok(quarter), "{tool}");
    }
}
