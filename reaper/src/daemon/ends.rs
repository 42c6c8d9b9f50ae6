//! Learns from Slurm why slices ended, where neither the job nor the reaper ended them.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_usage::{Ended, SliceKey};
use slurm_sys::client::{EndedBy, JobState};

use super::Daemon;
use crate::clock::BootTime;
use crate::report::errors::Topic;

/// Jobs of one question: slurmctld answers about each in turn.
const MOST_JOBS: usize = 32;
/// Rounds after a question without an answer.
const ROUNDS_BETWEEN_QUESTIONS: u64 = 6;
/// Slurm forgets jobs that ended (`MinJobAge`, by default 300 s).
const LONGEST: Duration = Duration::from_secs(280);

/// A slice whose epilog has begun.
#[derive(Debug)]
pub(super) struct EndedSlice {
    key: SliceKey,
    /// When this was seen.
    at: BootTime,
    /// The same by the wall clock.
    unix: u64,
}

impl Daemon {
    /// Notes slices that were held before and are not held in `leases`. To be called before the sums forget them.
    pub(super) fn note_ends(&mut self, leases: &[Lease], now: BootTime) {
        let is_active = |lease: &&Lease| lease.state == LeaseState::Active;
        let unix = self.outside.clock.unix_now();
        for lease in self.leases.iter().filter(is_active) {
            let key = SliceKey::of(lease);
            let mut held = leases.iter().filter(is_active);
            if !held.any(|lease| SliceKey::of(lease) == key) && !self.meter.is_reclaimed(&key) {
                self.ended.push(EndedSlice { key, at: now, unix });
            }
        }
    }

    /// Asks Slurm about slices that ended, and records what it says. After a requeue Slurm knows it only while the epilog runs, so
    /// that this is to be called as soon as the leases were read.
    pub(super) fn learn_ends(&mut self, now: BootTime) {
        self.ended.retain(|slice| now.since(slice.at) < LONGEST);
        if self.ended.is_empty() || self.round < self.next_question_of_ends {
            return;
        }
        let mut jobs: Vec<JobId> = self.ended.iter().map(|slice| slice.key.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs.truncate(MOST_JOBS);
        let seen = match self.outside.slurm.jobs(&jobs) {
            Ok(seen) => seen,
            Err(error) => {
                self.state.totals.slurm_errors += 1;
                self.next_question_of_ends = self.round + ROUNDS_BETWEEN_QUESTIONS;
                let error = Some(error.to_string());
                return self
                    .reports
                    .report_once(&self.outside.log, Topic::Slurm, error);
            }
        };
        for (job, seen) in jobs.iter().zip(seen) {
            let (of_job, others): (Vec<_>, Vec<_>) = self
                .ended
                .drain(..)
                .partition(|slice| slice.key.job == *job);
            self.ended = others;
            for slice in of_job {
                let why = seen
                    .as_ref()
                    .map(|seen| why(&slice.key, seen.state, seen.restart_count, seen.ended_by));
                match why {
                    Some(Why::Known(ended)) => {
                        let recorded = self.outside.books.record_end(&slice.key, ended, slice.unix);
                        self.reports
                            .report_once(&self.outside.log, Topic::Ends, recorded.err());
                    }
                    Some(Why::NotYet) => self.ended.push(slice),
                    Some(Why::ByItself) | None => {}
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Why {
    Known(Ended),
    /// The job ended by itself, was cancelled, or was requeued by a person.
    ByItself,
    /// slurmctld has not heard of the end.
    NotYet,
}

/// The end of a slice by Slurm's record of its job.
fn why(key: &SliceKey, state: JobState, restart_count: u32, ended_by: Option<EndedBy>) -> Why {
    let is_last = restart_count == key.restart_count;
    // Slurm counts a requeue before the epilog begins.
    let is_requeued = restart_count == key.restart_count + 1;
    match (ended_by, state) {
        (Some(why), _) if is_last || is_requeued => Why::Known(match why {
            EndedBy::Preemption => Ended::Preempted,
            EndedBy::NodeFailure => Ended::NodeFailure,
        }),
        (None, JobState::Running | JobState::Suspended) if is_last => Why::NotYet,
        _ => Why::ByItself,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SliceKey {
        SliceKey {
            job: JobId(7),
            slice: 0,
            restart_count: 2,
            start: 1_000,
            node: "n1".to_owned(),
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
                why(&key(), state, restarts, by),
                expected,
                "{state:?} {restarts} {by:?}"
            );
        }
    }
}
