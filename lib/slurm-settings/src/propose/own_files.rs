//! Nodes with a gres.conf of their own. Lines without NodeName hold for the nodes that read the file, and on many sites
//! each node has another file.

use std::collections::BTreeMap;

use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist;
use gpufrac_slurm_conf::{Files, Line, SlurmNode, counts, number};

use super::super::gres_lines::files_of;
use super::super::rules;

/// GPUs by their Types in small letters, empty for none.
type Types = BTreeMap<String, u64>;

/// Whether the node's `Gres=` counts other GPUs than the lines of this gres.conf that hold for it, lines without
/// NodeName among them: slurmd of the node cannot have this file, because Slurm drains a node that has fewer GPUs.
pub(super) fn has_own(files: &Files, node: &str) -> bool {
    let of_gpus = |line: &&Line| line.get("Name").is_some_and(|name| rules::is(name, "gpu"));
    let is_general = |line: &&Line| {
        let nodes = line.get("NodeName");
        nodes.is_none_or(|nodes| nodes.eq_ignore_ascii_case("ALL"))
    };
    let lines = files.gres.lines.iter().filter(of_gpus);
    if !lines.clone().any(|line| is_general(&line)) {
        return false;
    }
    let mut named = Types::new();
    for line in lines.filter(|line| is_general(line) || line.covers(node)) {
        let type_name = line.get("Type").unwrap_or_default().to_ascii_lowercase();
        *named.entry(type_name).or_default() += devices(line);
    }
    let gres = files.site.node(node).and_then(SlurmNode::gres);
    let mut counted = Types::new();
    for ((name, type_name), count) in counts(gres.unwrap_or_default()) {
        if name == "gpu" {
            *counted.entry(type_name.to_ascii_lowercase()).or_default() += count;
        }
    }
    // Slurm takes a GPU without a Type, in either text, for one of any Type.
    if named.contains_key("") || counted.contains_key("") {
        named = Types::from([(String::new(), named.values().sum())]);
        counted = Types::from([(String::new(), counted.values().sum())]);
    }
    let mut detects = files.gres.lines.iter();
    let detects = detects.any(|line| {
        let how = line.get("AutoDetect");
        how.is_some_and(|how| !rules::is(how, "off")) && (is_general(&line) || line.covers(node))
    });
    // AutoDetect adds the GPUs that no line names.
    let agrees = |(name, count): (&String, &u64)| {
        let counted = counted.get(name).copied().unwrap_or(0);
        counted == *count || (detects && counted > *count)
    };
    !named.iter().all(agrees) || !(detects || counted.keys().all(|name| named.contains_key(name)))
}

/// The number of GPUs that a line names.
fn devices(line: &Line) -> u64 {
    let files = line.get("File").map(|text| files_of(text).len() as u64);
    let is_one = line.get("MultipleFiles").map(|_| 1);
    let count = || line.get("Count").and_then(number);
    files.or(is_one).or_else(count).unwrap_or(1)
}

/// The finding about these nodes.
pub(super) fn left(nodes: &[String], gres_conf: &str) -> Option<Finding> {
    if nodes.is_empty() {
        return None;
    }
    let names = hostlist::short(nodes);
    // Each node has its own gres.conf, and this one is of nodes with other GPUs. Cure: Keep theirs; run `gpufrac init`
    // on one of them for fractions there.
    Some(Finding {
        severity: Severity::Warning,
        place: Some(gres_conf.to_owned()),
        what: format!(
            "{names} have other GPUs by their Gres= than the lines without NodeName, and get none of these lines: they are taken to have a \
             gres.conf of their own"
        ),
        fix: format!(
            "keep the gres.conf of {names} as it is, and for fractions there run `gpufrac init` on one of them; if they read this file, write \
             their lines in it, with NodeName={names}"
        ),
    })
}
