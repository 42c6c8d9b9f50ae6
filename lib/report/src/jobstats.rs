//! Summaries of jobs for `AdminComment`, in the form of jobstats.

use std::collections::BTreeMap;

use gpufrac_slurm_conf::jobstats::{HEAD, pack, unpack};
use serde::{Deserialize, Serialize};

use crate::ledger::LedgerSlice;

/// How a part of an `AdminComment` begins that gpufrac wrote.
const OURS: &str = "gpufrac: ";
/// The text between such parts.
const PARTS: &str = " | ";
/// The version of summaries that gpufrac writes. jobstats' own have no such key, and its readers ignore it.
const VERSION: u32 = 1;
const MIB: u64 = 1 << 20;

/// A run of a job in accounting.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Seconds that it ran.
    pub elapsed: u64,
    /// Its CPUs and memory, where one node has all of them.
    pub host: Option<Host>,
}

/// CPUs and memory of a run on its node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// CPUs that it had.
    pub cpus: u64,
    /// Seconds of CPUs that it used.
    pub cpu_seconds: f64,
    /// Bytes that it had.
    pub memory: u64,
    /// Greatest number of bytes in use.
    pub peak: u64,
}

/// Whose a comment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's: it is empty.
    Nobody,
    /// gpufrac's: a summary, or why a job waited or was reclaimed.
    Gpufrac,
    /// jobstats' own.
    Jobstats,
    /// A person's, or another program's.
    Others,
}

impl Owner {
    /// Of the text in `AdminComment`.
    pub fn of(comment: &str) -> Owner {
        let comment = comment.trim();
        if comment.is_empty() {
            return Owner::Nobody;
        }
        if comment.starts_with(HEAD) {
            return match unpack::<Summary>(comment) {
                Some(summary) if summary.gpufrac.is_some() => Owner::Gpufrac,
                _ => Owner::Jobstats,
            };
        }
        if comment.split(PARTS).all(|part| part.starts_with(OURS)) {
            Owner::Gpufrac
        } else {
            Owner::Others
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Summary {
    nodes: BTreeMap<String, NodeSummary>,
    total_time: u64,
    gpus: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpufrac: Option<u32>,
}

/// A node's part; sources that are not known have no key.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeSummary {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_memory: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gpu_total_memory: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gpu_used_memory: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gpu_utilization: BTreeMap<String, f64>,
}

/// The summary of a run from its slices: each is a GPU to the readers, with the activity and the memory of the slice
/// itself. None unless each slice was measured: a reader takes a missing figure for 0.
pub fn summary(run: &Run, slices: &[LedgerSlice]) -> Option<String> {
    let mut summary = Summary {
        total_time: run.elapsed,
        gpus: slices.len(),
        gpufrac: Some(VERSION),
        ..Summary::default()
    };
    for held in slices {
        let utilization = utilization(held)?;
        let node = summary.nodes.entry(held.node.clone()).or_default();
        // jobstats has the number of the GPU here.
        let device = held.device.unwrap_or(0).to_string();
        let name = if node.gpu_utilization.contains_key(&device) {
            format!("{device}.{}", held.slice)
        } else {
            device
        };
        // The readers divide one by the other.
        if let (Some(all), Some(peak)) =
            (held.memory_mib.filter(|&all| all > 0), held.peak_memory_mib)
        {
            node.gpu_total_memory.insert(name.clone(), all * MIB);
            node.gpu_used_memory
                .insert(name.clone(), peak.min(all) * MIB);
        }
        node.gpu_utilization.insert(name, utilization);
    }
    if let (Some(host), 1) = (run.host, summary.nodes.len()) {
        for node in summary.nodes.values_mut() {
            node.cpus = Some(host.cpus);
            node.total_time = Some(host.cpu_seconds);
            node.total_memory = Some(host.memory);
            node.used_memory = Some(host.peak);
        }
    }
    (summary.gpus > 0).then(|| pack(&summary)).flatten()
}

/// Percent of the slice, with one decimal as jobstats has it.
fn utilization(held: &LedgerSlice) -> Option<f64> {
    let known = held.busy + held.idle;
    let by_time = (known > 0).then(|| held.busy as f64 / known as f64);
    let share = held.activity.or(by_time)?;
    Some((1000.0 * share.clamp(0.0, 1.0)).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `jobstats -b` of version 1.0.0 wrote it, without a key of gpufrac.
    fn of_jobstats() -> String {
        let summary = Summary {
            total_time: 60,
            gpus: 1,
            ..Summary::default()
        };
        pack(&summary).unwrap()
    }

    fn held(device: u32, activity: Option<f64>) -> LedgerSlice {
        LedgerSlice {
            device: Some(device),
            activity,
            busy: 0,
            idle: 0,
            memory_mib: Some(20_096),
            peak_memory_mib: Some(5_024),
            node: "n1".to_owned(),
            ..LedgerSlice::default()
        }
    }

    const RUN: Run = Run {
        elapsed: 100,
        host: None,
    };

    #[test]
    fn a_summary_says_how_each_slice_was_used() {
        let slices = [held(3, Some(0.256)), held(4, Some(1.0))];
        let text = summary(&RUN, &slices).unwrap();
        let json: Summary = unpack(&text).unwrap();
        assert_eq!((json.gpus, json.total_time), (2, 100));
        let node = &json.nodes["n1"];
        assert_eq!(node.gpu_utilization["3"], 25.6);
        assert_eq!(node.gpu_used_memory["4"], 5_024 << 20);
        assert_eq!(node.cpus, None);
        let host = Host {
            cpus: 4,
            cpu_seconds: 200.5,
            memory: 1 << 30,
            peak: 1 << 20,
        };
        let run = Run {
            host: Some(host),
            ..RUN
        };
        let text = summary(&run, &slices).unwrap();
        let json: Summary = unpack(&text).unwrap();
        assert_eq!(json.nodes["n1"].total_time, Some(200.5));
    }

    #[test]
    fn a_job_with_a_slice_that_was_not_measured_has_no_summary() {
        assert_eq!(summary(&RUN, &[held(3, Some(0.5)), held(4, None)]), None);
        assert_eq!(summary(&RUN, &[]), None);
        let by_time = LedgerSlice {
            busy: 25,
            idle: 75,
            ..held(3, None)
        };
        assert!(summary(&RUN, &[by_time]).is_some());
    }

    /// Promise (admins): summaries for jobstats have the activity of each slice, replace no text of others, and are
    /// read by reportseff and job_defense_shield.
    /// With `summaries_of_slices_are_read_by_reportseff_and_job_defense_shield`,
    /// `a_job_with_a_slice_that_was_not_measured_has_no_summary`.
    #[test]
    fn only_gpufracs_own_texts_and_no_text_are_replaced() {
        let own = summary(&RUN, &[held(3, Some(0.5))]).unwrap();
        for (comment, expected) in [
            ("", Owner::Nobody),
            (own.as_str(), Owner::Gpufrac),
            ("gpufrac: prolog: the job waits", Owner::Gpufrac),
            (
                "gpufrac: prolog: it waits | gpufrac: job 7 is idle",
                Owner::Gpufrac,
            ),
            ("ticket 7 | gpufrac: job 7 is idle", Owner::Others),
            ("ticket 7", Owner::Others),
            (&of_jobstats(), Owner::Jobstats),
            ("JS1:Short", Owner::Jobstats),
            ("JS1:None", Owner::Jobstats),
            ("JS1:H4sIAAAA damaged", Owner::Jobstats),
        ] {
            assert_eq!(Owner::of(comment), expected, "{comment}");
        }
    }
}
