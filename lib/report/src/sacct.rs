//! Rows of sacct: what Slurm's accounting knows of jobs, to be joined with usage records.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use gpufrac_core::count_name::CountName;
use gpufrac_records::usage::{Ended, UsageRecord};
use gpufrac_slurm_conf::table::{Header, RowError, wrong};
use gpufrac_slurm_conf::value;

/// The field of newer series that says how often a job had been requeued before.
pub const RESTARTS: &str = "Restarts";

/// The fields that are asked for, as `--format` of sacct takes them. All of them are in every series.
const FIELDS: &str =
    "JobIDRaw,User,Account,QOS,Partition,State,ElapsedRaw,Start,End,AllocTRES,NodeList";

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Slurm's id of the job.
    pub job: u32,
    pub user: String,
    pub account: String,
    pub qos: String,
    pub partition: String,
    /// Why it ended; None while it runs.
    pub ended: Option<Ended>,
    /// How long it ran, without suspensions: seconds.
    pub elapsed: u64,
    /// When it started: seconds since 1970. Its end, where accounting has no start of it.
    pub start: u64,
    /// Units of `gres/gpufrac`, or of the name in `[gres]`, on all of its nodes together; 100 are a GPU.
    pub units: u64,
    /// Its nodes, as Slurm's hostlist.
    pub nodes: String,
    /// How often the job had been requeued before; None where sacct does not say.
    pub restarts: Option<u32>,
}

/// Reads the rows of sacct.
pub struct Reader {
    /// The fields to ask for.
    pub fields: String,
    header: Header,
    /// The TRES that counts fractions.
    units: String,
}

impl Reader {
    /// `count_name`: the GRES that counts fractions. `has_restarts`: whether sacct has [`RESTARTS`].
    pub fn new(count_name: &CountName, has_restarts: bool) -> Reader {
        let further = if has_restarts { format!(",{RESTARTS}") } else { String::new() };
        let fields = format!("{FIELDS}{further}");
        Reader {
            header: Header::of(&fields),
            fields,
            units: format!("gres/{count_name}"),
        }
    }

    /// Reads a row; None for one that never started. Errors: when it has other fields, or a field cannot be read.
    pub fn run(&self, line: &str) -> Result<Option<Run>, RowError> {
        let row = self.header.line(line)?;
        let text = |name| row.text(&[name]).map(str::to_owned);
        let state = text("State")?;
        let start = match row.time("Start")? {
            // A run that was requeued at once may have no start in accounting. Slurm numbers it among the runs
            // nevertheless.
            None if state == "REQUEUED" => row.time("End")?,
            start => start,
        };
        let Some(start) = start else {
            return Ok(None);
        };
        let tres = text("AllocTRES")?;
        let units = value::tres(&tres, &self.units).unwrap_or("0");
        Ok(Some(Run {
            job: row.needed("JobIDRaw")?,
            user: text("User")?,
            account: text("Account")?,
            qos: text("QOS")?,
            partition: text("Partition")?,
            ended: ended(&state),
            elapsed: row.needed("ElapsedRaw")?,
            start,
            // `gres/gpufrac` of `billing=25,cpu=1,gres/gpufrac=25`.
            units: units.parse().map_err(|_| wrong("AllocTRES", &tres))?,
            nodes: text("NodeList")?,
            restarts: row.number(&[RESTARTS])?,
        }))
    }
}

/// States as sacct shows them (`CANCELLED by 1000`).
fn ended(state: &str) -> Option<Ended> {
    match state.split(' ').next().unwrap_or_default() {
        "RUNNING" | "SUSPENDED" | "PENDING" | "COMPLETING" => None,
        "PREEMPTED" => Some(Ended::Preempted),
        "NODE_FAIL" | "BOOT_FAIL" => Some(Ended::NodeFailure),
        _ => Some(Ended::Done),
    }
}

/// All runs, by job.
#[derive(Debug, Default)]
pub struct Runs {
    by_job: HashMap<u32, Vec<RunWithRecords>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct RunWithRecords {
    run: Run,
    /// Units of the records that belong to it.
    recorded: u64,
    /// Signs of their nodes and slices.
    slices: Vec<u64>,
}

/// The fields of accounting for a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Match<'a> {
    /// The run of the record.
    Run(&'a Run),
    /// A run of which this slice already has a record: a prolog that was started twice.
    Counted,
    /// None.
    Unknown,
}

/// A prolog may take this long, and clocks of nodes may differ by some of it: seconds between the start of a run and
/// the lease of it.
const LONGEST_PROLOG_S: u64 = 300;
/// A step of a node's clock that is not taken for another life of the job's id.
const LONGEST_STEP_S: u64 = 86_400;
/// How much earlier than the period sacct is asked from, in seconds, where it does not number the runs of a job: their
/// order tells which is which only as long as the first one is among them.
pub const EARLIER_RUNS_S: u64 = 86_400;

impl Runs {
    pub fn add(&mut self, run: Run) {
        let known = RunWithRecords {
            run,
            recorded: 0,
            slices: Vec::new(),
        };
        let runs = self.by_job.entry(known.run.job).or_default();
        let place = runs.partition_point(|other| other.run.start <= known.run.start);
        runs.insert(place, known);
    }

    /// The run of a record.
    pub fn of(&mut self, record: &UsageRecord) -> Match<'_> {
        let slice = self.hasher.hash_one((&record.node, record.slice));
        let Some(runs) = self.by_job.get_mut(&record.job.0) else {
            return Match::Unknown;
        };
        let Some(place) = place(runs, record) else {
            return Match::Unknown;
        };
        let known = &mut runs[place];
        if known.slices.contains(&slice) {
            return Match::Counted;
        }
        known.slices.push(slice);
        known.recorded += u64::from(record.units);
        Match::Run(&known.run)
    }

    /// Runs with fractions that records do not have or not have whole, as on a node whose disk was lost, by job and
    /// start; and their units that are in no record.
    pub fn without_records(&self) -> Vec<(&Run, u64)> {
        let ran = |known: &&RunWithRecords| known.run.elapsed > 0;
        let all = self.by_job.values().flatten().filter(ran);
        let missing = all.map(|known| (&known.run, known.run.units.saturating_sub(known.recorded)));
        let mut missing: Vec<(&Run, u64)> = missing.filter(|&(_, units)| units > 0).collect();
        missing.sort_by_key(|(run, _)| (run.job, run.start));
        missing
    }
}

/// The place of a record's run among the runs of its job, which are in the order of their starts.
///
/// Times alone do not tell: a node's clock may have been stepped, and a job that was requeued starts again soon. The
/// number of requeues alone does not tell either: ids of jobs begin again where Slurm lost its state.
fn place(runs: &[RunWithRecords], record: &UsageRecord) -> Option<usize> {
    let begin = record.end.saturating_sub(record.seconds);
    let far = |known: &RunWithRecords| known.run.start.abs_diff(begin);
    let has_number = |known: &RunWithRecords| known.run.restarts == Some(record.restart_count);
    let nearest = |wanted: &dyn Fn(&RunWithRecords) -> bool| {
        let found = runs.iter().enumerate().filter(|(_, known)| wanted(known));
        let nearest = found.min_by_key(|(_, known)| far(known));
        nearest.map(|(place, _)| place)
    };
    let within = |place: &usize, longest| {
        let known = &runs[*place];
        far(known) <= longest && is_user_of(&known.run, record)
    };
    if let Some(place) = nearest(&has_number) {
        return Some(place).filter(|place| within(place, LONGEST_STEP_S));
    }
    // 22.05 does not number runs: of those near the record the one in its order, unless the first ones were cut off.
    let by_order = Some(record.restart_count as usize).filter(|&place| {
        place < runs.len() && runs[place].run.restarts.is_none() && within(&place, LONGEST_STEP_S)
    });
    let near = nearest(&|_| true).filter(|place| within(place, LONGEST_PROLOG_S));
    match (near, by_order) {
        (Some(_), Some(place)) if within(&place, LONGEST_PROLOG_S) => Some(place),
        (near, by_order) => near.or(by_order),
    }
}

/// Whether a run is one of the record's user. slurmdbd keeps names in small letters unless `PreserveCaseUser` is set,
/// and sacct prints no name where the job has no association and the host does not know the user.
fn is_user_of(run: &Run, record: &UsageRecord) -> bool {
    run.user.is_empty() || run.user.eq_ignore_ascii_case(&record.user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "12|ann|physics|normal|gpu|CANCELLED by 1000|60|2026-11-23T08:00:00|2026-11-23T08:01:00|billing=25,cpu=1,gres/gpufrac=25,node=1|gn01";

    fn parse(row: &str) -> Result<Option<Run>, RowError> {
        let has_restarts = row.split('|').count() > 11;
        Reader::new(&CountName::default(), has_restarts).run(row)
    }

    #[test]
    fn a_row_is_read() {
        let run = parse(ROW).unwrap().unwrap();
        assert_eq!((run.job, run.elapsed, run.units), (12, 60, 25));
        assert_eq!(run.start, 1_795_420_800);
        assert_eq!(run.ended, Some(Ended::Done));
        for (state, expected) in [
            ("PREEMPTED", Some(Ended::Preempted)),
            ("NODE_FAIL", Some(Ended::NodeFailure)),
            ("RUNNING", None),
        ] {
            let row = ROW.replace("CANCELLED by 1000", state);
            assert_eq!(parse(&row).unwrap().unwrap().ended, expected);
        }
    }

    #[test]
    fn fractions_may_have_another_name() {
        let row = ROW.replace("gres/gpufrac", "gres/frac");
        let reader = Reader::new(&"frac".parse().unwrap(), false);
        let run = reader.run(&row).unwrap().unwrap();
        assert_eq!(run.units, 25);
        assert_eq!(parse(&row).unwrap().unwrap().units, 0);
    }

    #[test]
    fn a_job_that_never_started_is_none_and_a_damaged_row_is_an_error() {
        let row = ROW.replace("2026-11-23T08:00:00", "Unknown");
        assert_eq!(parse(&row).unwrap(), None);
        for (row, part) in [
            (ROW.replace("|gn01", ""), "10 fields"),
            (format!("{ROW}|0|0"), "13 fields"),
            (format!("{ROW}|x"), "Restarts"),
            (ROW.replace("|60|", "|1:00|"), "ElapsedRaw"),
            (ROW.replace("=25,node", "=x,node"), "AllocTRES"),
            (ROW.replace("2026-11-23T08:00:00", "yesterday"), "Start"),
        ] {
            let error = parse(&row).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    fn record(restart_count: u32, node: &str, start: u64) -> UsageRecord {
        let text = format!(
            r#"{{"version":2,"job":12,"restart_count":{restart_count},"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"{node}","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":{start},"end":{},"seconds":60}}"#,
            start + 60
        );
        serde_json::from_str(&text).unwrap()
    }

    /// Three runs of a job, two minutes apart, as a series that numbers them says it, or as one that does not.
    fn three(are_numbered: bool) -> (Runs, u64) {
        let mut runs = Runs::default();
        let first = parse(ROW).unwrap().unwrap();
        for number in [2, 0, 1] {
            runs.add(Run {
                start: first.start + 120 * u64::from(number),
                restarts: are_numbered.then_some(number),
                ..first.clone()
            });
        }
        (runs, first.start)
    }

    /// Promise (admins): a record belongs to the run of its job whatever the clock of its node shows, counts once, and
    /// what records lack of a run is unknown.
    /// With `a_run_counts_a_slice_once_and_another_life_of_the_id_not_at_all`,
    /// `a_node_without_records_leaves_units_of_its_run`.
    #[test]
    fn a_run_is_found_by_its_number_where_the_clock_of_a_node_was_stepped() {
        for (are_numbered, step) in [(true, 3600), (true, 100), (false, 3600), (false, 100)] {
            let (mut runs, start) = three(are_numbered);
            for number in [1, 2, 0] {
                let stepped = start + 120 * u64::from(number) - step;
                let found = runs.of(&record(number, "gn01", stepped));
                let Match::Run(run) = found else {
                    panic!("{number}: {found:?}")
                };
                assert_eq!(run.start, start + 120 * u64::from(number));
            }
            assert_eq!(runs.without_records(), []);
        }
    }

    #[test]
    fn a_run_that_was_requeued_at_once_counts_among_the_runs() {
        let mut runs = Runs::default();
        let second = parse(ROW).unwrap().unwrap();
        let start = second.start;
        let row = ROW.replace(
            "CANCELLED by 1000|60|2026-11-23T08:00:00|2026-11-23T08:01:00",
            "REQUEUED|0|Unknown|2026-11-23T07:59:00",
        );
        runs.add(parse(&row).unwrap().unwrap());
        runs.add(second);
        for (number, elapsed) in [(0, 0), (1, 60)] {
            let stepped = start + 60 * u64::from(number) - 1000;
            let found = runs.of(&record(number, "gn01", stepped));
            let Match::Run(run) = found else {
                panic!("{number}: {found:?}")
            };
            assert_eq!(run.elapsed, elapsed);
        }
    }

    #[test]
    fn a_run_counts_a_slice_once_and_another_life_of_the_id_not_at_all() {
        let (mut runs, start) = three(true);
        assert!(matches!(
            runs.of(&record(0, "gn01", start + 2)),
            Match::Run(_)
        ));
        assert_eq!(runs.of(&record(0, "gn01", start + 3)), Match::Counted);
        let long_before = start - 30 * 86_400;
        assert_eq!(runs.of(&record(0, "gn01", long_before)), Match::Unknown);
        let other = UsageRecord {
            user: "bob".to_owned(),
            ..record(1, "gn01", start)
        };
        assert_eq!(runs.of(&other), Match::Unknown);
    }

    #[test]
    fn slurmdbd_keeps_names_in_small_letters() {
        for user in ["domain\\ann", ""] {
            let mut runs = Runs::default();
            let run = parse(ROW).unwrap().unwrap();
            let start = run.start;
            let user = user.to_owned();
            runs.add(Run { user, ..run });
            let record = UsageRecord {
                user: "DOMAIN\\Ann".to_owned(),
                ..record(0, "gn01", start)
            };
            assert!(matches!(runs.of(&record), Match::Run(_)));
            assert_eq!(runs.without_records(), []);
        }
    }

    #[test]
    fn a_node_without_records_leaves_units_of_its_run() {
        let mut runs = Runs::default();
        let run = parse(ROW).unwrap().unwrap();
        let start = run.start;
        runs.add(Run { units: 50, ..run });
        runs.of(&record(0, "gn01", start));
        let missing: Vec<u64> = runs
            .without_records()
            .iter()
            .map(|missing| missing.1)
            .collect();
        assert_eq!(missing, [25]);
        runs.of(&record(0, "gn02", start));
        assert_eq!(runs.without_records(), []);
    }
}
