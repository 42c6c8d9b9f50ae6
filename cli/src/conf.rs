//! `gpufrac conf`

use std::path::Path;

use gpufrac_core::config::Config;
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_host::exit::Exit;
use gpufrac_node::node::Node;

use crate::args::ConfArgs;
use crate::error::CliError;

pub fn run(args: &ConfArgs) -> Result<Exit, CliError> {
    let config = args.config.read()?;
    let text = args.config.node_name();
    let nodes = Hostlist::parse(&text).map_err(|source| CliError::Nodes {
        text: text.clone(),
        source,
    })?;
    let mut groups: Vec<(Vec<&str>, GresLines)> = Vec::new();
    for node in nodes.names() {
        let lines = lines_of(&config, node, args.gpus)?;
        match groups.iter_mut().find(|(_, known)| *known == lines) {
            Some((names, _)) => names.push(node),
            None => groups.push((vec![node], lines)),
        }
    }
    let named = |names: &[&str]| match groups.len() {
        1 => text.clone(),
        _ => hostlist::short(names),
    };
    println!("# gres.conf");
    for (names, lines) in &groups {
        for line in lines.gres_conf(&named(names)) {
            println!("{line}");
        }
    }
    println!("\n# slurm.conf");
    println!("GresTypes=gpu,shard,gpufrac");
    println!("SelectType=select/cons_tres");
    println!("PrologFlags=Alloc,Contain,DeferBatch");
    for (names, lines) in &groups {
        // The rest of the node's line (CPUs, memory) is the site's.
        println!("NodeName={} Gres={}", named(names), lines.gres);
    }
    Ok(Exit::Done)
}

fn lines_of(config: &Config, name: &str, gpus: Option<u32>) -> Result<GresLines, CliError> {
    let node = Node::new(config.clone(), name);
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    let every_gpu_named = config
        .pools_of_node(name)
        .iter()
        .all(|pool| pool.gpus.is_some());
    let count = match gpus {
        Some(count) => count,
        None if every_gpu_named => 0,
        None => node
            .nvml()
            .and_then(|session| session.gpu_count())
            .map_err(|source| CliError::GpuCount {
                node: name.into(),
                source,
            })?,
    };
    let devices = config.devices_of_node(name, count);
    let folder: &Path = &node.devices;
    Ok(GresLines::of(&devices, folder))
}
