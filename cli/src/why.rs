//! `gpufrac why`: prints why a job was warned or ended.

use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_core::ids::JobId;
use gpufrac_host::exit::Exit;
use gpufrac_reaper::keep::evidence::Record;
use gpufrac_reaper::keep::own as copies;
use gpufrac_reaper::report::{chart, why};

use crate::args::WhyArgs;
use crate::error::{CliError, Known};
use crate::{own, slurm};

/// The width of a line in characters.
const WIDTH: usize = 80;
/// The argument that stands for stdout.
const STDOUT: &str = "-";

pub fn run(args: &WhyArgs) -> Result<Exit, CliError> {
    let job = why::job_id(&args.job)?;
    let config = args.config.read()?;
    let node = args.config.node_name();
    let places = places(&config, &node);
    let found = why::find(job, &places);
    for problem in &found.problems {
        eprintln!("gpufrac: {problem}");
    }
    let Some(last) = found.records.last() else {
        return Err(CliError::NoRecord {
            job,
            known: known(job, &node),
            node,
            places: list(&places),
        });
    };
    match &args.svg {
        // With the chart on stdout, nothing else is printed there.
        Some(file) if file == Path::new(STDOUT) => print!("{}", chart::svg(last)),
        Some(file) => {
            print!("{}", text(&found.records));
            write(file, &chart::svg(last))?;
        }
        None => print!("{}", text(&found.records)),
    }
    if args.svg.is_some() && found.records.len() > 1 {
        eprintln!(
            "gpufrac: the chart shows the last record, which is of node {:?}",
            last.node
        );
    }
    if found.problems.is_empty() { Ok(Exit::Done) } else { Ok(Exit::Broken) }
}

/// The folders of records: of running jobs on this node, of ended ones, and of all nodes.
pub fn places(config: &Config, node: &str) -> Vec<PathBuf> {
    let paths = config.paths.for_node(node);
    let (run, state) = (PathBuf::from(paths.run), PathBuf::from(paths.state));
    let mut places = vec![
        own::readable(run.join("reaper/jobs"), &run, copies::JOBS),
        own::readable(state.join("reaper"), &state, copies::RECORDS),
    ];
    if let Some(shared) = paths.shared.map(PathBuf::from) {
        places.push(own::readable(
            shared.join("records"),
            &shared,
            copies::RECORDS,
        ));
    }
    places
}

/// What Slurm knows of a job without a record. The answer is only a hint.
fn known(job: JobId, node: &str) -> Known {
    match slurm::job(job) {
        Ok(Some(found)) if found.nodes.iter().any(|known| known == node) => Known::Here,
        Ok(Some(found)) if found.nodes.is_empty() => Known::NotStarted,
        Ok(Some(found)) => Known::On(found.nodes),
        Ok(None) => Known::Nowhere,
        Err(_) => Known::Unasked,
    }
}

fn list(places: &[PathBuf]) -> String {
    let names = places.iter().map(|place| format!("`{}`", place.display()));
    names.collect::<Vec<_>>().join(", ")
}

fn text(records: &[Record]) -> String {
    let told = records
        .iter()
        .map(|record| why::explain(record, WIDTH).join("\n") + "\n");
    told.collect::<Vec<_>>().join("\n\n")
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|source| CliError::Write {
        path: path.to_owned(),
        source,
    })
}
