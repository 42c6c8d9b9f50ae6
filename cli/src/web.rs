//! `gpufrac web --export`: static pages and JSON of the cluster, for a web server of the site.

mod export;
mod history;
mod week;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use gpufrac_core::config::Config;
use gpufrac_host::exit::Exit;
use gpufrac_node::version;
use gpufrac_slurm_settings::slurm_says;
use gpufrac_view::slurm;
use gpufrac_web::{Site, Waiting};

use crate::args::WebArgs;
use crate::error::CliError;
use crate::node_files::{self, FileOrFolder, NodeFiles};

use export::Export;

pub fn run(args: &WebArgs) -> Result<Exit, CliError> {
    let config = match args.config.read() {
        // `--from` says where the files are; then the host needs no gpufrac.toml.
        Err(CliError::Read { .. }) if !args.from.is_empty() => Config::empty(),
        other => other?,
    };
    let node = args.config.node_name();
    let mut places: Vec<FileOrFolder> = if args.from.is_empty() {
        node_files::places(&config, &node)
    } else {
        args.from.iter().cloned().map(FileOrFolder::of).collect()
    };
    // Root can read files of hidden nodes, and readers of the pages cannot.
    places.retain(FileOrFolder::is_public);
    if places.is_empty() {
        return Err(CliError::HiddenNodes);
    }
    let found = NodeFiles::new(places).read();
    if found.nodes.is_empty() && found.problems.is_empty() {
        return Err(CliError::NoNodeFile);
    }
    let export = Export::open(&args.export)?;
    let now = now();
    let paths = config.paths.for_node(&node);
    let mut problems = found.problems;
    let waiting = if args.no_slurm {
        None
    } else {
        waiting(&config).map_err(|why| problems.push(why)).ok()
    };
    let week = week::days(&export, &paths, now).unwrap_or_else(|error| {
        problems.push(error.to_string());
        None
    });
    let closed = if args.no_slurm { BTreeMap::new() } else { closed(&config) };
    let site = Site {
        now,
        build: version::TEXT.clone(),
        histories: history::of(&export, &found.nodes, &paths)?,
        nodes: found.nodes,
        closed,
        waiting,
        week,
    };
    let pages = export.write(&gpufrac_web::files(&site))?;
    println!(
        "{pages} files of {} nodes and {} jobs are in {}",
        site.nodes.len(),
        site.histories.len(),
        args.export.display()
    );
    for problem in &problems {
        eprintln!("gpufrac: {problem}");
    }
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Broken })
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The nodes on which Slurm starts no job, with their state; none where Slurm gave no answer, which the requests say.
fn closed(config: &Config) -> BTreeMap<String, String> {
    let said = slurm_says("sinfo", &slurm::SINFO, &[]).map(|said| said.stdout);
    let nodes = slurm::nodes(&said.unwrap_or_default(), config).into_iter();
    let closed = nodes.filter(|node| !node.takes_jobs());
    closed
        .filter_map(|node| Some((node.node, node.state?)))
        .collect()
}

/// The requests that wait, by partition, size and reason; of jobs of all users, without their names.
fn waiting(config: &Config) -> Result<Vec<Waiting>, String> {
    // Each task of an array is a job.
    let args = [&["--array"], &slurm::SQUEUE[..], &["PENDING"]].concat();
    let said = slurm_says("squeue", &args, &[slurm::TIMES]).map_err(|error| error.to_string())?;
    let mut sums: Vec<Waiting> = Vec::new();
    for job in slurm::jobs(&said.stdout, &config.count_name) {
        let job = job.waits(config);
        let same = |sum: &&mut Waiting| {
            (&sum.partition, &sum.size, &sum.reason) == (&job.partition, &job.fraction, &job.reason)
        };
        match sums.iter_mut().find(same) {
            Some(sum) => {
                sum.jobs += 1;
                sum.starts = sum.starts.into_iter().chain(job.starts).min();
            }
            None => sums.push(Waiting {
                partition: job.partition,
                size: job.fraction,
                reason: job.reason,
                jobs: 1,
                starts: job.starts,
            }),
        }
    }
    sums.sort();
    Ok(sums)
}
