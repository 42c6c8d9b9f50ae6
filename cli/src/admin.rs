//! Shared parts of commands for root that change something: they show the change, ask, then carry it out.

use std::io::{BufRead, IsTerminal, Write};

use gpufrac_node::node::Node;
use gpufrac_node::state::record::NodeRecord;

use crate::args::ConfigArgs;
use crate::error::CliError;

/// The node that this host is; an error without root.
pub fn node(args: &ConfigArgs) -> Result<Node, CliError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::NotRoot);
    }
    let node = Node::load(&args.path(), &args.node_name())?;
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    // Leases and instances are those of this host, whatever name it is given.
    match NodeRecord::read_any(&node.run) {
        Ok(record) if record.node != node.name => Err(CliError::Elsewhere {
            node: node.name,
            host: record.node,
        }),
        _ => Ok(node),
    }
}

/// Asks the person at the terminal, unless `yes` was given.
pub fn confirm(question: &str, yes: bool) -> Result<bool, CliError> {
    if yes {
        return Ok(true);
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(CliError::NobodyToAsk);
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    // No answer means no.
    let _ = std::io::stderr().flush();
    let _ = stdin.lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
