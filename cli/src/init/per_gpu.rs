//! What a GPU brings in the partitions of new pools.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::per_gpu::PerGpu;
use gpufrac_slurm_settings::propose::Gpus;
use gpufrac_slurm_settings::{Settings, proposed_per_gpu};
use toml_edit::{DocumentMut, Item, Table, value};

use crate::error::CliError;

/// gpufrac.toml with CPUs and memory for a GPU in each partition where Slurm's files do not say them.
pub fn add(
    settings: &Settings,
    config: &Config,
    gpus: Gpus,
    text: &str,
) -> Result<String, CliError> {
    let mut file: DocumentMut = text.parse().map_err(CliError::Toml)?;
    let names = config.pools.iter().flat_map(|pool| &pool.partitions);
    let names: BTreeSet<&String> = names.collect();
    let mut is_changed = false;
    for name in names {
        let given = proposed_per_gpu(settings, config, gpus, name);
        let Some(words) = given.words() else {
            continue;
        };
        println!(
            "partition {name}: a GPU brings {words}, as its nodes have for each GPU; a fraction brings its part of them"
        );
        write(&mut file, name, given);
        is_changed = true;
    }
    Ok(if is_changed { file.to_string() } else { text.to_owned() })
}

fn write(file: &mut DocumentMut, partition: &str, given: PerGpu) {
    let mut tables = Table::new();
    tables.set_implicit(true);
    let tables = file.entry("partition").or_insert(Item::Table(tables));
    let Some(tables) = tables.as_table_like_mut() else {
        return;
    };
    let own = tables.entry(partition).or_insert(Item::Table(Table::new()));
    let Some(own) = own.as_table_like_mut() else {
        return;
    };
    if let Some(cpus) = given.cpus.and_then(|cpus| i64::try_from(cpus).ok()) {
        own.insert("cpus_per_gpu", value(cpus));
    }
    if let Some(memory) = given.memory {
        own.insert("memory_per_gpu", value(format!("{memory}M")));
    }
}
