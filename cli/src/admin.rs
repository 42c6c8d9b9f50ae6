//! What commands of root have in common: they show, ask, and then do.

use std::io::{BufRead, IsTerminal, Write};

use gpufrac_node::node::Node;

use crate::args::ConfigArgs;
use crate::error::CliError;

/// This host's node, for root.
pub fn node(args: &ConfigArgs) -> Result<Node, CliError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::NotRoot);
    }
    let node = Node::load(&args.path(), &args.node_name())?;
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    Ok(node)
}

/// Asks a person, unless `yes` was said before.
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
    // Nothing said is no.
    let _ = std::io::stderr().flush();
    let _ = stdin.lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
