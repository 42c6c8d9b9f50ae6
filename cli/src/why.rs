//! `gpufrac why`: prints why a job was warned or ended.

use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_core::ids::JobId;
use gpufrac_host::exit::Exit;
use gpufrac_node::state::private::{JOBS, RECORDS};
use gpufrac_page::words::plain;
use gpufrac_records::evidence::Record;
use gpufrac_records::find::find;
use gpufrac_view::why::{self, chart};

use crate::args::WhyArgs;
use crate::error::{CliError, JobWhereabouts};
use crate::{own, slurm};

/// The width of a line in characters.
const WIDTH: usize = 80;
/// The argument that stands for stdout.
const STDOUT: &str = "-";

pub fn run(args: &WhyArgs) -> Result<Exit, CliError> {
    let job = job_id(&args.job)?;
    let config = args.config.read()?;
    let node = args.config.node_name();
    let places = places(&config, &node);
    let found = find(job, &places);
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
        // The job ran on several nodes or several times. Cure: Name the node with `--node`.
        eprintln!(
            "gpufrac: the chart shows the last record, which is of node {:?}",
            last.node
        );
    }
    if found.problems.is_empty() { Ok(Exit::Done) } else { Ok(Exit::Broken) }
}

/// The id of a job in a user's text.
pub fn job_id(text: &str) -> Result<JobId, CliError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let id = digits.then(|| text.parse().ok()).flatten();
    // scontrol and squeue take 0 for all jobs.
    let id = id.filter(|id| *id != JobId(0));
    id.ok_or_else(|| CliError::NotAJob { text: plain(text) })
}

/// The folders of records: of running jobs on this node, of ended ones, and of all nodes.
pub fn places(config: &Config, node: &str) -> Vec<PathBuf> {
    let paths = config.paths.for_node(node);
    let (run, state) = (PathBuf::from(paths.run), PathBuf::from(paths.state));
    let mut places = vec![
        own::readable(run.join("reaper/jobs"), &run, JOBS),
        own::readable(state.join("reaper"), &state, RECORDS),
    ];
    if let Some(shared) = paths.shared.map(PathBuf::from) {
        places.push(own::readable(shared.join("records"), &shared, RECORDS));
    }
    places
}

/// What Slurm knows of a job without a record. The answer is only a hint.
fn known(job: JobId, node: &str) -> JobWhereabouts {
    match slurm::job(job) {
        Ok(Some(found)) if found.nodes.iter().any(|known| known == node) => JobWhereabouts::Here,
        Ok(Some(found)) if found.nodes.is_empty() => JobWhereabouts::NotStarted,
        Ok(Some(found)) => JobWhereabouts::On(found.nodes),
        Ok(None) => JobWhereabouts::Nowhere,
        Err(_) => JobWhereabouts::Unasked,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_ids_are_ids() {
        assert_eq!(job_id("4242").unwrap(), JobId(4242));
        for wrong in [
            "",
            "123_7",
            "123_[1-3]",
            "12+1",
            "12.0",
            "+12",
            "99999999999",
        ] {
            let said = job_id(wrong).unwrap_err().to_string();
            assert!(said.contains("JobIDRaw"), "{said}");
        }
    }
}
