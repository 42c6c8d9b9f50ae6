//! `gpufrac`: the command line for admins and users. Data go to stdout; errors go to stderr, with `hint:` lines. Exit
//! codes: [`gpufrac_host::exit::Exit`].

#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod admin;
mod advise;
mod args;
mod cdi;
mod check;
mod clean;
mod conf;
mod doctor;
mod env;
mod error;
mod finding;
mod geometry;
mod init;
mod lease;
mod node_files;
mod own;
mod patch;
mod plan;
mod prove;
mod report;
mod sizes;
mod slurm;
mod status;
mod steps;
mod top;
mod web;
mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use gpufrac_core::config::{Config, LAST_GOOD};
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::exit::Exit;
use gpufrac_node::job::environment;
use gpufrac_node::node::{Node, Served};
use gpufrac_node::setup;
use gpufrac_node::slurm_call;
use gpufrac_node::slurm_call::private_data::private_data;
use gpufrac_node::state::last_good;
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::private;

use args::{Args, Command, ConfigArgs, LeaseCommand};
use error::CliError;

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if let Some(exit) = first.to_str().and_then(prove::child) {
        return exit;
    }
    if let Some(served) = slurm_call::served() {
        return served;
    }
    // clap ends with 2 on a wrong command line, which is Exit::Usage.
    output::end(run(Args::parse()))
}

fn run(args: Args) -> ExitCode {
    let done = match args.command {
        Command::NodeSetup(config) => node_setup(&config),
        Command::Check(check) => return check::run(&check).into(),
        Command::Init(init) => init::run(&init),
        Command::Conf(conf) => conf::run(&conf),
        Command::Status(status) => status::command::run(&status),
        Command::Leases(config) => show_leases(&config),
        Command::Env(env) => env::run(&env),
        Command::Cdi(job) => cdi::run(&job),
        Command::Top(top) => top::run(&top),
        Command::Web(web) => web::run(&web),
        Command::Why(why) => why::run(&why),
        Command::Report(report) => report::run(&report),
        Command::Advise(advise) => advise::run(&advise),
        Command::Plan(plan) => plan::run(&plan),
        Command::Completions { shell } => Ok(completions(shell)),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Clean(clean) => clean::run(&clean),
        Command::Geometry(geometry) => geometry::run(&geometry),
        Command::Prove(prove) => prove::run(&prove),
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

    /// The text of the configuration, read with the user's permissions.
    fn text(&self) -> Result<String, CliError> {
        let path = self.path();
        std::fs::read_to_string(&path).map_err(|source| CliError::Read { path, source })
    }

    /// The configuration; every mistake in the file is an error.
    fn read_strictly(&self) -> Result<Config, CliError> {
        let text = self.text()?;
        Config::parse(&text, &self.path().to_string_lossy()).map_err(CliError::Config)
    }

    /// The configuration in use: a mistake in the file is only a warning if another configuration can be used.
    fn read(&self) -> Result<Config, CliError> {
        let (path, text) = (self.path(), self.text()?);
        match Config::parse_pools(&text, &path.to_string_lossy()) {
            Ok((config, None)) => Ok(config),
            // A mistake in `[reaper]` does not matter for these commands.
            Ok((config, Some(errors))) => {
                eprintln!("gpufrac: {errors}");
                Ok(config)
            }
            Err(errors) => self.last_good(&path).ok_or(CliError::Config(errors)),
        }
    }

    /// The last valid configuration of the node, which only root can read.
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
    // node-setup runs as root: only a file that only root can change is read. After a reboot the node must work even
    // if the file has a mistake.
    let Served {
        node,
        complaint,
        text,
    } = Node::load_to_serve(&args.path(), &args.node_name(), Path::new(LAST_GOOD))?;
    if let Some(text) = text {
        keep_copy(args, &node, &text);
    }
    let report = setup::setup(&node)?;
    if node.has_pools() {
        hide(&node)?;
    }
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

/// Keeps a copy of the configuration, which prolog, epilog and steps use while the file has a mistake.
fn keep_copy(args: &ConfigArgs, node: &Node, text: &str) {
    let (path, folder) = (args.path(), Path::new(LAST_GOOD));
    let done = if node.has_pools() {
        last_good::keep(folder, &path, &node.name, text)
    } else {
        last_good::forget(folder, &path, &node.name)
    };
    if let Err(error) = done {
        // `gpufrac node-setup` could not write the last good copy of gpufrac.toml in /var/lib/gpufrac/last-good. Cure:
        // Free space there, and correct the owner of the folder (root). Until then a mistake in the file stops new
        // slices on this node.
        eprintln!(
            "gpufrac: keeping a copy of {} failed: {error}",
            path.display()
        );
    }
}

/// The node that this host is, if it is one with pools.
fn local(args: &ConfigArgs) -> Result<Node, CliError> {
    let node = Node::new(args.read()?, &args.node_name());
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    // With several nodes on this host `--node` chooses one; it cannot choose another host.
    if args.node.is_some() && !node.run.exists() && node.name != environment::host_name() {
        return Err(CliError::elsewhere(&node));
    }
    Ok(node)
}

/// Opens the node's folders to users, as far as Slurm's `PrivateData` allows.
fn hide(node: &Node) -> Result<(), CliError> {
    match private_data() {
        Ok(private) => {
            if private != PrivateData::default() {
                println!("Slurm's PrivateData is {private} (of jobs, usage and nodes)");
            }
            Ok(private::apply(&node.run, &node.state, private)?)
        }
        Err(error) => {
            eprintln!("hint: {error}");
            Ok(())
        }
    }
}

fn show_leases(args: &ConfigArgs) -> Result<Exit, CliError> {
    let (leases, damaged) = own::leases(&local(args)?)?;
    for line in status::table(&leases) {
        println!("{line}");
    }
    Ok(told(&damaged))
}

/// Prints the leases that cannot be read.
fn told(damaged: &[StoreError]) -> Exit {
    for error in damaged {
        eprintln!("gpufrac: {error}\nhint: {}", error.fix());
    }
    if damaged.is_empty() { Exit::Done } else { Exit::Broken }
}
