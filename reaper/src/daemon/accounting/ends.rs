//! Learns from Slurm why slices ended, where neither the job nor the reaper ended them.

use std::collections::BTreeSet;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::clock::BootTime;
use gpufrac_records::usage::{Ended, SliceKey};
use slurm_sys::client::{EndedBy, JobInfo, JobState};

use super::Accounting;
use crate::act::witness::{LONGEST, MOST_JOBS};
use crate::report::errors::topic;
use crate::round::Round;

/// Rounds after a question without an answer.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 6;

/// A slice whose epilog has begun.
#[derive(Debug)]
pub(super) struct EndedSlice {
    key: SliceKey,
    /// When this was seen.
    at: BootTime,
    /// The same by the wall clock.
    unix: u64,
}

impl Accounting {
    /// Notes slices that were held before and are not held in `leases`, unless the reaper ended them.
    pub(super) fn note_ends(&mut self, round: &Round, before: &[Lease], leases: &[Lease]) {
        let (at, unix) = (round.now(), round.outside.clock.unix_now());
        let is_active = |lease: &&Lease| lease.state == LeaseState::Active;
        for lease in before.iter().filter(is_active) {
            let key = SliceKey::of(lease);
            let mut held = leases.iter().filter(is_active);
            if !held.any(|lease| SliceKey::of(lease) == key) && !self.meter.is_reclaimed(&key) {
                self.ended.push(EndedSlice { key, at, unix });
            }
        }
    }

    /// Records why slices ended, where Slurm has said it; otherwise asks Slurm.
    pub(crate) fn learn_ends(&mut self, round: &mut Round) {
        let now = round.now();
        self.ended.retain(|slice| now.since(slice.at) < LONGEST);
        for slice in std::mem::take(&mut self.ended) {
            let answers = round.outside.witness.about(slice.key.job);
            let why = why_of_run(&slice.key, &answers);
            self.settle(round, slice, why);
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
                    self.settle(round, slice, why);
                }
                // Slurm forgot the job.
                Some((_, None)) => {}
                None => self.ended.push(slice),
            }
        }
    }

    /// Records why a slice ended, or keeps it for the next question.
    fn settle(&mut self, round: &mut Round, slice: EndedSlice, why: Why) {
        match why {
            Why::Known(ended) => {
                let books = &round.outside.books;
                let recorded = books.record_end(&slice.key, ended, slice.unix);
                round.report(topic::ENDS, recorded);
            }
            Why::ByItself => {}
            Why::NotYet => self.ended.push(slice),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Known(Ended),
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
