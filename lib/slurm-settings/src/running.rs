//! Reads the output of `scontrol show`, of any version. Unknown lines are skipped; unset values are None.

use std::collections::BTreeMap;

use gpufrac_core::slurm_release::SlurmRelease;

use super::conf::pairs;

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
    }
    records
}
