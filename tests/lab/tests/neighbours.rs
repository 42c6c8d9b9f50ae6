//! What tools of others read in the texts that Slurm shows: each tool's own expression, over the texts that
//! `tests/lab/tests/e2e/neighbours.rs` recorded and holds against real Slurm. docs/admin/neighbours.md has the table;
//! `GPUFRAC_RECORD=1` writes it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

const SERIES: [&str; 3] = ["22.05", "24.11", "26.05"];
const POOLS: [&str; 4] = ["halves", "uniform", "mps", "whole"];
const SUBJECTS: [&str; 5] = ["node", "in use", "job 1", "job 0.5", "job 0.25"];

/// A tool, and one of its readers.
struct Tool {
    name: &'static str,
    /// What it reads: a source of the records for each subject, `job` for all jobs.
    sources: &'static [(&'static str, &'static str)],
    read: fn(&str) -> u64,
}

fn number(text: &str) -> u64 {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().unwrap_or(0)
}

/// The sum of all that an expression finds.
fn sum(expression: &str, text: &str) -> u64 {
    let expression = Regex::new(expression).unwrap();
    expression
        .captures_iter(text)
        .map(|found| number(&found[1]))
        .sum()
}

/// The first that an expression finds.
fn first(expression: &str, text: &str) -> u64 {
    let found = Regex::new(expression).unwrap().captures(text);
    found.map_or(0, |found| number(&found[1]))
}

/// `gpus_from_gres` of lib/ood_core/job/adapters/slurm.rb, from 0.31 on.
fn open_ondemand(text: &str) -> u64 {
    sum(r"gpu[s:]*[\w()-]*[=:]?(\d+)(?:[(,]|$)", text)
}

/// The same before 0.31.
fn open_ondemand_before(text: &str) -> u64 {
    sum(r"gpu[^(,]*[:=](\d+)", text)
}

/// `getGpuCountFromTres` of classes/Xdmod/SlurmResourceParser.php: the first `gres/gpu`, with or without a Type.
fn xdmod(text: &str) -> u64 {
    first(r"(?:^|,)gres/gpu(?::[^,=]*)?=(\d+)", text)
}

/// `gpus_per_job` of src/job_defense_shield/utils.py.
fn job_defense_shield(text: &str) -> u64 {
    first(r"gres/gpu=(\d+)", text)
}

/// `__get_job_info` of jobstats.py: the last part with `gres/gpu=`, unless there are none.
fn jobstats(text: &str) -> u64 {
    let mut parts = text.split(',').filter(|part| part.contains("gres/gpu="));
    parts
        .next_back()
        .map_or(0, |part| number(part.rsplit('=').next().unwrap()))
}

/// `ParseTotalGPUs` of vpenso's gpus.go: a bare number behind `gpu:`, else nothing.
fn vpenso(text: &str) -> u64 {
    let bare = text.strip_prefix("gpu:").unwrap_or(text);
    bare.split('(').next().unwrap().parse().unwrap_or(0)
}

/// `parseGPUCount` of SckyzO's internal/collector/gpus.go.
fn sckyzo_nodes(text: &str) -> u64 {
    let token = Regex::new(r"^(\w+):(?:(\(null\)|[^:(]*):)?(\d+)(?:\([^)]*\))?$").unwrap();
    let tokens = outside_of_parentheses(text);
    let found = tokens.iter().filter_map(|text| token.captures(text.trim()));
    found
        .filter(|found| &found[1] == "gpu")
        .map(|found| number(&found[3]))
        .sum()
}

/// `parseGPUsFromTRES` of SckyzO's internal/collector/accounts.go.
fn sckyzo_accounts(text: &str) -> u64 {
    first(r"gres[:/]gpu[^,\s]*[:/=](\d+)", text)
}

/// `SetNodeGPUTotal` of lcrownover's internal/api/models.go.
fn lcrownover(text: &str) -> u64 {
    let mut parts = text.split(',').filter(|part| part.contains("gres/gpu="));
    parts
        .next()
        .map_or(0, |part| number(part.split('=').nth(1).unwrap()))
}

/// `node_gres_extract_gpus` of slurmweb/slurmrestd/__init__.py.
fn slurm_web_nodes(text: &str) -> u64 {
    let items = text.split(',').map(|item| item.split('(').next().unwrap());
    let gpus = items.filter(|item| item.split(':').next() == Some("gpu"));
    gpus.map(|item| number(item.rsplit(':').next().unwrap()))
        .sum()
}

/// `countGPUTRESRequest` of frontend/src/composables/GatewayAPI.ts, over each text of `gres_detail`.
fn slurm_web_jobs(text: &str) -> u64 {
    let items = text
        .split([' ', ','])
        .map(|item| item.split('(').next().unwrap().replace('=', ":"));
    let count = |item: String| {
        let parts: Vec<&str> = item.split(':').collect();
        match parts[..] {
            ["gpu" | "gres/gpu", count] => number(count),
            ["gpu" | "gres/gpu", _, count, ..] => number(count),
            _ => 0,
        }
    };
    items.map(count).sum()
}

/// A value of OpenMetrics.
fn metric(text: &str) -> u64 {
    number(text.trim())
}

/// The text cut at the commas outside of parentheses.
fn outside_of_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && c == ','
    })
    .collect()
}

const TOOLS: [Tool; 11] = [
    Tool {
        name: "Open OnDemand from 0.31",
        sources: &[
            ("node", "sinfo gres"),
            ("in use", "sinfo gresused"),
            ("job", "squeue tres-per-node"),
        ],
        read: open_ondemand,
    },
    Tool {
        name: "Open OnDemand before 0.31",
        sources: &[
            ("node", "sinfo gres"),
            ("in use", "sinfo gresused"),
            ("job", "squeue tres-per-node"),
        ],
        read: open_ondemand_before,
    },
    Tool {
        name: "XDMoD",
        sources: &[("job", "sacct AllocTRES")],
        read: xdmod,
    },
    Tool {
        name: "job_defense_shield",
        sources: &[("job", "sacct AllocTRES")],
        read: job_defense_shield,
    },
    Tool {
        name: "jobstats",
        sources: &[("job", "sacct AllocTRES")],
        read: jobstats,
    },
    Tool {
        name: "slurm_exporter of vpenso",
        sources: &[("node", "sinfo %G")],
        read: vpenso,
    },
    Tool {
        name: "slurm_exporter of SckyzO",
        sources: &[("node", "sinfo gres"), ("in use", "sinfo gresused")],
        read: sckyzo_nodes,
    },
    Tool {
        name: "slurm_exporter of SckyzO, accounts",
        sources: &[("job", "squeue tres-alloc")],
        read: sckyzo_accounts,
    },
    Tool {
        name: "slurm-exporter of lcrownover",
        sources: &[("node", "json tres"), ("in use", "json tres_used")],
        read: lcrownover,
    },
    Tool {
        name: "Slurm-web",
        sources: &[("node", "json gres"), ("in use", "json gres_used")],
        read: slurm_web_nodes,
    },
    Tool {
        name: "Slurm-web, jobs",
        sources: &[("job", "json gres_detail")],
        read: slurm_web_jobs,
    },
];

/// slurmctld's own numbers, which no tool has to read out of a text.
const METRICS: Tool = Tool {
    name: "slurmctld's own metrics",
    sources: &[
        ("node", "metrics slurm_node_gpus"),
        ("in use", "metrics slurm_node_gpus_alloc"),
    ],
    read: metric,
};

/// The texts of one series and name: by pool, subject and source.
type Record = BTreeMap<(String, String, String), String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn record(series: &str, name: &str) -> Record {
    let path = root().join(format!("tests/lab/tests/neighbours/{series}-{name}.tsv"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let row = |line: &str| {
        let [pool, subject, source, shown] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        (
            (pool.to_owned(), subject.to_owned(), source.to_owned()),
            shown.to_owned(),
        )
    };
    text.lines().map(row).collect()
}

/// What a tool reads on one series; None where Slurm shows no such text.
fn reading(tool: &Tool, record: &Record, pool: &str, subject: &str) -> Option<u64> {
    let is_of = |key: &str| key == subject || key == "job" && subject.starts_with("job ");
    let (_, source) = tool.sources.iter().find(|(key, _)| is_of(key))?;
    let subject = if subject == "in use" { "node" } else { subject };
    let key = (pool.to_owned(), subject.to_owned(), (*source).to_owned());
    record.get(&key).map(|text| (tool.read)(text))
}

/// What there is: GPUs of the node, GPUs that jobs have whole, GPUs of the job; 0 for a part of one, which is no whole
/// number.
fn truth(pool: &str, subject: &str) -> u64 {
    match subject {
        "node" => 8,
        "in use" => u64::from(pool != "halves"),
        "job 1" => 1,
        _ => 0,
    }
}

fn is_fraction(subject: &str) -> bool {
    matches!(subject, "job 0.5" | "job 0.25")
}

/// Readings on all series: one number where they agree.
fn shown(readings: &[Option<u64>]) -> String {
    let texts: Vec<String> = readings
        .iter()
        .map(|reading| reading.map_or("-".into(), |number| number.to_string()))
        .collect();
    let mut numbers: Vec<&String> = texts.iter().filter(|text| *text != "-").collect();
    numbers.dedup();
    match numbers[..] {
        [] => String::new(),
        [only] => only.clone(),
        _ => texts.join(" / "),
    }
}

/// How many readings of whole GPUs and of fractions there are, and how many are wrong.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    whole: [usize; 2],
    fractions: [usize; 2],
}

/// A reading that is not what there is.
#[derive(Debug)]
struct Wrong {
    tool: &'static str,
    series: &'static str,
    pool: &'static str,
    subject: &'static str,
    reads: u64,
}

fn judged(name: &str) -> (Sum, Vec<Wrong>) {
    let (mut all, mut wrong) = (Sum::default(), Vec::new());
    for series in SERIES {
        let record = record(series, name);
        for tool in TOOLS.iter().chain([&METRICS]) {
            for (pool, subject) in cells() {
                let Some(reads) = reading(tool, &record, pool, subject) else {
                    continue;
                };
                let sum = if is_fraction(subject) { &mut all.fractions } else { &mut all.whole };
                sum[1] += 1;
                if reads != truth(pool, subject) {
                    sum[0] += 1;
                    wrong.push(Wrong {
                        tool: tool.name,
                        series,
                        pool,
                        subject,
                        reads,
                    });
                }
            }
        }
    }
    (all, wrong)
}

fn cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    POOLS
        .into_iter()
        .flat_map(|pool| SUBJECTS.map(|subject| (pool, subject)))
}

/// Why a reading with the name `frac` is still wrong; each stands in the page.
fn reason(wrong: &Wrong) -> Option<&'static str> {
    match wrong {
        Wrong {
            tool: "slurm_exporter of vpenso",
            ..
        } => Some("reads no GPU that has a Type"),
        Wrong {
            pool: "halves",
            subject: "node",
            reads: 16,
            ..
        } => Some("each half is a device of Slurm"),
        Wrong {
            series: "22.05",
            pool: "uniform" | "mps",
            subject: "job 1" | "in use",
            ..
        } => Some("before Slurm 23.11.5 a whole GPU of such a pool is counted in shares"),
        _ => None,
    }
}

fn table() -> String {
    let mut text =
        "| tool | reads | halves | uniform | mps | whole |\n|---|---|---|---|---|---|\n".to_owned();
    let records = |name| SERIES.map(|series| record(series, name));
    let (before, after) = (records("gpufrac"), records("frac"));
    for tool in TOOLS.iter().chain([&METRICS]) {
        for subject in SUBJECTS {
            let cell = |pool| {
                let of = |records: &[Record; 3]| {
                    let readings = records
                        .each_ref()
                        .map(|record| reading(tool, record, pool, subject));
                    shown(&readings)
                };
                match (of(&before), of(&after)) {
                    (before, after) if before == after => after,
                    (before, after) => format!("{before} → {after}"),
                }
            };
            let cells = POOLS.map(cell);
            if cells.iter().any(|cell| !cell.is_empty()) {
                let _ = writeln!(
                    text,
                    "| {} | {subject} | {} |",
                    tool.name,
                    cells.join(" | ")
                );
            }
        }
    }
    let line = |name: &str| {
        let (sum, _) = judged(name);
        let ([wrong, of], [wrong_fractions, of_fractions]) = (sum.whole, sum.fractions);
        format!(
            "`{name}`: {wrong} of {of} readings of whole GPUs are wrong, {wrong_fractions} of {of_fractions} of fractions."
        )
    };
    let _ = write!(
        text,
        "\n{}\n{}\n{} {}\n",
        line("gpufrac"),
        line("frac"),
        line("types"),
        other_readings("frac", "types")
    );
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for wrong in &judged("frac").1 {
        *reasons.entry(reason(wrong).unwrap_or("?")).or_default() += 1;
    }
    let _ = writeln!(text, "\nWrong with `frac`, and why:\n");
    for (reason, count) in reasons {
        let _ = writeln!(text, "- {count}: {reason}");
    }
    text
}

/// The readings that differ between two records.
fn other_readings(one: &str, other: &str) -> String {
    let mut differ: BTreeMap<&str, usize> = BTreeMap::new();
    for series in SERIES {
        let (one, other) = (record(series, one), record(series, other));
        for tool in TOOLS.iter().chain([&METRICS]) {
            for (pool, subject) in cells() {
                let read = |record| reading(tool, record, pool, subject);
                if read(&one) != read(&other) {
                    *differ.entry(tool.name).or_default() += 1;
                }
            }
        }
    }
    if differ.is_empty() {
        format!("Each reading is that of `{one}`.")
    } else {
        let tools = differ
            .iter()
            .map(|(tool, count)| format!("{tool} ({count})"));
        format!(
            "Other readings than of `{one}`: {}.",
            tools.collect::<Vec<_>>().join(", ")
        )
    }
}

/// Promise (admins): tools of others read what docs/admin/neighbours.md says, in the texts that real Slurm shows.
/// With `each_wrong_reading_has_its_reason`, `the_expressions_read_what_their_tools_read`,
/// `slurm_shows_what_is_recorded`, `slurm_shows_what_is_recorded_by_another_name`.
#[test]
fn the_page_has_what_each_tool_reads() {
    let path = root().join("docs/admin/neighbours.md");
    let page = fs::read_to_string(&path).unwrap();
    let marks = ["<!-- readings -->\n", "<!-- end of readings -->\n"];
    let (head, rest) = page.split_once(marks[0]).unwrap();
    let (known, tail) = rest.split_once(marks[1]).unwrap();
    let table = table();
    if std::env::var_os("GPUFRAC_RECORD").is_some() {
        fs::write(&path, [head, marks[0], &table, marks[1], tail].concat()).unwrap();
    } else {
        assert_eq!(known, table);
    }
}

#[test]
fn each_wrong_reading_has_its_reason() {
    let page = fs::read_to_string(root().join("docs/admin/neighbours.md")).unwrap();
    let (_, wrong) = judged("frac");
    for wrong in &wrong {
        let reason = reason(wrong).unwrap_or_else(|| panic!("{wrong:?}"));
        assert!(page.contains(reason), "{reason}");
    }
    assert!(
        wrong.iter().all(|wrong| !is_fraction(wrong.subject)),
        "{wrong:?}"
    );
}

#[test]
fn the_expressions_read_what_their_tools_read() {
    // Of the tools' own tests and comments.
    for (text, gpus) in [
        ("gres:gpu:v100-32g:2,gres:pfsdir:1", 2),
        ("gres/gpu:v100-32g=2,gres:gpu:1,gres/gpu:v100-32g=4", 7),
        ("gpu:a100:3(IDX:0,2-3),mps:0", 3),
        ("gpu:(null):4(IDX:0-3)", 4),
        ("gpu:4(S:0-3)", 4),
    ] {
        assert_eq!(open_ondemand(text), gpus, "{text}");
    }
    let tres = "billing=112,cpu=112,gres/gpu=32,mem=33600M,node=2";
    for read in [
        xdmod,
        job_defense_shield,
        jobstats,
        lcrownover,
        sckyzo_accounts,
    ] {
        assert_eq!(read(tres), 32);
    }
    assert_eq!(sckyzo_nodes("gpu:A30:4(S:0-1),gpu:Q6K:40(S:0-1)"), 44);
    assert_eq!(slurm_web_nodes("gpu:A30:4(S:0-1),gpu:2"), 6);
    assert_eq!(slurm_web_jobs("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)"), 6);
    assert_eq!([vpenso("gpu:8(S:0-1)"), vpenso("gpu:a100:8")], [8, 0]);
    // Names that begin with `gpu` are GPUs to some.
    assert_eq!(open_ondemand("gpufrac:25,shard:25"), 25);
    assert_eq!(open_ondemand("frac:25,shard:25"), 0);
}

/// The expression of a patch: of its line that is added.
fn expression_of(patch: &str, open: char, close: char) -> String {
    let path = root().join("contrib/neighbours").join(patch);
    let text = fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("+ ") || line.starts_with("+\t"));
    let (_, rest) = line.unwrap().split_once(open).unwrap();
    let (expression, _) = rest.rsplit_once(close).unwrap();
    expression.to_owned()
}

/// Promise (admins): the expressions of contrib/neighbours read fractions as no GPUs, and GPUs as before.
#[test]
fn the_patches_read_names_whole() {
    let ood = expression_of("ood_core.patch", '/', '/');
    let accounts = expression_of("slurm_exporter.patch", '`', '`');
    for series in SERIES {
        // The name that a patch is for.
        for ((pool, subject, source), text) in &record(series, "gpufrac") {
            if subject.starts_with("job 0") && source.as_str() == "squeue tres-per-node" {
                assert_eq!(sum(&ood, text), 0, "{series} {pool} {subject}: {text}");
            }
            if subject.starts_with("job 0") && source.as_str() == "squeue tres-alloc" {
                assert_eq!(
                    first(&accounts, text),
                    0,
                    "{series} {pool} {subject}: {text}"
                );
            }
        }
        for ((pool, subject, source), text) in &record(series, "frac") {
            if source.as_str() == "sinfo gres" {
                assert_eq!(
                    sum(&ood, text),
                    open_ondemand(text),
                    "{series} {pool} {subject}: {text}"
                );
            }
            if source.as_str() == "squeue tres-alloc" {
                assert_eq!(first(&accounts, text), sckyzo_accounts(text), "{text}");
            }
        }
    }
    // Of the tools' own tests.
    for text in [
        "gres:gpu:v100-32g:2,gres:pfsdir:1",
        "gres:third-thing:sub-thing:17,gres:pfsdir:1,gres:gpu:v100-32g:2",
        "gres/gpu:v100-32g=2,gres:gpu:1,gres/gpu:v100-32g=4",
        "gpu:p100:1,nsight:no_consume:1",
        "gpu:a100:3(IDX:0,2-3),mps:0",
        "gpu:(null):1(IDX:0)",
        "gpu:4(S:0-3)",
        "gres:pfsdir:ess",
        "N/A",
    ] {
        assert_eq!(sum(&ood, text), open_ondemand(text), "{text}");
    }
    for text in [
        "gres/gpu=4",
        "gres/gpu:a100=2",
        "cpu=8,gres/gpu=8",
        "gres/gpu:4",
        "gres/gpu:a100:2",
    ] {
        assert_eq!(first(&accounts, text), sckyzo_accounts(text), "{text}");
    }
}
