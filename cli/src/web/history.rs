//! The use of jobs over time: each export adds a sample to the file of the job that the export before wrote. A job that is
//! seen for the first time begins with the samples of its evidence record, where this host has one.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufrac_core::config::Paths;
use gpufrac_core::ids::JobId;
use gpufrac_reaper::keep::evidence::Record;
use gpufrac_reaper::report::why;
use gpufrac_view::Node;
use gpufrac_web::{History, JOBS, JobFile, Point, VERSION};

use super::export::Export;
use crate::error::CliError;
use crate::node_files::is_listed;

/// The history of each job that has a slice.
pub fn of(
    export: &Export,
    nodes: &[Arc<Node>],
    paths: &Paths,
) -> Result<BTreeMap<u32, History>, CliError> {
    let mut records = None;
    let mut histories = BTreeMap::new();
    for (job, sample) in gpufrac_web::samples(nodes) {
        let mut history = match before(export, job, sample.began) {
            Some(history) => history,
            None => records
                .get_or_insert_with(|| Records::of(paths))
                .history(job),
        };
        history.add(sample.point);
        histories.insert(job, history);
    }
    Ok(histories)
}

/// The history in the job's file; None where there is none, or where the job began again since.
fn before(export: &Export, job: u32, began: u64) -> Option<History> {
    let text = export.read(JOBS, &format!("{job}.json"))?;
    let file: JobFile = serde_json::from_str(&text).ok()?;
    if file.version != VERSION || file.job != job {
        return None;
    }
    let first = file.history.points.first();
    first
        .is_none_or(|first| first.at >= began)
        .then_some(file.history)
}

/// The folders of records on this host.
struct Records {
    places: Vec<PathBuf>,
    /// Jobs that have a record.
    jobs: HashSet<u32>,
}

impl Records {
    fn of(paths: &Paths) -> Records {
        let own = [
            Path::new(&paths.run).join("reaper/jobs"),
            Path::new(&paths.state).join("reaper"),
        ];
        let shared = paths
            .shared
            .as_ref()
            .map(|shared| Path::new(shared).join("records"));
        // The pages are for all users: they say nothing of records that Slurm's PrivateData hides.
        let places = own.into_iter().chain(shared);
        let places: Vec<PathBuf> = places.filter(|place| is_listed(place)).collect();
        let jobs = places.iter().flat_map(|place| jobs_in(place)).collect();
        Records { places, jobs }
    }

    fn history(&self, job: u32) -> History {
        let mut history = History::default();
        if !self.jobs.contains(&job) {
            return history;
        }
        let found = why::find(JobId(job), &self.places);
        if let Some(record) = found.records.last() {
            points(record).for_each(|point| history.add(point));
        }
        history
    }
}

/// The jobs with a record in a folder.
fn jobs_in(place: &Path) -> HashSet<u32> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let ids = names.filter_map(|name| {
        name.to_string_lossy()
            .split(['-', '.'])
            .next()?
            .parse()
            .ok()
    });
    ids.collect()
}

fn points(record: &Record) -> impl Iterator<Item = Point> {
    let step = record.series.step_ms;
    let began = record.began_unix;
    let points = (0_u64..).zip(&record.series.points);
    points
        .filter(|(_, point)| point.samples > 0)
        .map(move |(place, point)| Point {
            at: began + place * step / 1000,
            activity: (point.unknown < point.samples).then_some(f64::from(point.peak)),
            memory_mib: Some(point.memory_mib.into()),
        })
}
