//! `gpufrac check`

use gpufrac_core::config::{Config, Pool};
use gpufrac_node::exit::Exit;
use gpufrac_node::node::Node;
use gpufrac_node::{check, status};

use crate::args::CheckArgs;
use crate::error::CliError;
use crate::names;

pub fn run(args: &CheckArgs) -> Result<Exit, CliError> {
    let path = args.config.path();
    let config = match args.config.read() {
        Err(CliError::Config(errors)) => {
            // Errors of the file are what this command is for: they go out as they are, one
            // line each, for editors.
            eprintln!("{errors}");
            return Ok(Exit::Broken);
        }
        other => other?,
    };
    summary(&config);
    let node = Node::new(config, &args.config.node_name());
    let on_node = !args.file_only && node.has_pools();
    if on_node {
        let problems = check::check(&node);
        for problem in &problems {
            eprintln!("gpufrac: {}\nhint: {}", problem.what, problem.hint);
        }
        if !problems.is_empty() {
            return Ok(Exit::Broken);
        }
        println!("{}: ok; node {}: ok", path.display(), node.name);
    } else {
        println!("{}: ok", path.display());
    }
    Ok(Exit::Done)
}

fn summary(config: &Config) {
    for pool in &config.pools {
        println!(
            "pool {}: {} on {}, {} for partition {} on {}",
            pool.name,
            pool.mechanism,
            pool.geometry.model,
            pool.layout.kind,
            pool.partitions.join(","),
            nodes(pool)
        );
        for line in status::columns(&menu(pool)) {
            println!("  {line}");
        }
    }
}

fn nodes(pool: &Pool) -> String {
    let names: Vec<&str> = pool.nodes.names().iter().map(String::as_str).collect();
    names::short(&names)
}

fn menu(pool: &Pool) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["FRACTION", "UNITS", "PROFILE", "MEMORY"]
            .map(str::to_owned)
            .into(),
    ];
    for entry in &pool.layout.menu {
        rows.push(vec![
            entry.fraction.to_string(),
            entry.units.to_string(),
            entry.profile_name.clone(),
            entry.memory.to_string(),
        ]);
    }
    rows
}
