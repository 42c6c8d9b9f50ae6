//! The steps from a warning to the end of a job. No I/O, no own clock.
//!
//! ```text
//! since              due - w0            due - w1        due           due + checkpoint
//!   |------ window ----+-------------------+--------------|- - - - - - - - - |
//!   stalled            first warning       second         signal, or end     end
//! ```
//! A late warning delays all later steps: the end is never less than `w` after the warning for `w`.

use std::time::Duration;

use gpufrac_core::policy::{Mode, Policy, Stall};
use serde::{Deserialize, Serialize};

use crate::judge::stall::Stalled;
use gpufrac_node::clock::BootTime;

/// The state of an escalation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    /// The stall of the first warning.
    stall: Option<Stall>,
    warned: Vec<BootTime>,
    /// The announced end, without the time for a checkpoint. The job does not end earlier, even if the policy changes.
    promised: BootTime,
    signalled: Option<BootTime>,
    ended: bool,
    /// Whether the steps were only logged (dry-run).
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    None,
    Warn {
        /// The earliest end of the job.
        end: BootTime,
    },
    /// The signal of the policy.
    Signal {
        /// The earliest end of the job.
        end: BootTime,
    },
    End,
}

impl Escalation {
    /// Whether a warning is in force.
    pub fn is_warned(&self) -> bool {
        !self.warned.is_empty()
    }

    /// The number of warnings that are in force.
    pub fn warnings(&self) -> u32 {
        u32::try_from(self.warned.len()).unwrap_or(u32::MAX)
    }

    /// When the job ends if the stall goes on; None before a warning and after the end.
    pub fn announced_end(&self, stalled: &Stalled, policy: &Policy) -> Option<BootTime> {
        if !self.is_warned() || self.ended {
            return None;
        }
        Some(match self.signalled {
            None => self.end(stalled) + grace(policy),
            Some(sent) => sent + grace(policy),
        })
    }

    pub fn first_warning(&self) -> Option<BootTime> {
        self.warned.first().copied()
    }

    pub fn stall(&self) -> Option<Stall> {
        self.stall
    }

    /// The due step for a stalled slice.
    pub fn step(&self, stalled: &Stalled, policy: &Policy, now: BootTime) -> Step {
        if self.ended {
            return Step::None;
        }
        let end = self.end(stalled);
        if let Some(before) = policy.warn.get(self.warned.len()) {
            return if now + *before >= end {
                Step::Warn {
                    end: end.max(now + *before) + grace(policy),
                }
            } else {
                Step::None
            };
        }
        if now < end {
            return Step::None;
        }
        match (policy.signal, self.signalled) {
            (Some((_, checkpoint)), None) => Step::Signal {
                end: now + checkpoint,
            },
            (Some((_, checkpoint)), Some(sent)) if now < sent + checkpoint => Step::None,
            _ => Step::End,
        }
    }

    /// The end of the window, or later if a warning was late.
    fn end(&self, stalled: &Stalled) -> BootTime {
        stalled.due().max(self.promised)
    }

    /// Records the next warning of the policy.
    pub fn warned(&mut self, stalled: &Stalled, policy: &Policy, now: BootTime) {
        let before = policy.warn.get(self.warned.len());
        let end = now + before.copied().unwrap_or_default();
        self.promised = self.end(stalled).max(end);
        self.stall.get_or_insert(stalled.stall);
        self.warned.push(now);
        self.dry_run = policy.mode != Mode::On;
    }

    pub fn signalled(&mut self, now: BootTime) {
        self.signalled = Some(now);
    }

    pub fn ended(&mut self) {
        self.ended = true;
    }

    /// Whether the job was ended, not only in dry-run.
    pub fn has_ended(&self) -> bool {
        self.ended && !self.dry_run
    }

    /// Whether the warnings are from another mode: logged only, and the mode is now `on`, or the reverse.
    pub fn is_of_other_mode(&self, mode: Mode) -> bool {
        self.is_warned() && self.dry_run != (mode != Mode::On)
    }
}

/// The time between signal and end.
fn grace(policy: &Policy) -> Duration {
    policy.signal.map_or(Duration::ZERO, |(_, time)| time)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::policy::{Action, IdleWish, Signal};
    use proptest::prelude::*;

    use super::*;
    use crate::judge::watch::Watch;
    use crate::judge::watch::tests::{KEY, at, sample};
    use crate::measure::sample::Activity;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(warn: &[u32], checkpoint: Option<u32>) -> Policy {
        Policy {
            mode: Mode::On,
            grace: Duration::ZERO,
            never_used: Some(100 * SECOND),
            idle: Some(100 * SECOND),
            finished: None,
            warn: warn.iter().map(|before| *before * SECOND).collect(),
            signal: checkpoint.map(|time| ("USR1".parse::<Signal>().unwrap(), time * SECOND)),
            action: Action::Cancel,
            ..Policy::default()
        }
    }

    /// Plays all steps at the seconds for which `look` returns a sample, and carries each out.
    fn play(
        policy: &Policy,
        look: impl Fn(u64) -> Option<Activity>,
        seconds: u64,
    ) -> Vec<(u64, Step)> {
        let mut watch = Watch::new(KEY, at(0));
        let mut steps = Vec::new();
        for second in 1..=seconds {
            let Some(activity) = look(second) else {
                continue;
            };
            let now = at(second);
            watch.observe(now, &[sample(activity, 0, 0)], 120 * SECOND);
            if watch.is_cleared() {
                watch.escalation = Escalation::default();
            }
            let Some(stalled) = watch.stalled(policy, IdleWish::Default) else {
                continue;
            };
            let step = watch.escalation.step(&stalled, policy, now);
            match step {
                Step::None => continue,
                Step::Warn { .. } => watch.escalation.warned(&stalled, policy, now),
                Step::Signal { .. } => watch.escalation.signalled(now),
                Step::End => watch.escalation.ended(),
            }
            steps.push((second, step));
        }
        steps
    }

    #[test]
    fn warnings_the_signal_and_the_end_come_in_time() {
        let steps = play(&policy(&[30, 10], Some(5)), |_| Some(Activity::Idle), 300);
        let end = at(105);
        assert_eq!(
            steps,
            [
                (70, Step::Warn { end }),
                (90, Step::Warn { end }),
                (100, Step::Signal { end }),
                (105, Step::End)
            ]
        );
    }

    #[test]
    fn a_late_warning_moves_the_end() {
        // The sample is late, but not so late that the activity is unknown.
        let look = |second: u64| {
            let there = !(69..95).contains(&second);
            there.then_some(Activity::Idle)
        };
        let steps = play(&policy(&[30, 10], None), look, 300);
        assert_eq!(
            steps,
            [
                (95, Step::Warn { end: at(125) }),
                (115, Step::Warn { end: at(125) }),
                (125, Step::End)
            ]
        );
    }

    #[test]
    fn one_use_a_second_before_the_end_restarts_the_window() {
        let look = |second| Some(if second == 99 { Activity::Busy } else { Activity::Idle });
        let steps = play(&policy(&[30], None), look, 198);
        assert_eq!(
            steps,
            [
                (70, Step::Warn { end: at(100) }),
                (169, Step::Warn { end: at(199) })
            ]
        );
    }

    #[test]
    fn a_dry_run_does_not_count_when_it_becomes_serious() {
        let mut escalation = Escalation::default();
        assert!(!escalation.is_of_other_mode(Mode::On));
        let stalled = Stalled {
            stall: Stall::Idle,
            since: at(0),
            window: SECOND,
        };
        escalation.warned(&stalled, &Policy::default(), at(1));
        assert!(
            escalation.is_of_other_mode(Mode::On) && !escalation.is_of_other_mode(Mode::DryRun)
        );
    }

    #[test]
    fn an_announced_warning_holds_after_a_change_of_the_policy() {
        let mut escalation = Escalation::default();
        let stalled = Stalled {
            stall: Stall::Idle,
            since: at(0),
            window: 100 * SECOND,
        };
        escalation.warned(&stalled, &policy(&[60], None), at(40));
        let shorter = policy(&[5], None);
        let sooner = Stalled {
            window: 50 * SECOND,
            ..stalled
        };
        assert_eq!(escalation.step(&sooner, &shorter, at(99)), Step::None);
        assert_eq!(escalation.step(&sooner, &shorter, at(100)), Step::End);
    }

    proptest! {
        /// Promise (reaper): before each end there is a whole window without use, for every sequence of samples.
        // For any sequence of samples: before each end is a whole window without use, and each warning is at least
        // its time before the end and after the last use.
        #[test]
        fn each_reclaim_follows_a_window_without_use_and_all_warnings(
            warn in proptest::collection::btree_set(1_u32..90, 1..4),
            checkpoint in proptest::option::of(1_u32..30),
            looks in proptest::collection::vec(0_u8..40, 600),
        ) {
            let warn: Vec<u32> = warn.into_iter().rev().collect();
            let policy = policy(&warn, checkpoint);
            // 0: busy; 1-3: no sample; 4: no answer; otherwise idle.
            let look = |second: u64| match looks[second as usize - 1] {
                0 => Some(Activity::Busy),
                1..=3 => None,
                4 => Some(Activity::Unknown(String::new())),
                _ => Some(Activity::Idle),
            };
            let steps = play(&policy, look, looks.len() as u64);
            let used = |second: &u64| matches!(look(*second), Some(Activity::Busy | Activity::Unknown(_)));
            for (index, (end, step)) in steps.iter().enumerate() {
                if *step != Step::End {
                    continue;
                }
                prop_assert_eq!((end - 99..=*end).find(used), None);
                let before: Vec<u64> = steps[..index]
                    .iter()
                    .rev()
                    .take_while(|(second, step)| *step != Step::End && (*second..=*end).all(|s| !used(&s)))
                    .filter(|(_, step)| matches!(step, Step::Warn { .. }))
                    .map(|(second, _)| *second)
                    .collect();
                prop_assert_eq!(before.len(), warn.len());
                for (given, time) in before.iter().rev().zip(&warn) {
                    prop_assert!(end - given >= u64::from(*time));
                }
            }
        }
    }
}
