//! The first questions of a user: the own jobs, and the sizes that could start now.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::thread;

use gpufrac_core::config::Config;
use gpufrac_core::ids::JobId;
use gpufrac_core::submit;
use gpufrac_slurm_settings::AskError;
use gpufrac_view::cluster::{Free, Later, OwnJob, OwnSlice, Report, Start, Waiting};

use super::ask;

/// Seconds within which a job starts that starts now: Slurm plans in steps.
const NOW: u64 = 60;
/// The most questions to slurmctld about what could start: each plans a job under slurmctld's locks, and users repeat
/// the command.
const MOST_QUESTIONS: usize = 8;
/// The most sizes of a partition that are tried, where its pools give each percent.
const SIZES: [&str; 5] = ["1", "0.5", "0.25", "0.1", "0.05"];
/// A longer menu is not tried size by size.
const MOST_SIZES: usize = 12;

/// The jobs with their slices in the cluster.
pub fn with_slices(mut jobs: Vec<OwnJob>, report: &Report) -> Vec<OwnJob> {
    let mut places: HashMap<JobId, Vec<OwnSlice>> = HashMap::new();
    for held in report.slices() {
        if let Some(owner) = held.owner() {
            let own = places.entry(owner.job).or_default();
            own.push(OwnSlice::of(held));
        }
    }
    for job in &mut jobs {
        job.slices = places.remove(&job.job).unwrap_or_default();
    }
    jobs
}

/// The data by which the questions are chosen.
pub struct QueueFacts<'a> {
    pub config: &'a Config,
    /// Room in the cluster; partitions without known room have no row.
    pub free: &'a [Free],
    /// The jobs that wait; None where Slurm was not asked.
    pub waiting: Option<&'a [Waiting]>,
    /// Seconds since 1970.
    pub now: u64,
}

/// For each partition the largest size that would start now, or when one is expected.
pub fn starts(known: &QueueFacts<'_>) -> Result<Vec<Start>, AskError> {
    // squeue is asked where an answer needs it, and once for all partitions. The question about the own jobs reports a
    // squeue that fails.
    let asked: OnceLock<Vec<Waiting>> = OnceLock::new();
    let ask_once = || asked.get_or_init(|| ask::waiting(known.config).unwrap_or_default());
    let waits = |partition: &str| {
        let waiting = known.waiting.unwrap_or_else(|| ask_once());
        waiting.iter().any(|job| job.wants(partition))
    };
    let slurm = Slurm {
        now: known.now,
        ask: &ask::start,
        waits: &waits,
    };
    let searches = partitions(known).into_iter();
    let searches = searches.map(|name| Search::new(name, sizes(known, name)));
    all(searches.collect(), &slurm)
}

/// Asks the first question about each partition at the same time, then further ones while there may be any.
fn all(mut searches: Vec<Search>, slurm: &Slurm<'_>) -> Result<Vec<Start>, AskError> {
    at_once(searches.iter_mut(), |search| search.ask(slurm))?;
    let mut left = MOST_QUESTIONS.saturating_sub(searches.len());
    for search in &mut searches {
        while left > 0 && !search.is_over() {
            search.ask(slurm)?;
            left -= 1;
        }
    }
    let with_larger = searches.iter_mut().filter(|it| it.larger().is_some());
    at_once(with_larger.take(left), |search| search.ask_larger(slurm))?;
    Ok(searches.into_iter().map(|search| search.start).collect())
}

/// Each question waits for slurmctld.
fn at_once<'a>(
    searches: impl Iterator<Item = &'a mut Search>,
    step: impl Fn(&mut Search) -> Result<(), AskError> + Sync,
) -> Result<(), AskError> {
    let step = &step;
    thread::scope(|scope| {
        let threads: Vec<_> = searches.map(|it| scope.spawn(move || step(it))).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    })
}

/// The partitions to ask about, in the order of the configuration: where there are many, those with the largest free
/// sizes.
fn partitions<'a>(known: &QueueFacts<'a>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in known.config.pools.iter().flat_map(|pool| &pool.partitions) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let largest_free = |name: &&str| {
        let free = known.free.iter();
        let free = free.filter(|free| free.partition == *name && free.jobs > 0);
        free.map(|free| free.units).max()
    };
    let mut useful = names.clone();
    useful.sort_by_key(|name| Reverse(largest_free(name)));
    useful.truncate(MOST_QUESTIONS);
    names.retain(|name| useful.contains(name));
    names
}

/// A size of a partition.
struct Size {
    fraction: String,
    /// Whether a GPU has room for it; None where that is not known.
    has_room: Option<bool>,
}

/// The sizes to try, largest first.
fn sizes(known: &QueueFacts<'_>, partition: &str) -> Vec<Size> {
    let allowed = submit::sizes(known.config, partition);
    let is_long = allowed.len() > MOST_SIZES;
    let room: HashMap<&str, u32> = known
        .free
        .iter()
        .filter(|free| free.partition == partition)
        .map(|free| (free.fraction.as_str(), free.jobs))
        .collect();
    let sizes = allowed.iter().rev().map(|size| size.fraction.to_string());
    let listed = sizes.filter(|fraction| {
        let is_counted = room.contains_key(fraction.as_str());
        !is_long || is_counted || (room.is_empty() && SIZES.contains(&fraction.as_str()))
    });
    let sizes = listed.map(|fraction| Size {
        has_room: room.get(fraction.as_str()).map(|jobs| *jobs > 0),
        fraction,
    });
    sizes.collect()
}

/// Says when a job of a size would start in a partition: partition, size.
type Ask<'a> = dyn Fn(&str, &str) -> Result<Option<u64>, AskError> + Sync + 'a;

/// What answers the questions.
struct Slurm<'a> {
    now: u64,
    ask: &'a Ask<'a>,
    /// Whether jobs wait in a partition.
    waits: &'a (dyn Fn(&str) -> bool + Sync),
}

/// The search for the largest size that would start now in a partition.
struct Search {
    sizes: Vec<Size>,
    /// The largest that may have room, or the smallest.
    first: usize,
    /// The sizes that are left to ask about, the next one last.
    left: Vec<usize>,
    start: Start,
}

impl Search {
    fn new(partition: &str, sizes: Vec<Size>) -> Search {
        let last = sizes.len().saturating_sub(1);
        let with_room = sizes.iter().position(|size| size.has_room != Some(false));
        let first = with_room.unwrap_or(last);
        // If the smallest size has to wait, nothing would start now.
        let mut left = vec![last, (first + 1).min(last), first];
        left.dedup();
        if sizes.is_empty() {
            left.clear();
        }
        let start = Start {
            partition: partition.to_owned(),
            ..Start::default()
        };
        Search {
            sizes,
            first,
            left,
            start,
        }
    }

    fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Asks about the next size.
    fn ask(&mut self, slurm: &Slurm<'_>) -> Result<(), AskError> {
        let Some(size) = self.left.pop().and_then(|at| self.sizes.get(at)) else {
            return Ok(());
        };
        let start = &mut self.start;
        match (slurm.ask)(&start.partition, &size.fraction) {
            Ok(Some(at)) if at <= slurm.now + NOW => {
                start.now = Some(size.fraction.clone());
                self.left.clear();
            }
            // The smallest size that has to wait is the next that becomes possible.
            Ok(starts) => {
                start.more = Some(later(size, starts));
                if size.has_room == Some(true) && (slurm.waits)(&start.partition) {
                    start.backfill = Some(size.fraction.clone());
                    // Slurm plans smaller ones behind the same jobs.
                    self.left.clear();
                }
            }
            Err(AskError::Refused(_, why)) => start.refused = Some(why),
            Err(error) => return Err(error),
        }
        if start.now.is_some() || start.more.is_some() {
            start.refused = None;
        }
        Ok(())
    }

    /// The next larger size, where one would start now.
    fn larger(&self) -> Option<&Size> {
        let is_found = self.start.now.is_some() && self.start.more.is_none();
        let larger = self.first.checked_sub(1).filter(|_| is_found)?;
        self.sizes.get(larger)
    }

    /// Asks when the next larger size is expected.
    fn ask_larger(&mut self, slurm: &Slurm<'_>) -> Result<(), AskError> {
        let Some(larger) = self.larger() else {
            return Ok(());
        };
        // A size that Slurm refuses is not expected.
        if let Ok(starts) = (slurm.ask)(&self.start.partition, &larger.fraction) {
            self.start.more = Some(later(larger, starts));
        }
        Ok(())
    }
}

fn later(size: &Size, starts: Option<u64>) -> Later {
    Later {
        fraction: size.fraction.clone(),
        starts,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A Slurm that starts each size at a time; `-` is a refusal.
    struct Told<'a> {
        slurm: &'a [(&'a str, &'a str)],
        waits: bool,
    }

    impl<'a> Told<'a> {
        fn new(slurm: &'a [(&'a str, &'a str)]) -> Told<'a> {
            Told {
                slurm,
                waits: false,
            }
        }

        /// The answers for partitions with these sizes, each with a mark where a GPU has room, and the sizes that Slurm
        /// was asked about.
        fn found_in(&self, partitions: usize, sizes: &[(&str, bool)]) -> (Vec<Start>, Vec<String>) {
            let size = |(fraction, has_room): &(&str, bool)| Size {
                fraction: (*fraction).to_owned(),
                has_room: Some(*has_room),
            };
            let asked = Mutex::new(Vec::new());
            let ask = |_: &str, fraction: &str| {
                asked.lock().unwrap().push(fraction.to_owned());
                let mut told = self.slurm.iter();
                match told.find(|(size, _)| *size == fraction).unwrap().1 {
                    "-" => Err(AskError::Refused("sbatch", "no account".to_owned())),
                    told => Ok(told.parse().ok()),
                }
            };
            let slurm = Slurm {
                now: 1_000,
                ask: &ask,
                waits: &|_: &str| self.waits,
            };
            let searches = (0..partitions).map(|number| {
                let sizes = sizes.iter().map(size);
                Search::new(&format!("p{number}"), sizes.collect())
            });
            let starts = all(searches.collect(), &slurm).unwrap();
            (starts, asked.into_inner().unwrap())
        }

        fn found(&self, sizes: &[(&str, bool)]) -> (Start, Vec<String>) {
            let (mut starts, asked) = self.found_in(1, sizes);
            (starts.remove(0), asked)
        }
    }

    fn now(fraction: &str) -> Option<String> {
        Some(fraction.to_owned())
    }

    fn more(fraction: &str, starts: Option<u64>) -> Option<Later> {
        let fraction = fraction.to_owned();
        Some(Later { fraction, starts })
    }

    /// Promise (admins): users see their jobs and what could start now, and when more is expected.
    /// With `room_that_slurm_does_not_give_is_expected_later`,
    /// `on_a_login_node_a_user_sees_own_jobs_what_could_start_and_what_to_type`.
    #[test]
    fn one_question_finds_the_largest_size_and_a_further_one_the_next() {
        let sizes = [("0.5", false), ("0.25", true), ("0.125", true)];
        let slurm = [("0.5", "4600"), ("0.25", "1001"), ("0.125", "1000")];
        let (start, asked) = Told::new(&slurm).found(&sizes);
        assert_eq!(
            (start.now, start.more),
            (now("0.25"), more("0.5", Some(4600)))
        );
        assert_eq!(asked, ["0.25", "0.5"]);
    }

    #[test]
    fn room_that_slurm_does_not_give_is_expected_later() {
        let sizes = [("0.5", true), ("0.25", true), ("0.125", true)];
        let slurm = [("0.5", "9000"), ("0.25", "5000"), ("0.125", "1000")];
        let (start, asked) = Told::new(&slurm).found(&sizes);
        assert_eq!(
            (start.now, start.more),
            (now("0.125"), more("0.25", Some(5000)))
        );
        assert_eq!(asked.len(), 3);
        let late = [("0.5", "9000"), ("0.25", "8000"), ("0.125", "7000")];
        let (start, _) = Told::new(&late).found(&sizes);
        assert_eq!(
            (&start.now, &start.backfill, &start.more),
            (&None, &None, &more("0.125", Some(7000)))
        );
    }

    #[test]
    fn behind_jobs_that_wait_one_question_suffices() {
        let sizes = [("0.5", false), ("0.25", true), ("0.125", true)];
        let slurm = [("0.25", "8000"), ("0.125", "7000")];
        let mut told = Told::new(&slurm);
        told.waits = true;
        let (start, asked) = told.found(&sizes);
        // A short job may be started before jobs that wait.
        assert_eq!((&start.now, &start.backfill), (&None, &now("0.25")));
        assert_eq!(start.more, more("0.25", Some(8000)));
        assert_eq!(asked, ["0.25"]);
        // In a full partition there is no room for a short one either.
        let (start, asked) = told.found(&[("0.25", false), ("0.125", false)]);
        assert_eq!(
            (start.backfill, start.more),
            (None, more("0.125", Some(7000)))
        );
        assert_eq!(asked, ["0.125"]);
    }

    #[test]
    fn a_full_partition_names_its_smallest_size_and_a_refusal_its_reason() {
        let sizes = [("0.5", false), ("0.25", false)];
        let (start, asked) = Told::new(&[("0.5", "9"), ("0.25", "2000")]).found(&sizes);
        assert_eq!((start.now, start.more), (None, more("0.25", Some(2000))));
        assert_eq!(asked, ["0.25"]);
        let sizes = ["1", "0.5", "0.25", "0.125"].map(|size| (size, true));
        let refusals = sizes.map(|(size, _)| (size, "-"));
        let (start, asked) = Told::new(&refusals).found(&sizes);
        assert_eq!(
            (start.now, start.refused.as_deref()),
            (None, Some("no account"))
        );
        assert_eq!(asked, ["1", "0.5", "0.125"]);
        // A limit of the user can forbid the larger size alone.
        let limited = [("1", "-"), ("0.5", "1000")];
        let (start, _) = Told::new(&limited).found(&sizes);
        assert_eq!(
            (start.now, start.more, start.refused),
            (now("0.5"), None, None)
        );
    }

    #[test]
    fn many_partitions_share_the_questions() {
        let sizes = [("0.5", true), ("0.25", true), ("0.125", true)];
        let late = sizes.map(|(size, _)| (size, "9000"));
        for (partitions, questions) in [(1, 3), (2, 6), (3, 8), (5, 8), (8, 8)] {
            let (starts, asked) = Told::new(&late).found_in(partitions, &sizes);
            assert_eq!((starts.len(), asked.len()), (partitions, questions));
            assert!(starts.iter().all(|start| start.more.is_some()));
        }
        let rooms = [("0.5", false), ("0.25", true), ("0.125", true)];
        let soon = [("0.5", "9000"), ("0.25", "1000")];
        for (partitions, with_more) in [(4, 4), (5, 3), (8, 0)] {
            let (starts, asked) = Told::new(&soon).found_in(partitions, &rooms);
            assert!(starts.iter().all(|start| start.now == now("0.25")));
            let more = starts.iter().filter(|start| start.more.is_some());
            assert_eq!(
                (more.count(), asked.len()),
                (with_more, partitions + with_more)
            );
        }
        let (starts, asked) = Told::new(&late).found_in(1, &[]);
        assert_eq!((starts.len(), asked.len()), (1, 0));
    }

    #[test]
    fn of_many_partitions_those_with_the_largest_free_sizes_are_asked_about() {
        let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
        let text = format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\nnodes = \"n1\"\npartitions = {names:?}\n"
        );
        let config = Config::parse(&text, "gpufrac.toml").unwrap();
        let free = |name: &str, units: u32, jobs: u32| Free {
            partition: name.to_owned(),
            fraction: units.to_string(),
            units,
            jobs,
        };
        let known = |free| QueueFacts {
            config: &config,
            free,
            waiting: None,
            now: 1_000,
        };
        let rows = [free("p3", 50, 0), free("p12", 25, 1), free("p18", 50, 2)];
        let asked = partitions(&known(&rows));
        assert_eq!(asked, ["p0", "p1", "p2", "p3", "p4", "p5", "p12", "p18"]);
        assert_eq!(partitions(&known(&[])).len(), MOST_QUESTIONS);
    }
}
