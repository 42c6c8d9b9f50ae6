//! Judges the devices and counts of each node with a pool: in gres.conf, in `Gres=` of slurm.conf, and in slurmctld.

mod gres_conf;
mod without_pool;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist;

use super::Settings;
use super::gpu_count::{self, GpuCount, Gpus};
use super::gres_lines::{NodeLines, is_own_type};
use super::near;
use gpufrac_slurm_conf::{Counts, Record, SlurmNode, counts};
pub(super) use gres_conf::{is_wrong as is_wrong_in_gres_conf, refused};

/// The place of findings about slurmctld's node records.
const NODE_RECORD: &str = "scontrol show node";

/// Stands for the names of the nodes in a finding until all nodes that have it are known. No text of Slurm has it.
const NODES: &str = "\0";

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let mut groups: Vec<(Finding, Vec<&str>)> = Vec::new();
    let only = settings.only.as_deref();
    let nodes = of_pools(config).into_iter();
    for node in nodes.filter(|name| only.is_none_or(|only| only == *name)) {
        for finding in findings(settings, config, node) {
            hostlist::group(&mut groups, finding, node);
        }
    }
    let groups = groups.into_iter();
    found.extend(groups.map(|(finding, nodes)| named(finding, &hostlist::short(&nodes))));
    if settings.only.is_none() {
        without_pool::judge(settings, config, found);
    }
}

/// The nodes of all pools, each once.
pub(super) fn of_pools(config: &Config) -> Vec<&str> {
    let mut seen = HashSet::new();
    let names = config.pools.iter().flat_map(|pool| pool.nodes.names());
    let names = names.map(String::as_str);
    names.filter(|name| seen.insert(*name)).collect()
}

/// The lines that a node needs; None if its number of GPUs is unknown.
pub(super) fn wanted(
    settings: &Settings,
    config: &Config,
    node: &str,
    told: Gpus,
) -> Option<GresLines> {
    let known = || gpu_count::of(settings, config, node).number();
    expected(settings, config, node, told.told.or_else(known)?)
}

/// The finding for these nodes, a hostlist.
fn named(mut finding: Finding, nodes: &str) -> Finding {
    finding.what = finding.what.replace(NODES, nodes);
    finding.fix = finding.fix.replace(NODES, nodes);
    finding
}

/// Whether a `Gres=` differs from the needed one. `lines`: gres.conf, which has the GPUs without a pool.
pub(super) fn is_wrong_gres(wanted: &GresLines, gres: Option<&str>, lines: &NodeLines) -> bool {
    let right = counts(&wanted.gres);
    let is = counts(gres.unwrap_or_default());
    let has_share = |name: &&str| is.contains_key(&("shard".to_owned(), (*name).to_owned()));
    differs(&right, gres).is_some()
        || types_of_shares(&right, gres).is_some()
        || !lines.plain_gpus().keys().all(has_share)
}

/// As [`is_wrong_gres`], for slurmctld's record, which has no Types of shares.
pub(super) fn is_wrong_in_running(wanted: &GresLines, gres: Option<&str>) -> bool {
    differs(&counts(&wanted.gres), gres).is_some()
}

/// The findings about a node, with [`NODES`] for its name.
fn findings(settings: &Settings, config: &Config, node: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let files = settings.files.as_ref();
    let (line, record) = (settings.line_of_node(node), settings.record_of_node(node));
    if line.is_none() && record.is_none() {
        // Dynamic nodes (`slurmd -Z`) register by themselves, so they need no line.
        let comes_and_goes = settings.value("MaxNodeCount").is_some();
        found.push(Finding::at(
            settings.slurm_conf(),
            if comes_and_goes { Severity::Warning } else { Severity::Error },
            format!("gpufrac.toml has a pool on {NODES}, which Slurm does not know"),
            "correct the `nodes` of the pool, or add the nodes to slurm.conf",
        ));
        return found;
    }
    let count = gpu_count::of(settings, config, node);
    let wanted = count
        .number()
        .and_then(|count| expected(settings, config, node, count));
    let Some(wanted) = wanted else {
        let place = line.map_or(NODE_RECORD.into(), |line| line.entry.place().to_string());
        let (what, fix) = uncounted(&count);
        found.push(Finding::at(place, Severity::Error, what, fix));
        return found;
    };
    if let Some(files) = files {
        let lines = NodeLines::of(&files.gres, node, &config.count_name);
        let release = settings.release();
        gres_conf::judge(node, &files.gres, &lines, &wanted, release, &mut found);
        let gres = line.and_then(SlurmNode::gres).map(counts);
        found.extend(gres_conf::no_share(&files.gres, &lines, gres.as_ref()));
        found.extend(gres_conf::instances_beside(&files.gres, &lines, release));
    }
    let right = counts(&wanted.gres);
    let right_line = format!("Gres={}", wanted.gres);
    let mut wrong_file = false;
    if let Some(line) = line {
        let gres = line.gres();
        let differs = differs(&right, gres).or_else(|| types_of_shares(&right, gres));
        wrong_file = differs.is_some();
        let parameters = settings.value("SlurmdParameters");
        let overrides = parameters.is_some_and(|all| all.contains("config_overrides"));
        let then = if overrides {
            "; with SlurmdParameters=config_overrides Slurm then picks no devices"
        } else {
            ""
        };
        found.extend(differs.map(|(severity, why)| {
            let what = format!("Gres= of {NODES}: {why}{then}");
            let fix = format!("write in the line of {NODES}: {right_line}");
            Finding::at(line.entry.place(), severity, what, fix)
        }));
    }
    if let Some(record) = record.filter(|_| !wrong_file) {
        let fix = if line.is_some() {
            "slurm.conf has it right: restart slurmctld, then slurmd on these nodes".to_owned()
        } else {
            format!("write in the line of {NODES} in slurm.conf: {right_line}")
        };
        let differs = differs(&right, record.get("Gres"));
        found.extend(differs.map(|(severity, why)| {
            Finding::at(
                NODE_RECORD,
                severity,
                format!("Gres= of {NODES}: {why}"),
                fix,
            )
        }));
        // Slurm keeps the reason of a node that was resumed.
        let reason = record.get("Reason").filter(|_| is_out_of_service(record));
        found.extend(reason.filter(|reason| reason.contains("gres/")).map(|reason| {
            Finding::at(
                NODE_RECORD,
                Severity::Error,
                format!(
                    "{NODES} is drained, as its slurmd has other devices than slurmctld counts ({reason})"
                ),
                format!(
                    "compare gres.conf there, restart slurmd, and then: scontrol update NodeName={NODES} State=RESUME"
                ),
            )
        }));
    }
    found.extend(record.and_then(left_drained));
    found
}

/// The fault and the cure where the number of GPUs is not known.
fn uncounted(count: &GpuCount) -> (String, String) {
    let what = match count {
        GpuCount::Differs([one, other]) => {
            return (
                format!(
                    "{NODES} has {} GPUs by {}, and {} by {}",
                    one.count, one.source, other.count, other.source
                ),
                "correct what is wrong, or say the number to `gpufrac init` or `gpufrac conf`: --gpus N".into(),
            );
        }
        GpuCount::Unknown { instances } if !instances.is_empty() => format!(
            "Slurm counts MIG instances on {NODES} ({instances}), which do not tell the number of GPUs"
        ),
        _ => format!("no GPUs are counted on {NODES}"),
    };
    let fix = format!(
        "add what `gpufrac conf --node '{NODES}' --gpus N` prints to gres.conf and slurm.conf, with the number of GPUs of a node as N"
    );
    (what, fix)
}

/// The beginnings of the reasons with which gpufrac, and Slurm after a prolog or epilog that failed, drain a node
/// (`slurmd/req.c`, `slurmctld/proc_req.c`).
const OF_HOOKS: [&str; 4] = [
    "gpufrac: ",
    "Prolog error",
    "Epilog error",
    "batch job complete failure",
];

/// Whether a node takes no job, by its state.
fn is_out_of_service(record: &Record) -> bool {
    let state = record.get("State").unwrap_or_default();
    ["DRAIN", "DOWN", "INVAL", "UNKNOWN"]
        .iter()
        .any(|word| state.contains(word))
}

/// The finding about a node that is out of service until an admin resumes it, even after its cause was removed.
fn left_drained(record: &Record) -> Option<Finding> {
    let is_drained = record.get("State")?.contains("DRAIN");
    let reason = record.get("Reason").filter(|_| is_drained)?;
    let is_of_hooks = OF_HOOKS.iter().any(|start| reason.starts_with(start));
    is_of_hooks.then(|| {
        Finding::at(
            NODE_RECORD,
            Severity::Warning,
            format!("{NODES} is drained ({reason}): no job starts there until it is resumed"),
            format!(
                "remove the cause, which `gpufrac check` on the node names if it is still there, and then: scontrol update NodeName={NODES} State=RESUME"
            ),
        )
    })
}

pub(super) fn expected(
    settings: &Settings,
    config: &Config,
    name: &str,
    gpus: u32,
) -> Option<GresLines> {
    let folder = PathBuf::from(config.paths.for_node(name).devices);
    let devices = config.devices_of_node(name, gpus);
    let cores = |gpu| near::cores(settings, &devices, &folder, name, gpu);
    let lines = GresLines::of(&devices, &folder, &config.count_name, &cores);
    (!lines.gres.is_empty()).then_some(lines)
}

/// The number of a GRES, without the shares of GPUs that have no pool.
fn sum(of: &Counts, name: &str) -> u64 {
    let of_name = of.iter().filter(|((known, type_name), _)| {
        known == name && (name != "shard" || type_name.is_empty() || is_own_type(type_name))
    });
    of_name.map(|(_, count)| count).sum()
}

/// The Types and counts of GPUs without a pool.
fn plain_gpus(of: &Counts) -> impl Iterator<Item = (&String, u64)> {
    of.iter().filter_map(|((name, type_name), count)| {
        let is_plain = name == "gpu" && !type_name.is_empty() && !is_own_type(type_name);
        is_plain.then_some((type_name, *count))
    })
}

/// The difference between a `Gres=` and the needed one; it may have GRES of other names and Types.
fn differs(right: &Counts, text: Option<&str>) -> Option<(Severity, String)> {
    let is = counts(text.unwrap_or_default());
    if is.is_empty() {
        // The node's line has no `Gres=`. Cure: Write the line of the hint.
        return Some((Severity::Error, "nothing is counted".into()));
    }
    if sum(&is, "mps") > 0 {
        // The line has `mps:N` from before gpufrac. Cure: Write the line of the hint; users write `gpufrac:0.5` instead
        // of `mps:50`.
        return Some((
            Severity::Error,
            "mps is counted, and a job that asks for it gets no GPU of a pool".into(),
        ));
    }
    // slurmctld gives shares the Types that nodes register, even if they are not in the file.
    let names: BTreeSet<&str> = right.keys().map(|(name, _)| name.as_str()).collect();
    // Where shares have no Types, those of GPUs without a pool are among them.
    let plain: u64 = plain_gpus(&is).map(|(_, count)| count).sum();
    for name in names.into_iter().rev().filter(|name| *name != "gpu") {
        let (is, right) = (sum(&is, name), sum(right, name));
        if is != right && (name != "shard" || is != right + plain) {
            // The number of a GRES differs from the pools. Cure: Write the line of the hint; `gpufrac conf` prints all
            // lines.
            return Some((
                Severity::Error,
                format!("{name} is {is} and must be {right}"),
            ));
        }
    }
    let untyped = is.get(&("gpu".into(), String::new()));
    if untyped.is_some() && is.keys().filter(|(name, _)| name == "gpu").count() > 1 {
        let fault = "gpu is counted with a Type and without one, and slurmd does not start";
        return Some((Severity::Error, fault.into()));
    }
    let gpus = right.iter().filter(|((name, _), _)| name == "gpu");
    for ((_, type_name), count) in gpus {
        match is.get(&("gpu".into(), type_name.clone())) {
            Some(known) if known == count => {}
            Some(known) => {
                let fault = format!("gpu:{type_name} is {known} and must be {count}");
                return Some((Severity::Error, fault));
            }
            None if untyped == Some(&sum(right, "gpu")) => {
                let fault = format!("gpu without its Type `{type_name}`, which requests ask for");
                return Some((Severity::Warning, fault));
            }
            // slurm.conf or gres.conf lacks a Type of the pools. Cure: Write the line of the hint.
            None => return Some((Severity::Error, format!("gpu:{type_name} is missing"))),
        }
    }
    None
}

/// The Types of shares, if their number is right.
fn types_of_shares(right: &Counts, text: Option<&str>) -> Option<(Severity, String)> {
    let is = counts(text.unwrap_or_default());
    let shares = |of: &Counts| -> Counts {
        let is_plain = |name: &str| plain_gpus(of).any(|(plain, _)| plain == name);
        let shares = of.iter();
        let shares =
            shares.filter(|((name, type_name), _)| name == "shard" && !is_plain(type_name));
        shares.map(|(key, count)| (key.clone(), *count)).collect()
    };
    let (is, right) = (shares(&is), shares(right));
    if is == right {
        return None;
    }
    if is.keys().all(|(_, type_name)| type_name.is_empty()) {
        // The nodes register shards with Types. Cure: Write the line of the hint.
        Some((
            Severity::Warning,
            "shard without its Type: steps of jobs that ask for it are refused".into(),
        ))
    } else {
        // slurm.conf and gpufrac.toml name other Types. Cure: Write the line of the hint.
        Some((
            Severity::Error,
            "shard has other Types than the pools".into(),
        ))
    }
}
