//! `gpufrac conf --json`: what users may ask for, to programs.

use gpufrac_core::config::Config;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::submit;
use serde_json::{Value, json};

/// The number of this object's form. What a number means stays; keys are only added.
const VERSION: u32 = 1;

/// The object: each partition with a pool, in the order of gpufrac.toml, with the sizes that it gives.
pub fn object(config: &Config) -> Value {
    let mut names: Vec<&str> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let partitions: Vec<Value> = names
        .into_iter()
        .map(|name| partition(config, name))
        .collect();
    json!({
        "version": VERSION,
        "gres": "gpufrac",
        "counted_as": config.count_name.as_str(),
        "partitions": partitions,
        "pools": config.pools.iter().map(|pool| json!({
            "name": pool.name,
            "mechanism": pool.mechanism.name(),
            "layout": pool.layout.kind.name(),
            "model": pool.geometry.model,
            "memory_mib": pool.gpu_memory.0,
            "partitions": pool.partitions,
            "nodes": pool.nodes.names(),
        })).collect::<Vec<_>>(),
    })
}

fn partition(config: &Config, name: &str) -> Value {
    let pools = config.pools_of_partition(name);
    let mut mechanisms: Vec<&str> = pools.iter().map(|pool| pool.mechanism.name()).collect();
    mechanisms.dedup();
    let default = config.rules(name).and_then(|rules| rules.default);
    json!({
        "name": name,
        "mechanisms": mechanisms,
        "pools": pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(),
        "default": default.map(|fraction| fraction.to_string()),
        "sizes": submit::sizes(config, name).iter().map(size).collect::<Vec<_>>(),
    })
}

fn size(size: &MenuEntry) -> Value {
    let fraction = size.fraction.to_string();
    json!({
        "gres": format!("gpufrac:{fraction}"),
        "fraction": fraction,
        "units": size.units.0,
        "memory_mib": size.memory.0,
    })
}
