//! Reservations of GPUs on nodes of pools. Slurm cannot reserve shares of a GPU, or change a reservation of GPUs: it
//! takes all CPUs of the node, and from 26.05 on its own users get no fraction there.

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_slurm_conf::Record;

use super::super::Settings;
use super::read;

/// The fields that a new reservation takes over.
const KEPT: [&str; 7] = [
    "EndTime",
    "Nodes",
    "PartitionName",
    "Users",
    "Accounts",
    "Groups",
    "MaxStartDelay",
];
/// Flags that Slurm sets by itself.
const OWN_FLAGS: [&str; 2] = ["SPEC_NODES", "ALL_NODES"];

pub(in super::super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    for (name, record) in &settings.limits.reservations {
        let tres = read::gres(record.get("TRES").unwrap_or_default());
        let is_of_gpus = |gres: &&String| {
            let own = ["gpu", "shard", "mps", config.count_name.as_str()];
            own.contains(&gres.split(':').next().unwrap_or_default())
        };
        let gpus: Vec<String> = tres
            .iter()
            .filter(|(gres, _)| is_of_gpus(gres))
            .map(|(gres, count)| format!("gres/{gres}={count}"))
            .collect();
        let nodes = record
            .get("Nodes")
            .and_then(|nodes| Hostlist::parse(nodes).ok());
        let Some(nodes) = nodes.filter(|_| !gpus.is_empty()) else {
            continue;
        };
        let shared = nodes.names().iter().map(String::as_str);
        let shared: Vec<&str> = shared
            .filter(|node| !config.pools_of_node(node).is_empty())
            .collect();
        if shared.is_empty() {
            continue;
        }
        // A reservation of GPUs has nodes of a pool. Cure: The two `scontrol` of the hint, when none of its jobs runs.
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(format!("reservation {name}")),
            what: format!(
                "TRES={} on {}: Slurm reserves all CPUs of a node with GPUs, and from 26.05 on a fraction of the reservation's users waits for ever",
                gpus.join(","),
                hostlist::short(&shared)
            ),
            fix: format!(
                "a reservation of GPUs cannot be changed; when none of its jobs runs, reserve the nodes instead: {}",
                nodes_instead(name, record)
            ),
        });
    }
}

/// The commands that replace a reservation by one of its nodes.
fn nodes_instead(name: &str, record: &Record) -> String {
    let has_begun = record.get("State") == Some("ACTIVE");
    let start = record
        .get("StartTime")
        .filter(|_| !has_begun)
        .unwrap_or("now");
    let mut words = vec![
        format!("ReservationName={name}"),
        format!("StartTime={start}"),
    ];
    let kept = KEPT.into_iter();
    words.extend(kept.filter_map(|key| Some(format!("{key}={}", record.get(key)?))));
    let flags = record.get("Flags").unwrap_or_default().split(',');
    let flags: Vec<&str> = flags
        .filter(|flag| !flag.is_empty() && !OWN_FLAGS.contains(flag))
        .collect();
    if !flags.is_empty() {
        words.push(format!("Flags={}", flags.join(",")));
    }
    format!(
        "scontrol delete ReservationName={name} && scontrol create reservation {}",
        words.join(" ")
    )
}
