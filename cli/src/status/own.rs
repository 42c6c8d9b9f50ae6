//! The first questions of a user: the own jobs, and the sizes that could start now.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::thread;

use gpufrac_core::config::Config;
use gpufrac_core::ids::JobId;
use gpufrac_core::submit;
use gpufrac_slurm_settings::AskError;
use gpufrac_view::cluster::{Later, OwnJob, OwnSlice, Report, Start, Waiting};

use super::ask;

/// Seconds within which a job starts that starts now: Slurm plans in steps.
const NOW: u64 = 60;
/// The most questions to slurmctld about a partition; each plans a job.
const MOST_QUESTIONS: usize = 4;
/// The most partitions that are asked about.
const MOST_PARTITIONS: usize = 8;
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

/// For each partition the largest size that would start now, and when more is expected.
pub fn starts(config: &Config, report: &Report, now: u64) -> Result<Vec<Start>, AskError> {
    let mut names: Vec<&str> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| &pool.partitions) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.truncate(MOST_PARTITIONS);
    // squeue is asked where an answer needs it, and once for all partitions. The question about the own jobs reports a squeue that fails.
    let asked: OnceLock<Vec<Waiting>> = OnceLock::new();
    let ask_once = || asked.get_or_init(|| ask::waiting(config).unwrap_or_default());
    let waits = |name: &str| {
        let waiting = report.waiting.as_ref().unwrap_or_else(ask_once);
        waiting.iter().any(|job| job.wants(name))
    };
    let waits = &waits;
    let asked = thread::scope(|scope| {
        let threads: Vec<_> = names
            .into_iter()
            .map(|name| {
                let sizes = sizes(config, report, name);
                scope.spawn(move || {
                    let start = of_partition(name, &sizes, now, ask::start)?;
                    Ok(with_backfill(start, &sizes, || waits(name)))
                })
            })
            .collect();
        let joined = threads.into_iter().filter_map(|it| it.join().ok());
        joined.collect::<Vec<_>>()
    });
    asked.into_iter().collect()
}

/// A size of a partition.
struct Size {
    fraction: String,
    /// Whether a GPU has room for it; None where that is not known.
    has_room: Option<bool>,
}

/// The sizes to try, largest first.
fn sizes(config: &Config, report: &Report, partition: &str) -> Vec<Size> {
    let allowed = submit::sizes(config, partition);
    let is_long = allowed.len() > MOST_SIZES;
    let room: HashMap<&str, u32> = report
        .free
        .iter()
        .filter(|free| free.partition == partition)
        .map(|free| (free.fraction.as_str(), free.jobs))
        .collect();
    let sizes = allowed.iter().rev().map(|size| size.fraction.to_string());
    let listed = sizes.filter(|fraction| {
        let known = room.contains_key(fraction.as_str());
        !is_long || known || (room.is_empty() && SIZES.contains(&fraction.as_str()))
    });
    let sizes = listed.map(|fraction| Size {
        has_room: room.get(fraction.as_str()).map(|jobs| *jobs > 0),
        fraction,
    });
    sizes.collect()
}

/// Asks Slurm about a few sizes. `ask` says when a job of a size would start.
fn of_partition(
    partition: &str,
    sizes: &[Size],
    now: u64,
    ask: impl Fn(&str, &str) -> Result<Option<u64>, AskError>,
) -> Result<Start, AskError> {
    let mut start = Start {
        partition: partition.to_owned(),
        now: None,
        backfill: None,
        more: None,
        refused: None,
    };
    let first = sizes.iter().position(|size| size.has_room != Some(false));
    let first = first.unwrap_or(sizes.len().saturating_sub(1));
    for size in sizes.iter().skip(first).take(MOST_QUESTIONS - 1) {
        match ask(partition, &size.fraction) {
            Ok(Some(at)) if at <= now + NOW => {
                start.now = Some(size.fraction.clone());
                break;
            }
            // The smallest size that has to wait is the next that becomes possible.
            Ok(starts) => start.more = Some(later(size, starts)),
            Err(AskError::Refused(_, why)) => start.refused = Some(why),
            Err(error) => return Err(error),
        }
    }
    if start.now.is_some() || start.more.is_some() {
        start.refused = None;
    }
    let larger = first.checked_sub(1).and_then(|at| sizes.get(at));
    if let (Some(larger), None, Some(_)) = (larger, &start.more, &start.now) {
        // A size that Slurm refuses is not expected.
        if let Ok(starts) = ask(partition, &larger.fraction) {
            start.more = Some(later(larger, starts));
        }
    }
    Ok(start)
}

/// Adds the size that has room although Slurm plans it behind jobs that wait.
fn with_backfill(mut start: Start, sizes: &[Size], others_wait: impl FnOnce() -> bool) -> Start {
    let with_room = sizes.iter().find(|size| size.has_room == Some(true));
    if let Some(size) = with_room
        && start.now.is_none()
        && start.more.is_some()
        && others_wait()
    {
        start.backfill = Some(size.fraction.clone());
    }
    start
}

fn later(size: &Size, starts: Option<u64>) -> Later {
    Later {
        fraction: size.fraction.clone(),
        starts,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Sizes with a mark where a GPU has room, against a Slurm that starts each size at a time; `-` is a refusal.
    fn found(sizes: &[(&str, bool)], slurm: &[(&str, &str)]) -> (Start, Vec<String>) {
        let sizes = sizes.iter().map(|(fraction, has_room)| Size {
            fraction: (*fraction).to_owned(),
            has_room: Some(*has_room),
        });
        let sizes: Vec<Size> = sizes.collect();
        let asked = RefCell::new(Vec::new());
        let start = of_partition("gpu", &sizes, 1_000, |_, fraction| {
            asked.borrow_mut().push(fraction.to_owned());
            let (_, told) = slurm.iter().find(|(size, _)| *size == fraction).unwrap();
            match *told {
                "-" => Err(AskError::Refused("sbatch", "no account".to_owned())),
                told => Ok(told.parse().ok()),
            }
        });
        (start.unwrap(), asked.into_inner())
    }

    fn now(fraction: &str) -> Option<String> {
        Some(fraction.to_owned())
    }

    fn more(fraction: &str, starts: Option<u64>) -> Option<Later> {
        let fraction = fraction.to_owned();
        Some(Later { fraction, starts })
    }

    #[test]
    fn the_largest_size_with_room_starts_now_and_the_next_one_later() {
        let sizes = [("0.5", false), ("0.25", true), ("0.125", true)];
        let slurm = [("0.5", "4600"), ("0.25", "1001"), ("0.125", "1000")];
        let (start, asked) = found(&sizes, &slurm);
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
        let (start, _) = found(&sizes, &slurm);
        assert_eq!(
            (start.now, start.more),
            (now("0.125"), more("0.25", Some(5000)))
        );
        let slurm = [("0.5", "9000"), ("0.25", "8000"), ("0.125", "7000")];
        let (start, _) = found(&sizes, &slurm);
        assert_eq!(
            (&start.now, &start.more),
            (&None, &more("0.125", Some(7000)))
        );
        // A short job may be started before jobs that wait.
        let known = [("0.5", Some(false)), ("0.25", Some(true)), ("0.125", None)];
        let known = known.map(|(fraction, has_room)| Size {
            fraction: fraction.to_owned(),
            has_room,
        });
        let short = |waits| with_backfill(start.clone(), &known, || waits).backfill;
        assert_eq!((short(true), short(false)), (now("0.25"), None));
    }

    #[test]
    fn a_full_partition_names_its_smallest_size_and_a_refusal_its_reason() {
        let sizes = [("0.5", false), ("0.25", false)];
        let (start, asked) = found(&sizes, &[("0.5", "9"), ("0.25", "2000")]);
        assert_eq!((start.now, start.more), (None, more("0.25", Some(2000))));
        assert_eq!(asked, ["0.25"]);
        let sizes = [("0.5", true), ("0.25", true)];
        let (start, _) = found(&sizes, &[("0.5", "-"), ("0.25", "-")]);
        assert_eq!(
            (start.now, start.refused.as_deref()),
            (None, Some("no account"))
        );
        // A limit of the user can forbid the larger size alone.
        let (start, _) = found(&sizes, &[("0.5", "-"), ("0.25", "1000")]);
        assert_eq!(
            (start.now, start.more, start.refused),
            (now("0.25"), None, None)
        );
    }
}
