//! `gpufrac check`

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::layout::MenuEntry;
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
        for note in check::notes(&node) {
            println!("{note}");
        }
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
        let count = pool.layout.menu.len();
        if count > MANY {
            println!("  {count} sizes in all");
        }
    }
}

fn nodes(pool: &Pool) -> String {
    let names: Vec<&str> = pool.nodes.names().iter().map(String::as_str).collect();
    names::short(&names)
}

/// More sizes than a person wants to read.
const MANY: usize = 12;

fn menu(pool: &Pool) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["FRACTION", "UNITS", "PROFILE", "MEMORY"]
            .map(str::to_owned)
            .into(),
    ];
    let menu = &pool.layout.menu;
    // Any whole percent: its ends, and the whole GPU, say it all.
    let shown = |position: usize, entry: &MenuEntry| {
        menu.len() <= MANY
            || position == 0
            || position + 2 >= menu.len()
            || entry.units.0.is_multiple_of(25)
    };
    for (_, entry) in menu
        .iter()
        .enumerate()
        .filter(|(at, entry)| shown(*at, entry))
    {
        rows.push(vec![
            entry.fraction.to_string(),
            entry.units.to_string(),
            entry.profile_name.clone(),
            entry.memory.to_string(),
        ]);
    }
    rows
}
