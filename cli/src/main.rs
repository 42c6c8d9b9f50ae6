//! `gpufrac`: the command line for admins and users. stdout is data; what went wrong goes to
//! stderr, with `hint:` lines. Exit codes: [`gpufrac_host::exit::Exit`].

#![forbid(unsafe_code)]

mod advise;
mod args;
mod check;
mod conf;
mod error;
mod finding;
mod status;
mod why;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use gpufrac_core::config::Config;
use gpufrac_host::exit::Exit;
use gpufrac_node::job::environment;
use gpufrac_node::node::Node;
use gpufrac_node::setup;

use args::{Args, Command, ConfigArgs};
use error::CliError;

fn main() -> ExitCode {
    // clap ends with 2 on a wrong command line, which is Exit::Usage.
    let args = Args::parse();
    let done = match args.command {
        Command::NodeSetup(config) => node_setup(&config),
        Command::Check(check) => check::run(&check),
        Command::Conf(conf) => conf::run(&conf),
        Command::Status(config) => show_status(&config),
        Command::Leases(config) => show_leases(&config),
        Command::Why(why) => why::run(&why),
        Command::Advise(advise) => advise::run(&advise),
        Command::Completions { shell } => Ok(completions(shell)),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("gpufrac: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
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

    /// The configuration as anyone may read it.
    fn read(&self) -> Result<Config, CliError> {
        let path = self.path();
        let text = std::fs::read_to_string(&path).map_err(|source| CliError::Read {
            path: path.clone(),
            source,
        })?;
        Config::parse(&text, &path.to_string_lossy()).map_err(CliError::Config)
    }
}

fn completions(shell: Shell) -> Exit {
    clap_complete::generate(
        shell,
        &mut Args::command(),
        "gpufrac",
        &mut std::io::stdout(),
    );
    Exit::Done
}

fn node_setup(args: &ConfigArgs) -> Result<Exit, CliError> {
    // Root's work: only a file that only root can change.
    let node = Node::load(&args.path(), &args.node_name())?;
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
    Ok(Exit::Done)
}

fn show_status(args: &ConfigArgs) -> Result<Exit, CliError> {
    let node = Node::new(args.read()?, &args.node_name());
    if !node.has_pools() {
        return Err(CliError::NoPool { node: node.name });
    }
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
    Ok(Exit::Done)
}

fn show_leases(args: &ConfigArgs) -> Result<Exit, CliError> {
    let node = Node::new(args.read()?, &args.node_name());
    if !node.has_pools() {
        return Err(CliError::NoPool { node: node.name });
    }
    for line in status::table(&node.leases()?.list()?) {
        println!("{line}");
    }
    Ok(Exit::Done)
}
