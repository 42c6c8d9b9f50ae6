//! The use of jobs over time: each export adds a sample to the file of the job that the export before wrote. A job that
//! is seen for the first time begins with the samples of its evidence record, where this host has one.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufrac_core::config::Paths;
use gpufrac_core::ids::JobId;
use gpufrac_records::evidence::Record;
use gpufrac_records::find::find;
use gpufrac_view::NodeStatus;
use gpufrac_web::{History, JOBS, JobFile, Point, VERSION};

use super::export::Export;
use crate::error::CliError;
use crate::node_files::is_listed;

/// The history of each job that has a slice.
pub fn of(
    export: &Export,
    nodes: &[Arc<NodeStatus>],
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
        let found = find(JobId(job), &self.places);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpufrac_records::evidence::{self, Source};

    use super::*;

    const NOW: u64 = test_examples::NOW;

    /// Four minutes of samples: busy at a third, unknown, none because the daemon did not run, idle.
    fn record(job: u32) -> Record {
        let mut record = Record::new(
            &test_examples::lease(job),
            NOW - 240,
            Duration::from_secs(60),
        );
        let point = |samples, unknown, peak, memory_mib| evidence::Point {
            samples,
            unknown,
            busy: 0,
            peak,
            memory_mib,
            source: Source::Gpm,
        };
        record.series.points = vec![
            point(6, 1, 0.25, 512),
            point(6, 6, 0.0, 1024),
            point(0, 0, 0.0, 0),
            point(3, 0, 0.0, 2048),
        ];
        record
    }

    struct World {
        folder: tempfile::TempDir,
        paths: Paths,
        nodes: Vec<Arc<NodeStatus>>,
    }

    impl World {
        /// A node on which job 12 has a slice, and a record of the job.
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name).display().to_string();
            let paths = Paths {
                run: path("run"),
                state: path("state"),
                shared: None,
                ..Paths::default()
            };
            let jobs = folder.path().join("run/reaper/jobs");
            fs::create_dir_all(&jobs).unwrap();
            let text = serde_json::to_string(&record(12)).unwrap();
            fs::write(jobs.join("12.json"), text).unwrap();
            let mut node = test_examples::nodes(1, 3).remove(0);
            node.gpus.truncate(1);
            let slices = &mut node.gpus[0].slices;
            slices.retain(|slice| slice.owner.is_some() && slice.usage.is_some());
            slices.truncate(1);
            slices[0].owner.as_mut().unwrap().job = JobId(12);
            slices[0].since = NOW - 250;
            World {
                folder,
                paths,
                nodes: vec![Arc::new(node)],
            }
        }

        fn history(&self) -> History {
            let export = Export::open(&self.folder.path().join("pages")).unwrap();
            let mut histories = of(&export, &self.nodes, &self.paths).unwrap();
            assert_eq!(histories.len(), 1);
            histories.remove(&12).unwrap()
        }
    }

    #[test]
    fn the_chart_of_a_job_begins_with_the_samples_of_its_record() {
        let world = World::new();
        let point = |before: u64, activity, memory_mib| Point {
            at: NOW - before,
            activity,
            memory_mib: Some(memory_mib),
        };
        let points = world.history().points;
        let expected = [
            point(240, Some(0.25), 512),
            point(180, None, 1024),
            point(60, Some(0.0), 2048),
        ];
        assert_eq!(points[..3], expected);
        // Then the sample of the export.
        assert_eq!(points.len(), 4);
        assert_eq!(points[3].at, world.nodes[0].written);
    }

    #[test]
    fn a_record_that_others_may_not_read_is_in_no_chart() {
        use std::os::unix::fs::PermissionsExt;
        let world = World::new();
        let jobs = world.folder.path().join("run/reaper/jobs");
        fs::set_permissions(jobs, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(world.history().points.len(), 1);
    }
}
