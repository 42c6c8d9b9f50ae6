//! gpufrac reads slurm.conf as slurmctld does: random files of a grammar of what sites write, read by both.
//!
//! `GPUFRAC_SITES` and `GPUFRAC_TEST_SEED` set the number of files and the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpufrac_lab::{Lab, LabError};
use gpufrac_slurm_conf::{Counts, Running, Site, counts, read_conf};
use nix::sys::signal::Signal;
use test_seed::Dice;

/// Files of an everyday run.
const FILES: usize = 300;

/// The files that slurm.conf includes, one from the other, by the forms of their names in the lines.
const INCLUDED: [(&str, &str); 2] = [("more.%c", "more.lab"), ("last.conf", "last.conf")];

const GRES: [&str; 8] = [
    "gpu:4",
    "gpu:h100:2",
    "gpu:a100:1,gpu:h100:3",
    "gpu:2,shard:48",
    "gpu:h100:2,shard:h100:1K",
    "gpu:2,mps:200",
    "gpu:h100_3g.40gb:2,gpu:h100_1g.10gb:7",
    "tmp:5,gpu:8",
];

/// Random lines.
struct Writer {
    dice: Dice,
    /// The names of nodes so far, as lists.
    lists: Vec<String>,
    sets: Vec<String>,
    /// Whether this is no Slurm 22.05, which does not take `n[1-2]b`.
    is_recent: bool,
    /// Whether lists of nodes may have functions.
    has_functions: bool,
}

impl Writer {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.dice.below(of.len())]
    }

    /// A key and its value, in a form of the many that Slurm takes.
    fn pair(&mut self, key: &str, value: &str) -> String {
        let key = match self.dice.below(4) {
            0 => key.to_ascii_lowercase(),
            1 => key.to_ascii_uppercase(),
            _ => key.to_owned(),
        };
        let quoted = format!("\"{value}\"");
        let value = if value.contains(' ') || self.dice.one_in(6) { &quoted } else { value };
        let sign = self.one(&["=", "=", "=", " = ", "= ", "\t="]);
        format!("{key}{sign}{value}")
    }

    /// A line of these pairs, with blanks, continuations, comments and line ends of all kinds.
    fn line(&mut self, pairs: &[(&str, &str)]) -> String {
        let mut line = String::new();
        for (number, (key, value)) in pairs.iter().enumerate() {
            if number > 0 {
                line += self.one(&[" ", " ", "  ", "\t", " \\\n  ", " \\\n"]);
            }
            line += &self.pair(key, value);
        }
        line += self.one(&["", "", " ", " # a comment", "#x=1"]);
        line += self.one(&["\n", "\n", "\r\n"]);
        line
    }

    fn values(&mut self) -> Vec<(&'static str, &'static str)> {
        let mut pairs = Vec::new();
        for (key, values) in [
            ("Gres", &GRES[..]),
            ("RealMemory", &["1000", "2000", "512000"]),
            ("Weight", &["1", "7"]),
            (
                ["Feature", "Features"][self.dice.below(2)],
                &["gpu", "gpu,ib", "slow", "ib,slow"],
            ),
        ] {
            if self.dice.one_in(2) {
                pairs.push((key, self.one(values)));
            }
        }
        pairs
    }

    fn node(&mut self) -> String {
        if self.dice.one_in(4) {
            let mut pairs = vec![("NodeName", "DEFAULT")];
            pairs.extend(self.values());
            return self.line(&pairs);
        }
        let prefix = format!(
            "{}{}n",
            ["gn", "r-", "a"][self.dice.below(3)],
            self.lists.len()
        );
        let list = match self.dice.below(6) {
            0 => format!("{prefix}1"),
            1 => format!("{prefix}[01-03]"),
            2 => format!("{prefix}[1-2,4,08-10]"),
            3 => format!("{prefix}[1-2]x[1-2]"),
            4 if self.is_recent => format!("{prefix}a,{prefix}[3-4]b,,{prefix}c"),
            _ => format!("{prefix}a,{prefix}[3-4],,{prefix}c"),
        };
        self.lists.push(list.clone());
        let mut pairs = vec![("NodeName", list.as_str()), ("NodeAddr", "127.0.0.1")];
        pairs.extend(self.values());
        self.line(&pairs)
    }

    /// A list of nodes, sets, and what Slurm does not know; with repeated and empty items.
    ///
    /// `of_set`: the list of a set. slurmctld refuses most that name a set, and 22.05 knows no set of all nodes.
    fn members(&mut self, of_set: bool) -> String {
        let takes_sets = !of_set || self.dice.one_in(8);
        let takes_all = !of_set || self.is_recent;
        if takes_all && self.dice.one_in(8) {
            return self.one(&["ALL", "all"]).to_owned();
        }
        let mut items = Vec::new();
        for _ in 0..1 + self.dice.below(3) {
            let lists = match self.dice.below(3) {
                0 if takes_sets && !self.sets.is_empty() => &self.sets,
                _ if self.lists.is_empty() => continue,
                _ => &self.lists,
            };
            let item = lists[self.dice.below(lists.len())].clone();
            // slurmctld replaces a set once, and then knows no node of its name.
            if self.sets.contains(&item) && items.contains(&item) {
                continue;
            }
            items.push(item);
        }
        if self.has_functions && !of_set && self.dice.one_in(6) {
            items.push(format!("feature{{{}}}", self.one(&["gpu", "ib", "none"])));
        }
        if self.dice.one_in(3) {
            items.push(String::new());
        }
        items.join(self.one(&[",", ",", ",", ", ", ",,"]))
    }

    fn set(&mut self) -> String {
        let name = format!("set{}", self.sets.len());
        let members = self.members(true);
        let feature = self.one(&["gpu", "ib", "none"]);
        let mut pairs = vec![("NodeSet", name.as_str())];
        let kind = self.dice.below(3);
        if kind != 0 && !members.is_empty() {
            pairs.push(("Nodes", members.as_str()));
        }
        if kind != 1 {
            pairs.push(("Feature", feature));
        }
        let line = self.line(&pairs);
        self.sets.push(name);
        line
    }

    fn partition(&mut self, number: usize) -> String {
        let name = if self.dice.one_in(4) { "DEFAULT".to_owned() } else { format!("part{number}") };
        let members = self.members(false);
        let mut pairs = vec![("PartitionName", name.as_str())];
        if !members.is_empty() && !self.dice.one_in(5) {
            pairs.push(("Nodes", members.as_str()));
        }
        for (key, values) in [
            ("PriorityTier", ["5", "9"]),
            ("MaxTime", ["1-00:00:00", "7-00:00:00"]),
        ] {
            if self.dice.one_in(2) {
                pairs.push((key, self.one(&values)));
            }
        }
        self.line(&pairs)
    }

    /// The lines of slurm.conf and of the files that it includes, by the names of these.
    fn files(&mut self) -> BTreeMap<&'static str, String> {
        let mut files = BTreeMap::new();
        let names = ["slurm.conf", INCLUDED[0].1, INCLUDED[1].1];
        let count = 8 + self.dice.below(8);
        for (at, name) in names.into_iter().enumerate() {
            let text: &mut String = files.entry(name).or_default();
            let include = 1 + self.dice.below(count);
            for number in 0..count {
                *text += &match self.dice.below(4) {
                    0 | 1 => self.node(),
                    2 if number % 2 == 0 => self.set(),
                    _ => self.partition(at * 100 + number),
                };
                if number + 1 == include && at < INCLUDED.len() {
                    let word = self.one(&["Include", "include", "INCLUDE"]);
                    let _ = writeln!(text, "{word} {}", INCLUDED[at].0);
                }
            }
            if at + 1 == names.len() || !self.dice.one_in(2) {
                // A file may end without a line end.
                *text += &self.node();
                *text = text.trim_end().to_owned();
            }
        }
        files
    }
}

/// What is compared of a node or a partition.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    gres: Counts,
    memory: String,
    weight: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Partition {
    nodes: BTreeSet<String>,
    tier: String,
    time: String,
}

fn compared(site: &Site) -> (BTreeMap<String, Node>, BTreeMap<String, Partition>) {
    let nodes = site.nodes.iter().map(|node| {
        let value = |key| node.entry.get(key).unwrap_or("1").to_owned();
        let compared = Node {
            gres: counts(node.gres().unwrap_or_default()),
            memory: value("RealMemory"),
            weight: value("Weight"),
        };
        (node.name.clone(), compared)
    });
    let partitions = site.partitions.iter().map(|partition| {
        let value = |key| partition.entry.get(key);
        let compared = Partition {
            nodes: partition.nodes.iter().cloned().collect(),
            tier: value("PriorityTier").unwrap_or("1").to_owned(),
            time: value("MaxTime").unwrap_or("UNLIMITED").to_owned(),
        };
        (partition.name.clone(), compared)
    });
    (nodes.collect(), partitions.collect())
}

/// Promise (admins): nodes, partitions and counts of slurm.conf are read as slurmctld reads them: DEFAULT lines,
/// includes, node sets, lists with repeated and empty items, continuations, any case.
/// With `defaults_hold_for_the_lines_behind_them`, `node_sets_are_their_nodes`,
/// `slurms_own_lists_may_have_repeated_and_empty_items`.
#[test]
fn slurmctld_makes_the_same_nodes_and_partitions_of_random_files() -> Result<(), LabError> {
    let files = std::env::var("GPUFRAC_SITES").ok();
    let files = files.map_or(FILES, |count| count.parse().expect("a number"));
    let mut lab = Lab::builder().plugins(false).start()?;
    let slurm_conf = lab.folder().slurm_conf();
    let etc = lab.folder().etc();
    let text = fs::read_to_string(&slurm_conf).expect("the lab's slurm.conf");
    let is_of_site =
        |line: &&str| line.starts_with("NodeName") || line.starts_with("PartitionName");
    let mut base: Vec<&str> = text.lines().filter(|line| !is_of_site(line)).collect();
    base.retain(|line| !line.starts_with("GresTypes"));
    let base = base.join("\n");
    let mut dice = Dice::new(test_seed::seed());
    let mut refused = 0;
    for number in 0..files {
        let mut writer = Writer {
            dice: Dice::new(dice.throw(u64::MAX)),
            lists: Vec::new(),
            sets: Vec::new(),
            is_recent: crate::since(23, 11)?,
            has_functions: crate::since(24, 11)?,
        };
        let random = writer.files();
        for (name, text) in &random {
            let text = match *name {
                "slurm.conf" => format!("{base}\nGresTypes=gpu,shard,mps,tmp\n{text}"),
                _ => text.clone(),
            };
            fs::write(etc.join(name), text).expect("root may");
        }
        lab.stop_daemon("slurmctld", Signal::SIGKILL)?;
        let _ = fs::remove_dir_all(lab.folder().root().join("state"));
        fs::create_dir(lab.folder().root().join("state")).expect("root may");
        match lab.start_slurmctld() {
            // Such as a partition with a node that is in no line.
            Err(LabError::Ended { .. }) => {
                refused += 1;
                continue;
            }
            started => started?,
        }
        let show = |what| {
            lab.command("scontrol")
                .args(["-a", "-o", "show", what])
                .stdout()
        };
        let theirs = Running::parse("", &show("node")?, &show("partition")?);
        let theirs = compared(&Site::of_running(&theirs, None));
        let read = |path: &Path| fs::read_to_string(path);
        let ours = compared(&Site::of(&read_conf(&slurm_conf, &read).expect("readable")));
        assert_eq!(ours, theirs, "file {number}: {random:#?}");
    }
    eprintln!("{files} files, of which slurmctld refused {refused}");
    assert!(
        refused * 3 < files,
        "slurmctld refused {refused} of {files}"
    );
    Ok(())
}
