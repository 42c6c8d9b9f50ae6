//! From lines of records to what jobs held in a period: each slice once.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use gpufrac_records::usage::{Ended, Full, Line, SliceKey, UsageRecord};

use crate::period::Period;
use crate::sacct::{Match, Run, Runs};

/// A slice that a job held in the period. Times are in unit-seconds, and of the period alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerSlice {
    /// Slurm's id of the job.
    pub job: u32,
    pub user: String,
    pub account: String,
    /// Its QOS; empty where accounting is not known.
    pub qos: String,
    pub partition: String,
    pub pool: String,
    pub node: String,
    /// Slurm's index of the device on its node, where it is known.
    pub device: Option<u32>,
    /// Number of the slice among the slices of the job on its node.
    pub slice: u32,
    /// The part of a GPU, as a decimal.
    pub size: String,
    /// Units of the slice.
    pub units: u64,
    /// When the job got the slice: seconds since 1970.
    pub from: u64,
    /// When the slice was free again.
    pub to: u64,
    /// Held and used.
    pub busy: u64,
    /// Held and not used.
    pub idle: u64,
    /// Held, and nobody measured.
    pub unknown: u64,
    /// Held by a suspended job.
    pub suspended: u64,
    /// Given back by the reaper.
    pub reclaimed: u64,
    /// Whether the reaper ended the job.
    pub is_reclaimed: bool,
    /// Why the slice ended, where it is known.
    pub ended: Option<Ended>,
    /// Energy by activity, in joules: the part of the slice's energy that its time in the period is of its life; 0
    /// where it is not known.
    pub energy_j: u64,
    /// Memory of the slice in MiB, where it is known.
    pub memory_mib: Option<u64>,
    /// Greatest memory in use in MiB, where it was measured.
    pub peak_memory_mib: Option<u64>,
    /// Mean activity, 0 to 1, where it was measured.
    pub activity: Option<f64>,
    /// That its job failed with a full slice.
    pub full: Option<Full>,
}

impl LedgerSlice {
    /// All of its time: unit-seconds.
    pub fn allocated(&self) -> u64 {
        self.busy + self.idle + self.unknown + self.suspended
    }
}

/// The errors of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Lines that are no record, and the first of them: where and why.
    pub damaged: u64,
    /// The first damaged line.
    pub first: Option<String>,
    /// Records that were there before.
    pub repeated: u64,
}

/// Takes lines, and gives what jobs held.
pub struct Ledger {
    period: Period,
    runs: Runs,
    hashers: [RandomState; 2],
    seen: HashSet<(u64, u64)>,
    ends: HashMap<(u64, u64), (Ended, Option<Full>)>,
    pub skipped: Skipped,
}

impl Ledger {
    /// For a period. `runs`: what accounting knows.
    pub fn new(period: Period, runs: Runs) -> Ledger {
        Ledger {
            period,
            runs,
            hashers: [RandomState::new(), RandomState::new()],
            seen: HashSet::new(),
            ends: HashMap::new(),
            skipped: Skipped::default(),
        }
    }

    /// 128 bits stand for a slice: among a million no two are the same by chance, and they take a tenth of its memory.
    fn sign(&self, key: &SliceKey) -> (u64, u64) {
        let [one, other] = &self.hashers;
        (one.hash_one(key), other.hash_one(key))
    }

    /// Learns why slices ended, from lines that came after their records. To be called with all lines before
    /// [`Ledger::slice`].
    pub fn learn_end(&mut self, line: &Line) {
        if let Line::End(key, ended, _, full) = line {
            let sign = self.sign(key);
            self.ends.insert(sign, (*ended, full.clone()));
        }
    }

    /// A line cannot be read. `place`: its file and number.
    pub fn skip(&mut self, place: impl FnOnce() -> String, why: &dyn std::fmt::Display) {
        self.skipped.damaged += 1;
        if self.skipped.first.is_none() {
            self.skipped.first = Some(format!("{}: {why}", place()));
        }
    }

    /// Whether a record is new, and what its job held in the period; None for one of another time.
    pub fn slice(&mut self, record: &UsageRecord) -> (bool, Option<LedgerSlice>) {
        let sign = self.sign(&record.key());
        if !self.seen.insert(sign) {
            self.skipped.repeated += 1;
            return (false, None);
        }
        (true, self.held(record, sign))
    }

    fn held(&mut self, record: &UsageRecord, sign: (u64, u64)) -> Option<LedgerSlice> {
        let run = match self.runs.of(record) {
            Match::Run(run) => Some(run),
            Match::Unknown => None,
            Match::Counted => {
                self.skipped.repeated += 1;
                return None;
            }
        };
        let used = record.used.as_ref();
        let paused = used.map_or(0, |used| used.suspended);
        let (from, to, held) = match run {
            // Accounting counts without prolog and epilog, and without suspensions.
            Some(run) => (run.start, run.start + run.elapsed + paused, run.elapsed),
            None => {
                let from = record.end.saturating_sub(record.seconds);
                (from, record.end, record.seconds)
            }
        };
        let (life, overlap) = (to.saturating_sub(from), self.period.overlap(from, to));
        let in_period = |of_life: u64| scaled(of_life, overlap, life);
        let seconds = in_period(held);
        if seconds == 0 {
            return None;
        }
        let units = u64::from(record.units);
        let parts = match used {
            Some(used) if run.is_some() => [used.busy, used.idle, 0, used.unknown],
            Some(used) => [used.busy, used.idle, used.suspended, used.unknown],
            None => [0; 4],
        };
        let parts = if parts == [0; 4] { [0, 0, 0, 1] } else { parts };
        let [busy, idle, suspended, unknown] =
            gpufrac_records::usage::apportion(seconds * units, parts);
        let learnt = self.ends.get(&sign);
        let ended = learnt.map(|(ended, _)| *ended).or(record.ended);
        let text = |text: Option<&String>| text.cloned().unwrap_or_default();
        // A reclaim is of the period that has the last second.
        let is_reclaimed = ended == Some(Ended::Reclaimed) && to <= self.period.until;
        Some(LedgerSlice {
            job: record.job.0,
            user: record.user.clone(),
            account: match &record.account {
                Some(account) => account.clone(),
                None => text(run.map(|run| &run.account)),
            },
            qos: text(run.map(|run| &run.qos)),
            partition: record.partition.clone(),
            pool: record.pool.clone(),
            node: record.node.clone(),
            device: record.device,
            slice: record.slice,
            size: record.fraction.clone(),
            units,
            from,
            to,
            busy,
            idle,
            unknown,
            suspended,
            reclaimed: if is_reclaimed { record.returned.unwrap_or(0) * units } else { 0 },
            is_reclaimed,
            // Where the reaper ran it would have learned of another reason.
            ended: ended
                .or_else(|| run.and_then(|run| run.ended))
                .or(used.map(|_| Ended::Done)),
            energy_j: in_period(used.and_then(|used| used.energy_j).unwrap_or(0)),
            memory_mib: record.memory_mib,
            peak_memory_mib: used.and_then(|used| used.peak_memory_mib),
            activity: used.and_then(|used| used.activity),
            full: learnt.and_then(|(_, full)| full.clone()),
        })
    }

    /// Adds the fields that only accounting has. To be called after all lines.
    pub fn without_records(&self) -> Vec<LedgerSlice> {
        let runs = self.runs.without_records();
        let held = runs
            .into_iter()
            .filter_map(|(run, units)| self.unrecorded(run, units));
        held.collect()
    }

    fn unrecorded(&self, run: &Run, units: u64) -> Option<LedgerSlice> {
        let (from, to) = (run.start, run.start + run.elapsed);
        let seconds = self.period.overlap(from, to);
        (seconds > 0).then(|| LedgerSlice {
            job: run.job,
            user: run.user.clone(),
            account: run.account.clone(),
            qos: run.qos.clone(),
            partition: run.partition.clone(),
            node: run.nodes.clone(),
            size: format!("{}.{:02}", units / 100, units % 100),
            units,
            from,
            to,
            unknown: seconds * units,
            ended: run.ended,
            ..LedgerSlice::default()
        })
    }
}

/// `amount` times `part` of `whole`, rounded to the nearest number.
fn scaled(amount: u64, part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    let scaled = (u128::from(amount) * u128::from(part) + whole / 2) / whole;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::count_name::CountName;

    use super::*;
    use crate::sacct::Reader;

    const RUN: &str = "7|ann|physics|normal|gpu|CANCELLED|60|2026-11-23T08:00:00|2026-11-23T08:01:00|gres/gpufrac=25|gn01";
    /// The end of that run; its epilog took two seconds more.
    const END: u64 = 1_795_420_860;
    const RECORD: &str = r#"{"version":2,"job":7,"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"gn01","pool":"h100","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","device":0,"start":1795420800,"end":1795420862,"seconds":62,"ended":"reclaimed","boot":{"id":"b","from":0,"until":62}}"#;

    /// A report at the second of the end has the reclaim, and two periods that meet have it once.
    #[test]
    fn a_reclaim_is_counted_in_one_of_two_periods_that_meet() {
        let Ok(Line::Slice(record)) = Line::parse(RECORD) else {
            panic!("a record");
        };
        for has_run in [true, false] {
            for meet in END - 3..=END + 5 {
                let count = |since, until| {
                    let mut runs = Runs::default();
                    if has_run {
                        let run = Reader::new(&CountName::default(), false).run(RUN);
                        runs.add(run.unwrap().unwrap());
                    }
                    let mut ledger = Ledger::new(Period { since, until }, runs);
                    let (_, held) = ledger.slice(&record);
                    u32::from(held.is_some_and(|held| held.is_reclaimed))
                };
                let (before, after) = (count(0, meet), count(meet, END + 3600));
                let last = if has_run { END } else { END + 2 };
                assert_eq!(before, u32::from(last <= meet), "{has_run} {meet}");
                assert_eq!(before + after, 1, "{has_run} {meet}");
            }
        }
    }

    /// A job that computed for a minute and was suspended for ten. Slurm's accounting leaves the ten out.
    #[test]
    fn a_suspension_takes_no_busy_time_and_periods_that_meet_share_the_energy() {
        let Ok(Line::Slice(mut record)) = Line::parse(RECORD) else {
            panic!("a record");
        };
        record.end += 600;
        record.seconds += 600;
        record.used = serde_json::from_str(
            r#"{"busy":60,"idle":0,"unknown":2,"suspended":600,"source":"gpm","energy_j":1001}"#,
        )
        .ok();
        let held = |has_run, since, until| {
            let mut runs = Runs::default();
            if has_run {
                let run = Reader::new(&CountName::default(), false).run(RUN);
                runs.add(run.unwrap().unwrap());
            }
            let (_, held) = Ledger::new(Period { since, until }, runs).slice(&record);
            held.unwrap()
        };
        let by_leases = held(false, 0, END + 3600);
        assert_eq!((by_leases.busy, by_leases.suspended), (60 * 25, 600 * 25));
        let by_sacct = held(true, 0, END + 3600);
        assert_eq!(by_sacct.allocated(), 60 * 25);
        assert!(by_sacct.busy >= 58 * 25, "{by_sacct:?}");
        assert_eq!(by_sacct.suspended, 0);
        for has_run in [false, true] {
            let meet = END + 300;
            let parts = [held(has_run, 0, meet), held(has_run, meet, END + 3600)];
            let joules: u64 = parts.iter().map(|held| held.energy_j).sum();
            let seconds: u64 = parts.iter().map(LedgerSlice::allocated).sum();
            assert_eq!(joules, 1001, "{has_run}");
            assert_eq!(seconds, held(has_run, 0, END + 3600).allocated());
        }
    }
}
