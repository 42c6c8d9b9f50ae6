//! The command `gpufrac status`.

use std::thread;

use gpufrac_core::config::Config;
use gpufrac_host::exit::Exit;
use gpufrac_node::node::{Node, now_unix};
use gpufrac_slurm_settings::AskError;
use gpufrac_view::cluster::{self, Free, NodeState, Report};
use nix::unistd::{Uid, getuid};

use super::text::Clock;
use super::{ask, files, map, own, status, text};
use crate::args::StatusArgs;
use crate::error::CliError;
use crate::told;

/// Shows the state.
pub fn run(args: &StatusArgs) -> Result<Exit, CliError> {
    if args.cluster {
        let config = args.config.read()?;
        return show_cluster(args, &config, &args.config.node_name());
    }
    match crate::local(&args.config) {
        Ok(node) => show_node(args, &node),
        // A host without GPUs of pools, such as a login node.
        Err(CliError::NoPool { nodes, one, .. }) if args.config.node.is_none() => {
            show_own(args, &nodes, &one)
        }
        Err(error @ CliError::Elsewhere { .. }) => match file_of(args)? {
            Some(node) => show_file(args, node),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The user, where it is not root: root sees all jobs, and has none.
fn user() -> Option<Uid> {
    let uid = getuid();
    (!uid.is_root()).then_some(uid)
}

fn show_node(args: &StatusArgs, node: &Node) -> Result<Exit, CliError> {
    let now = now_unix();
    let state = status(node);
    let is_partial = state.as_ref().map_or(true, |it| !it.damaged.is_empty());
    // Leases may be root's alone; what the daemon shows to all users is what this user may see.
    if is_partial
        && user().is_some()
        && let Some(file) = files::own(node)
    {
        return show_file(args, NodeState::of_file(file, now));
    }
    let state = state?;
    let mut report = Report::new(now, vec![state.node.clone()]);
    if !args.json {
        show_map(&state.node);
        if !state.leases.is_empty() {
            println!();
            print_all(&state.table());
        }
    }
    add_own(&mut report, &node.config);
    finish(args, &report, told(&state.damaged))
}

/// A node by the file of its daemon.
fn show_file(args: &StatusArgs, node: NodeState) -> Result<Exit, CliError> {
    let now = now_unix();
    if !args.json {
        show_map(&node);
        let table = text::slices(&node, &Clock::at(now));
        if !table.is_empty() {
            println!();
            print_all(&table);
        }
    }
    if node.stale {
        let age = gpufrac_page::words::span(now.saturating_sub(node.written.unwrap_or(0)));
        // The daemon of the node has stopped, or the node is down. Cure: `systemctl status gpufrac-reaperd` on the
        // node.
        eprintln!(
            "gpufrac: gpufrac-reaperd on node {} has not written for {age}: this is its last state",
            node.node
        );
    }
    let mut report = Report::new(now, vec![node]);
    add_own(&mut report, &args.config.read()?);
    finish(args, &report, Exit::Done)
}

/// The file of the node that the arguments name, in the folder that the nodes share.
fn file_of(args: &StatusArgs) -> Result<Option<NodeState>, CliError> {
    let node = Node::new(args.config.read()?, &args.config.node_name());
    let file = files::shared(&node);
    Ok(file.map(|file| NodeState::of_file(file, now_unix())))
}

fn show_map(node: &NodeState) {
    for state in &node.gpus {
        print_all(&map::lines(state));
    }
    print_all(&text::stuck_places(node, now_unix()));
}

/// On a host without GPUs of pools: the user's own jobs, what could start, and what to type.
fn show_own(args: &StatusArgs, nodes: &str, one: &str) -> Result<Exit, CliError> {
    let config = args.config.read()?;
    let (known, problems) = known_nodes(&config, &args.config.node_name());
    let mut report = Report::new(now_unix(), known);
    report.problems = problems;
    if let Some(uid) = user() {
        let free = report.free.clone();
        add_jobs(&mut report, &config, uid, &free);
    }
    if !args.json {
        print_own(&report);
        println!();
        println!("This host has no GPU of a pool; nodes {nodes} have.");
        println!("All nodes: gpufrac status --cluster");
        println!("One node:  ssh {one} gpufrac status");
    }
    // The nodes are those of --cluster, which was not asked for.
    report.nodes.clear();
    print_problems(args, &report);
    print_json(args, &report)?;
    Ok(Exit::Done)
}

fn show_cluster(args: &StatusArgs, config: &Config, here: &str) -> Result<Exit, CliError> {
    let (known, waiting) = thread::scope(|scope| {
        let waiting = scope.spawn(|| ask::waiting(config));
        let known = known_nodes(config, here);
        (known, waiting.join().ok())
    });
    let (nodes, mut problems) = known;
    let mut report = Report::new(now_unix(), nodes);
    match waiting {
        Some(Ok(waiting)) => report.waiting = Some(waiting),
        Some(Err(error)) => problems.push(error.to_string()),
        None => {}
    }
    problems.dedup();
    report.problems = problems;
    if !args.json {
        print_all(&text::cluster(&report, &Clock::at(report.at)));
    }
    if let Some(uid) = user() {
        let free = report.free.clone();
        add_jobs(&mut report, config, uid, &free);
    }
    let is_known = report.nodes.iter().any(|node| !node.gpus.is_empty());
    let exit = if is_known { Exit::Done } else { Exit::Broken };
    finish(args, &report, exit)
}

/// The nodes of pools by their files, by Slurm's count, and what could not be read.
fn known_nodes(config: &Config, here: &str) -> (Vec<NodeState>, Vec<String>) {
    let ((files, mut problems), counted) = thread::scope(|scope| {
        let counted = scope.spawn(|| ask::nodes(config));
        let files = files::all(config, here);
        (files, counted.join().ok())
    });
    let counted = match counted {
        Some(Ok(counted)) => counted,
        Some(Err(error)) => {
            problems.push(error.to_string());
            Vec::new()
        }
        None => Vec::new(),
    };
    let names = config.pools.iter().flat_map(|pool| pool.nodes.names());
    let names = names.map(String::as_str);
    let nodes = cluster::joined(names, files, counted, now_unix());
    (nodes, problems)
}

/// Adds the jobs of an ordinary user, and what could start, to the report about one node.
fn add_own(report: &mut Report, config: &Config) {
    let Some(uid) = user() else {
        return;
    };
    // Other nodes of a partition may have room where this one has none.
    let free = match ask::nodes(config) {
        Ok(nodes) => Report::new(report.at, nodes).free,
        Err(error) => {
            report.problems.push(error.to_string());
            Vec::new()
        }
    };
    add_jobs(report, config, uid, &free);
}

/// Adds the jobs of a user, and what could start where this room is free.
fn add_jobs(report: &mut Report, config: &Config, uid: Uid, free: &[Free]) {
    let known = own::QueueFacts {
        config,
        free,
        waiting: report.waiting.as_deref(),
        now: report.at,
    };
    let answers = thread::scope(|scope| {
        let jobs = scope.spawn(|| ask::own(config, uid.as_raw()));
        let starts = own::starts(&known);
        (jobs.join().ok(), starts)
    });
    let mut note = |error: AskError| {
        let error = error.to_string();
        if !report.problems.contains(&error) {
            report.problems.push(error);
        }
    };
    let (jobs, starts) = answers;
    let jobs = jobs.and_then(|jobs| jobs.map_err(&mut note).ok());
    report.start = starts.map_err(note).ok();
    report.own = jobs.map(|jobs| own::with_slices(jobs, report));
}

fn print_own(report: &Report) {
    let clock = Clock::at(report.at);
    if let Some(jobs) = &report.own {
        print_all(&text::own(jobs, &clock));
    }
    if let Some(starts) = &report.start {
        println!();
        print_all(&text::starts(starts, &clock));
    }
}

/// Prints the part about the user, the problems, or all as JSON.
fn finish(args: &StatusArgs, report: &Report, exit: Exit) -> Result<Exit, CliError> {
    if !args.json && (report.own.is_some() || report.start.is_some()) {
        println!();
        print_own(report);
    }
    print_problems(args, report);
    print_json(args, report)?;
    Ok(exit)
}

fn print_problems(args: &StatusArgs, report: &Report) {
    for problem in report.problems.iter().filter(|_| !args.json) {
        eprintln!("gpufrac: {problem}");
    }
}

fn print_json(args: &StatusArgs, report: &Report) -> Result<(), CliError> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    }
    Ok(())
}

fn print_all(lines: &[String]) {
    for line in lines {
        println!("{line}");
    }
}
