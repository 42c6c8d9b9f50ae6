//! `gpufrac prove`: measures on a GPU of this node what gpufrac takes for true, and writes the answers to two files.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpufrac_core::config::Config;
use gpufrac_core::ids::GpuIndex;
use gpufrac_host::exit::Exit;
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::version;
use gpufrac_prove::document::Document;
use gpufrac_prove::{Client, Pace, Program, Settings, page};
use gpufrac_slurm_settings::ask_slurm;

use crate::args::ProveArgs;
use crate::error::CliError;
use crate::slurm;

/// The argument of a further session with NVML.
pub const SESSION: &str = "prove-session";
/// The argument of a program that computes.
pub const CLIENT: &str = "prove-client";
/// How many names are tried for the files of a day.
const NAMES: u32 = 100;

/// The process of a further session, or a program that computes.
pub fn child(word: &str) -> Option<ExitCode> {
    let served = match word {
        SESSION => gpufrac_prove::serve_session(),
        CLIENT => gpufrac_compute::serve(),
        _ => return None,
    };
    Some(match served {
        Ok(()) => Exit::Done.into(),
        Err(_) => Exit::Broken.into(),
    })
}

pub fn run(args: &ProveArgs) -> Result<Exit, CliError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::NotRoot);
    }
    let (path, name) = (args.config.path(), args.config.node_name());
    let node = match Node::load(&path, &name) {
        // A host without pools.
        Err(NodeError::NoConfig { .. }) => Node::new(Config::empty(), &name),
        other => other?,
    };
    if !args.without_slurm {
        is_drained(&node.name)?;
    }
    can_write(&args.output)?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // Without the handler a signal ends the run at once, and the next run puts back what it left.
    let _ = ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed));
    let settings = settings(args, &node)?;
    let document = gpufrac_prove::run(&settings, &stop, &|step| eprintln!("{step}"))?;
    let [json, text] = write(&args.output, &document)?;
    let differences = document.differences();
    println!("{}", document.head);
    println!("answers that differ from what gpufrac takes for true: {differences}");
    if let Some(stopped) = &document.stopped {
        let (step, reason) = (&stopped.step, &stopped.reason);
        // The driver gave an answer that the run does not understand; what it made is removed. The reason is one of
        // those below. Cure: Send both files to the project: [prove.md](../prove.md).
        eprintln!("gpufrac: the run stopped in step `{step}`: {reason}");
    }
    println!("written: {} and {}", json.display(), text.display());
    Ok(if document.stopped.is_none() && document.is_clean() {
        Exit::Done
    } else {
        Exit::Broken
    })
}

/// Refuses a node on which Slurm may start a job.
fn is_drained(node: &str) -> Result<(), CliError> {
    let silent = CliError::ProveSlurm;
    let state = ask_slurm("sinfo", &["-h", "-N", "-n", node, "-o", "%T"]).map_err(silent)?;
    let jobs = slurm::jobs_on(node).map_err(silent)?;
    let state = state.lines().next().unwrap_or_default().trim().to_owned();
    if state.contains("drain") && jobs.is_empty() {
        Ok(())
    } else {
        Err(CliError::NotDrained {
            node: node.to_owned(),
            state,
            jobs: jobs.len(),
        })
    }
}

fn settings(args: &ProveArgs, node: &Node) -> Result<Settings, CliError> {
    let path = std::env::current_exe().map_err(|source| CliError::Read {
        path: "/proc/self/exe".into(),
        source,
    })?;
    let arguments = |word: &str| vec![word.to_owned()];
    Ok(Settings {
        nvml: node.nvml.clone(),
        driver_root: node.driver_root.clone(),
        run: node.run.clone(),
        mps_control: node.mps_control.clone(),
        gpu: GpuIndex(args.gpu),
        mode: args.mode,
        pace: if args.quick { Pace::quick() } else { Pace::default() },
        program: Program {
            session: arguments(SESSION),
            client: Client {
                path: path.clone(),
                arguments: arguments(CLIENT),
            },
            path,
        },
        version: version::TEXT.clone(),
    })
}

/// Makes the folder, and tries it: the run takes minutes.
fn can_write(folder: &Path) -> Result<(), CliError> {
    let tried = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    tried.map(drop).map_err(|source| CliError::Write {
        path: folder.to_owned(),
        source,
    })
}

/// Writes both files under new names: an existing file may be a link of a user's.
fn write(folder: &Path, document: &Document) -> Result<[PathBuf; 2], CliError> {
    let json = serde_json::to_string_pretty(document)? + "\n";
    let page = page::of(document);
    let name = document.name();
    for number in 1..=NAMES {
        let name = match number {
            1 => name.clone(),
            number => format!("{name}-{number}"),
        };
        let paths = ["json", "txt"].map(|end| folder.join(format!("{name}.{end}")));
        match new_file(&paths[0], &json).and_then(|()| new_file(&paths[1], &page)) {
            Ok(()) => return Ok(paths),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => {
                let path = paths[0].clone();
                return Err(CliError::Write { path, source });
            }
        }
    }
    Err(CliError::Write {
        path: folder.join(name),
        source: ErrorKind::AlreadyExists.into(),
    })
}

fn new_file(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}
