//! `gpufrac`: the command line for admins and users. stdout is data; what went wrong goes to
//! stderr, with `hint:` lines. Exit codes: [`gpufrac_host::exit::Exit`].

#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod admin;
mod advise;
mod args;
mod check;
mod clean;
mod conf;
mod doctor;
mod error;
mod finding;
mod init;
mod lease;
mod patch;
mod slurm;
mod status;
mod steps;
mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use gpufrac_core::config::{Config, LAST_GOOD};
use gpufrac_host::exit::Exit;
use gpufrac_node::job::environment;
use gpufrac_node::node::{Node, Served};
use gpufrac_node::setup;
use gpufrac_node::state::last_good;
use gpufrac_node::state::leases::StoreError;

use args::{Args, Command, ConfigArgs, LeaseCommand};
use error::CliError;

fn main() -> ExitCode {
    // clap ends with 2 on a wrong command line, which is Exit::Usage.
    output::end(run(Args::parse()))
}

fn run(args: Args) -> ExitCode {
    let done = match args.command {
        Command::NodeSetup(config) => node_setup(&config),
        Command::Check(check) => return check::run(&check).into(),
        Command::Init(init) => init::run(&init),
        Command::Conf(conf) => conf::run(&conf),
        Command::Status(config) => show_status(&config),
        Command::Leases(config) => show_leases(&config),
        Command::Why(why) => why::run(&why),
        Command::Advise(advise) => advise::run(&advise),
        Command::Completions { shell } => Ok(completions(shell)),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Clean(clean) => clean::run(&clean),
        Command::Lease(LeaseCommand::Drop(drop)) => lease::drop(&drop),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            error.print();
            Exit::Broken.into()
        }
    }
}

impl ConfigArgs {
    fn path(&self) -> PathBuf {
        let default = || environment::config_path(|name| std::env::var_os(name));
        self.config.clone().unwrap_or_else(default)
    }

    fn node_name(&self) -> String {
        let default = || environment::node_name(|name| std::env::var_os(name));
        self.node.clone().unwrap_or_else(default)
    }

    /// The text of the configuration, as anyone may read it.
    fn text(&self) -> Result<String, CliError> {
        let path = self.path();
        std::fs::read_to_string(&path).map_err(|source| CliError::Read { path, source })
    }

    /// The configuration of the file, with every mistake in it an error.
    fn read_strictly(&self) -> Result<Config, CliError> {
        let text = self.text()?;
        Config::parse(&text, &self.path().to_string_lossy()).map_err(CliError::Config)
    }

    /// What the node goes by: a mistake in the file is told, and need not matter.
    fn read(&self) -> Result<Config, CliError> {
        let (path, text) = (self.path(), self.text()?);
        match Config::parse_pools(&text, &path.to_string_lossy()) {
            Ok((config, None)) => Ok(config),
            // What is asked here has nothing to do with `[reaper]`.
            Ok((config, Some(errors))) => {
                eprintln!("gpufrac: {errors}");
                Ok(config)
            }
            Err(errors) => self.last_good(&path).ok_or(CliError::Config(errors)),
        }
    }

    /// What the node goes on with; root alone may read it.
    fn last_good(&self, path: &Path) -> Option<Config> {
        let name = self.node_name();
        let served = Node::load_to_serve(path, &name, Path::new(LAST_GOOD)).ok()?;
        eprintln!("gpufrac: {}", served.complaint?);
        Some(served.node.config)
    }
}

fn completions(shell: Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "gpufrac", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Exit::Done
}

fn node_setup(args: &ConfigArgs) -> Result<Exit, CliError> {
    // Root's work: only a file that only root can change. A mistake in it must not keep a node from coming back after a reboot.
    let Served {
        node,
        complaint,
        text,
    } = Node::load_to_serve(&args.path(), &args.node_name(), Path::new(LAST_GOOD))?;
    if let Some(text) = text {
        keep_copy(args, &node, &text);
    }
    let report = setup::setup(&node)?;
    for line in &report.done {
        println!("{line}");
    }
    report.problems.iter().for_each(finding::print);
    for hint in &report.hints {
        eprintln!("hint: {hint}");
    }
    if !report.problems.is_empty() {
        return Ok(Exit::Broken);
    }
    println!("node {} is ready", node.name);
    Ok(match complaint {
        None => Exit::Done,
        Some(complaint) => {
            eprintln!("gpufrac: {complaint}");
            Exit::Broken
        }
    })
}

/// Keeps the configuration for prolog, epilog and steps, while the file has a mistake.
fn keep_copy(args: &ConfigArgs, node: &Node, text: &str) {
    let (path, folder) = (args.path(), Path::new(LAST_GOOD));
    let done = match node.has_pools() {
        true => last_good::keep(folder, &path, &node.name, text),
        false => last_good::forget(folder, &path, &node.name),
    };
    if let Err(error) = done {
        eprintln!(
            "gpufrac: keeping a copy of {} failed: {error}",
            path.display()
        );
    }
}

/// This host's node, where it is one that has leases.
fn local(args: &ConfigArgs) -> Result<Node, CliError> {
    let node = Node::new(args.read()?, &args.node_name());
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    // `--node` says which of several on this host; it leads to no other host.
    if args.node.is_some() && !node.run.exists() && node.name != environment::host_name() {
        return Err(CliError::elsewhere(&node));
    }
    Ok(node)
}

fn show_status(args: &ConfigArgs) -> Result<Exit, CliError> {
    let node = local(args)?;
    let status = status::status(&node)?;
    for line in status.map() {
        println!("{line}");
    }
    if !status.leases.is_empty() {
        println!();
        for line in status.table() {
            println!("{line}");
        }
    }
    Ok(told(&status.damaged))
}

fn show_leases(args: &ConfigArgs) -> Result<Exit, CliError> {
    let (leases, damaged) = local(args)?.leases()?.readable()?;
    for line in status::table(&leases) {
        println!("{line}");
    }
    Ok(told(&damaged))
}

/// Names the leases that cannot be read.
fn told(damaged: &[StoreError]) -> Exit {
    for error in damaged {
        eprintln!("gpufrac: {error}\nhint: {}", error.fix());
    }
    match damaged.is_empty() {
        true => Exit::Done,
        false => Exit::Broken,
    }
}
