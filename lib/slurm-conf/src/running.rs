//! Reads the output of `scontrol show`, of any version. Unknown lines are skipped; unset values are None.

use std::collections::BTreeMap;

use gpufrac_core::slurm_release::SlurmRelease;

use crate::conf::pairs;

/// The settings and records of a running Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Running {
    /// `scontrol show config` by lower-case key. Since 24.05 some keys have several values.
    config: BTreeMap<String, Vec<String>>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Record>,
    /// Partitions by name.
    pub partitions: BTreeMap<String, Record>,
}

/// The fields of a node or partition, by lower-case key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record(BTreeMap<String, String>);

impl Record {
    /// The value of a field; None if it is unset.
    pub fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(&key.to_ascii_lowercase())?;
        set(value)
    }

    /// All fields that are set, by lower-case key.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let fields = self.0.iter();
        let fields = fields.filter_map(|(key, value)| Some((key.clone(), set(value)?.to_owned())));
        fields.collect()
    }
}

/// None for each of Slurm's spellings of "not set".
fn set(value: &str) -> Option<&str> {
    match value.trim() {
        "" | "(null)" | "N/A" | "None" | "NONE" => None,
        value => Some(value),
    }
}

impl Running {
    /// Reads `scontrol show config`, `scontrol -o show node` and `scontrol -o show partition`.
    pub fn parse(config: &str, nodes: &str, partitions: &str) -> Running {
        let mut running = Running::default();
        for line in config.lines() {
            // `Prolog[0] = ...` since 24.05. Cgroup settings have their own names.
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let key = key.trim().split('[').next().unwrap_or_default();
            if let (false, Some(value)) = (key.is_empty(), set(value)) {
                let values = running.config.entry(key.to_ascii_lowercase()).or_default();
                values.push(value.to_owned());
            }
        }
        running.nodes = records(nodes, "NodeName");
        running.partitions = records(partitions, "PartitionName");
        running
    }

    /// The value of a setting; None if it is unset.
    pub fn get(&self, key: &str) -> Option<&str> {
        let values = self.config.get(&key.to_ascii_lowercase())?;
        values.first().map(String::as_str)
    }

    /// All values of a setting that may have several.
    pub fn all(&self, key: &str) -> Vec<&str> {
        let values = self.config.get(&key.to_ascii_lowercase());
        values.into_iter().flatten().map(String::as_str).collect()
    }

    /// The release of the running Slurm.
    pub fn release(&self) -> Option<SlurmRelease> {
        self.get("SLURM_VERSION")?.parse().ok()
    }
}

/// The reservations of `scontrol -o show reservation`, by name.
pub fn reservations(text: &str) -> BTreeMap<String, Record> {
    let lines = text.lines().filter_map(|line| {
        // `Flags=` may be empty, and the next field is not its value.
        let words = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        let fields = words.map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()));
        let record = Record(fields.collect());
        Some((record.get("ReservationName")?.to_owned(), record))
    });
    lines.collect()
}

/// Records that begin with this key, on one line each or on several.
fn records(text: &str, first: &str) -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    let mut name = None;
    for line in text.lines() {
        for (key, value) in pairs(line) {
            if key == first {
                name = Some(value.clone());
                records.entry(value.clone()).or_insert_with(Record::default);
            }
            let record = name.as_ref().and_then(|name| records.get_mut(name));
            if let Some(Record(values)) = record {
                values.insert(key.to_ascii_lowercase(), value);
            }
        }
        let record = name.as_ref().and_then(|name| records.get_mut(name));
        if let (Some(Record(values)), Some(reason)) = (record, reason(line)) {
            values.insert("reason".to_owned(), reason.to_owned());
        }
    }
    records
}

/// `Reason=` of a node, the one value with blanks: it ends before the user and the time, `[root@2026-11-25T00:00:00]`.
fn reason(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" Reason=")?;
    let signed = |at: &usize| {
        let until = rest[*at..].split(']').next();
        until.is_some_and(|signature| signature.contains('@'))
    };
    let mut brackets = rest.match_indices(" [").map(|(at, _)| at);
    Some(brackets.find(signed).map_or(rest, |end| &rest[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_node_is_whole() {
        for (shown, expected) in [
            (
                "NodeName=gn01 State=IDLE+DRAIN Reason=gpufrac: GPU 0 [A100] is off [root@2026-11-25T00:00:00] Comment=x",
                Some("gpufrac: GPU 0 [A100] is off"),
            ),
            (
                "NodeName=gn01\n   Reason=Prolog error [slurm@2026-11-25T00:00:00]\n",
                Some("Prolog error"),
            ),
            ("NodeName=gn01 Reason=broken", Some("broken")),
            ("NodeName=gn01 State=IDLE", None),
        ] {
            let running = Running::parse("", shown, "");
            assert_eq!(running.nodes["gn01"].get("Reason"), expected, "{shown}");
        }
    }
}
