//! Learns from Slurm why slices ended, where neither the job nor the reaper ended them.

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::config::Pool;
use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::ids::JobId;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::clock::BootTime;
use gpufrac_records::evidence::Record;
use gpufrac_records::usage::{Ended, Full, Larger, SliceKey};
use slurm_sys::client::{EndedBy, JobInfo, JobState};

use super::Accounting;
use crate::act::witness::{LONGEST, MOST_JOBS};
use crate::report::errors::topic;
use crate::report::metrics::PoolMetrics;
use crate::round::Round;

/// Rounds after a question without an answer.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 6;

/// A slice whose epilog has begun.
#[derive(Debug)]
pub(super) struct EndedSlice {
    key: SliceKey,
    pool: String,
    units: Units,
    /// When this was seen.
    at: BootTime,
    /// The same by the wall clock.
    unix: u64,
    /// Its memory, where it was full.
    filled: Option<MemoryMib>,
    /// The evidence of the job, with the first of its slices that were full.
    evidence: Option<Record>,
}

impl Accounting {
    /// Notes slices that were held before and are not held in `leases`, unless the reaper ended them.
    pub(super) fn note_ends(&mut self, round: &Round, before: &[Lease], leases: &[Lease]) {
        let (at, unix) = (round.now(), round.outside.clock.unix_now());
        let interval = round.interval();
        let is_active = |lease: &&Lease| lease.state == LeaseState::Active;
        for lease in before.iter().filter(is_active) {
            let key = SliceKey::of(lease);
            let mut held = leases.iter().filter(is_active);
            if !held.any(|lease| SliceKey::of(lease) == key) && !self.meter.is_reclaimed(&key) {
                self.ended.push(EndedSlice {
                    filled: self.meter.filled(&key, at, interval).map(|(used, _)| used),
                    evidence: None,
                    key,
                    pool: lease.pool.clone(),
                    units: lease.units,
                    at,
                    unix,
                });
            }
        }
    }

    /// Takes the evidence of jobs that are over, for those that may have failed with a full slice.
    pub(in crate::daemon) fn take_evidence(&mut self, over: Vec<Record>) {
        for record in over {
            let is_of = |slice: &&mut EndedSlice| {
                let key = &slice.key;
                slice.filled.is_some()
                    && (key.job, key.restart_count) == (record.job, record.restart_count)
            };
            if let Some(slice) = self.ended.iter_mut().find(is_of) {
                slice.evidence = Some(record);
            }
        }
    }

    /// Records why slices ended, where Slurm has said it; otherwise asks Slurm. `pools`: with their room. Returns the
    /// evidence of jobs that failed with a full slice.
    pub(in crate::daemon) fn learn_ends(
        &mut self,
        round: &mut Round,
        pools: &[PoolMetrics],
    ) -> Vec<Record> {
        let mut failed = Vec::new();
        self.learn(round, pools, &mut failed);
        failed
    }

    fn learn(&mut self, round: &mut Round, pools: &[PoolMetrics], failed: &mut Vec<Record>) {
        let now = round.now();
        self.ended.retain(|slice| now.since(slice.at) < LONGEST);
        for slice in std::mem::take(&mut self.ended) {
            let answers = round.outside.witness.about(slice.key.job);
            let why = why_of_run(&slice.key, &answers);
            failed.extend(self.settle(round, slice, why, pools));
        }
        if self.ended.is_empty() || round.number < self.next_question_of_ends {
            return;
        }
        let jobs: BTreeSet<JobId> = self.ended.iter().map(|slice| slice.key.job).collect();
        let jobs: Vec<JobId> = jobs.into_iter().take(MOST_JOBS).collect();
        let seen = round.outside.slurm.jobs(&jobs);
        let Some(seen) = round.answer(seen) else {
            self.next_question_of_ends = round.number + ROUNDS_BETWEEN_QUESTIONS;
            return;
        };
        for slice in std::mem::take(&mut self.ended) {
            let job = slice.key.job;
            match jobs.iter().zip(&seen).find(|(asked, _)| **asked == job) {
                Some((_, Some(answer))) => {
                    let why = why(&slice.key, answer);
                    failed.extend(self.settle(round, slice, why, pools));
                }
                // Slurm forgot the job.
                Some((_, None)) => {}
                None => self.ended.push(slice),
            }
        }
    }

    /// Records why a slice ended, or keeps it for the next question.
    fn settle(
        &mut self,
        round: &mut Round,
        mut slice: EndedSlice,
        why: Why,
        pools: &[PoolMetrics],
    ) -> Option<Record> {
        let (ended, full) = match (why, slice.filled) {
            (Why::Known(ended), _) => (ended, None),
            (Why::Failed, Some(used)) => (
                Ended::Done,
                Some(full(round, &slice.pool, slice.units, used, pools)),
            ),
            (Why::Failed, None) | (Why::ByItself, _) => return None,
            (Why::NotYet, _) => {
                self.ended.push(slice);
                return None;
            }
        };
        let books = &round.outside.books;
        let recorded = books.record_end(&slice.key, ended, slice.unix, full.clone());
        round.report(topic::ENDS, recorded);
        let mut evidence = slice.evidence.take().filter(|_| full.is_some())?;
        evidence.full = full;
        let kept = round.outside.memory.keep(&evidence, &round.peers);
        round.report(topic::RECORDS, kept);
        Some(evidence)
    }
}

/// What a full slice lacked.
pub(super) fn full(
    round: &Round,
    pool: &str,
    units: Units,
    used: MemoryMib,
    pools: &[PoolMetrics],
) -> Full {
    let config = &round.node.config;
    let room = pools.iter().find(|metrics| metrics.pool == pool);
    let room = room.map(|metrics| &metrics.room);
    let entry = config.pool(pool).and_then(|pool| larger(pool, units, room));
    Full {
        used_mib: used.0,
        larger: entry.map(|entry| {
            let fraction = entry.fraction.to_string();
            let jobs = room.and_then(|room| room.get(&fraction));
            Larger {
                is_free: jobs.is_some_and(|jobs| *jobs > 0),
                request: format!("{}:{fraction}", config.count_name),
            }
        }),
    }
}

/// The next size of a pool with more memory; where a pool gives each percent, of those that `gpufrac status` lists with
/// their room.
fn larger<'p>(
    pool: &'p Pool,
    units: Units,
    room: Option<&BTreeMap<String, u32>>,
) -> Option<&'p MenuEntry> {
    let memory = pool.layout.entry(units)?.memory;
    let is_listed =
        |entry: &MenuEntry| room.is_none_or(|room| room.contains_key(&entry.fraction.to_string()));
    let menu = pool.layout.menu.iter();
    let larger =
        menu.filter(|entry| entry.units > units && entry.memory > memory && is_listed(entry));
    larger.min_by_key(|entry| entry.units)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Known(Ended),
    /// The job failed by itself.
    Failed,
    /// The job ended by itself, was cancelled, or was requeued by a person.
    ByItself,
    /// slurmctld has not heard of the end.
    NotYet,
}

/// Whether an answer was given during the run of the slice, or after its requeue. Slurm counts a requeue before the
/// epilog begins.
fn is_of_run(key: &SliceKey, answer: &JobInfo) -> bool {
    [key.restart_count, key.restart_count + 1].contains(&answer.restart_count)
}

/// The end of a slice by Slurm's record of its job.
fn why(key: &SliceKey, answer: &JobInfo) -> Why {
    let is_last = answer.restart_count == key.restart_count;
    match (answer.ended_by, answer.state) {
        (Some(why), _) if is_of_run(key, answer) => Why::Known(match why {
            EndedBy::Preemption => Ended::Preempted,
            EndedBy::NodeFailure => Ended::NodeFailure,
        }),
        (None, JobState::Running | JobState::Suspended) if is_last => Why::NotYet,
        (None, JobState::Completing | JobState::Finished) if is_last && answer.failed => {
            Why::Failed
        }
        _ => Why::ByItself,
    }
}

/// The same by several answers, of which a later one may know less: Slurm forgets why it requeued a job.
fn why_of_run(key: &SliceKey, answers: &[JobInfo]) -> Why {
    let own = answers.iter().filter(|answer| is_of_run(key, answer));
    let all: Vec<Why> = own.map(|answer| why(key, answer)).collect();
    let known = all.iter().find(|why| matches!(why, Why::Known(_)));
    match known {
        Some(known) => *known,
        None if all.contains(&Why::Failed) => Why::Failed,
        None if all.contains(&Why::ByItself) => Why::ByItself,
        None => Why::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::witness::tests::job_info;

    fn key() -> SliceKey {
        SliceKey {
            job: JobId(7),
            slice: 0,
            restart_count: 2,
            start: 1_000,
            node: "n1".to_owned(),
        }
    }

    fn answer(state: JobState, restart_count: u32, ended_by: Option<EndedBy>) -> JobInfo {
        JobInfo {
            state,
            restart_count,
            ended_by,
            ..job_info(7)
        }
    }

    #[test]
    fn slurm_says_why_a_run_ended() {
        use EndedBy::{NodeFailure, Preemption};
        use JobState::{Completing, Finished, Pending, Running};
        for (state, restarts, by, expected) in [
            (Finished, 2, Some(Preemption), Why::Known(Ended::Preempted)),
            (
                Completing,
                3,
                Some(Preemption),
                Why::Known(Ended::Preempted),
            ),
            (
                Finished,
                2,
                Some(NodeFailure),
                Why::Known(Ended::NodeFailure),
            ),
            (Finished, 2, None, Why::ByItself),
            (Pending, 3, None, Why::ByItself),
            // A later run was preempted.
            (Finished, 5, Some(Preemption), Why::ByItself),
            (Running, 2, None, Why::NotYet),
            (Running, 3, None, Why::ByItself),
        ] {
            assert_eq!(
                why(&key(), &answer(state, restarts, by)),
                expected,
                "{state:?} {restarts} {by:?}"
            );
        }
    }

    #[test]
    fn a_run_failed_only_by_its_own_record() {
        use JobState::{Completing, Finished, Pending};
        for (state, restarts, failed, by, expected) in [
            (Completing, 2, true, None, Why::Failed),
            (Finished, 2, true, None, Why::Failed),
            (Finished, 2, false, None, Why::ByItself),
            // A later run failed; the job was requeued.
            (Finished, 3, true, None, Why::ByItself),
            (Pending, 3, true, None, Why::ByItself),
            (
                Finished,
                2,
                true,
                Some(EndedBy::NodeFailure),
                Why::Known(Ended::NodeFailure),
            ),
        ] {
            let answer = JobInfo {
                failed,
                ..answer(state, restarts, by)
            };
            assert_eq!(why(&key(), &answer), expected, "{state:?} {restarts}");
            let early = super::tests::answer(JobState::Running, 2, None);
            assert_eq!(why_of_run(&key(), &[early, answer]), expected);
        }
    }

    #[test]
    fn the_next_larger_size_has_more_memory() {
        let text = |layout: &str, mechanism: &str| {
            format!(
                "version = 1\n[pool.p]\nmechanism = \"{mechanism}\"\n{layout}gpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n"
            )
        };
        let next = |text: &str, units, room: Option<&BTreeMap<String, u32>>| {
            let config = gpufrac_core::config::Config::parse(text, "gpufrac.toml").unwrap();
            let entry = larger(config.pool("p").unwrap(), Units(units), room);
            entry.map(|entry| entry.fraction.to_string())
        };
        let mig = text("layout = \"halves\"\n", "mig");
        assert_eq!(next(&mig, 25, None).as_deref(), Some("0.5"));
        assert_eq!(next(&mig, 50, None), None);
        // A size that the pool does not have any more.
        assert_eq!(next(&mig, 24, None), None);
        let shares = text("", "timeslice");
        let room = BTreeMap::from(["0.1", "0.25", "0.5"].map(|size| (size.to_owned(), 1)));
        assert_eq!(next(&shares, 12, Some(&room)).as_deref(), Some("0.25"));
    }

    #[test]
    fn what_slurm_said_in_the_epilog_holds_after_it_forgot() {
        use JobState::{Completing, Pending, Running};
        let preempted = answer(Completing, 3, Some(EndedBy::Preemption));
        let forgot = answer(Pending, 3, None);
        let early = answer(Running, 2, None);
        let later_run = answer(Completing, 4, Some(EndedBy::Preemption));
        for (answers, expected) in [
            (vec![], Why::NotYet),
            (vec![early.clone()], Why::NotYet),
            (
                vec![early.clone(), preempted.clone(), forgot.clone()],
                Why::Known(Ended::Preempted),
            ),
            (vec![early, forgot], Why::ByItself),
            (vec![later_run], Why::NotYet),
        ] {
            assert_eq!(why_of_run(&key(), &answers), expected, "{answers:?}");
        }
    }
}
