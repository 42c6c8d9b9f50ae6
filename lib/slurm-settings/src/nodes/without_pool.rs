//! Nodes with fractions in Slurm but without a pool in gpufrac.toml: Slurm starts jobs there, but nothing makes their
//! slices.

use std::collections::BTreeMap;

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist;
use gpufrac_slurm_conf::counts;

use super::super::Settings;
use super::NODE_RECORD;

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let has_pool = |node: &str| config.pools.iter().any(|pool| pool.nodes.contains(node));
    let name = &config.count_name;
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let nodes = settings.files.iter().flat_map(|files| &files.site.nodes);
    let lost = nodes.filter(|node| counts_fractions(node.gres(), name) && !has_pool(&node.name));
    for node in lost {
        let place = node.entry.place().to_string();
        places.entry(place).or_default().push(node.name.clone());
    }
    let records = settings.running.iter().flat_map(|running| &running.nodes);
    for (node, record) in records {
        let known = places.values().flatten().any(|known| known == node);
        if !known && !has_pool(node) && counts_fractions(record.get("Gres"), name) {
            places
                .entry(NODE_RECORD.into())
                .or_default()
                .push(node.clone());
        }
    }
    found.extend(places.into_iter().map(|(place, nodes)| {
        let names = hostlist::short(&nodes);
        // slurm.conf gives the node gpufrac or devices of its Types (`half`, `whole`, ...), and gpufrac.toml does not
        // name it. Cure: Add the node to `nodes` of its pool on all hosts, or remove gpufrac and its devices from its
        // `Gres=`.
        Finding {
            severity: Severity::Error,
            place: Some(place),
            what: format!(
                "{names} counts gpufrac's devices but is in no pool of gpufrac.toml: jobs that Slurm starts there get no slice"
            ),
            fix: format!(
                "add {names} to the `nodes` of its pool, on all hosts, or take gpufrac and its devices out of its Gres="
            ),
        }
    }));
}

/// Fractions, or placeholders: a job that gets one of these without a fraction has no GPU.
fn counts_fractions(gres: Option<&str>, fractions: &CountName) -> bool {
    let counts = counts(gres.unwrap_or_default());
    let is_own = |name: &str| {
        Pool::TYPE_NAMES
            .iter()
            .any(|own| own.eq_ignore_ascii_case(name))
    };
    counts.keys().any(|(name, type_name)| match name.as_str() {
        "gpufrac" => true,
        name if name == fractions.as_str() => true,
        "gpu" | "shard" => is_own(type_name),
        _ => false,
    })
}
