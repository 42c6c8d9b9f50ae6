//! The state of a job's slices on this node from sample to sample, and the start of their stalls. No I/O, no own clock.

use std::time::Duration;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::policy::{IdleWish, Policy, Stall};
use serde::{Deserialize, Serialize};

use crate::judge::escalation::Escalation;
use crate::judge::stall::Stalled;
use crate::key::Key;
use crate::measure::sample::{Activity, Sample};
use gpufrac_node::clock::BootTime;

/// The longest gap between two samples of a slice, in intervals. Activity in a longer gap is unknown.
pub const LONGEST_GAP_ROUNDS: u32 = 6;
/// As [`LONGEST_GAP_ROUNDS`], for a slice that is observed without gaps because its job may end.
pub const LONGEST_SUSPECT_GAP_ROUNDS: u32 = 3;
/// Memory of an instance that the driver itself may hold.
const DRIVERS_OWN: MemoryMib = MemoryMib(256);

/// The values of the last sample of a slice that the next one is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    contexts: u32,
    memory: Option<MemoryMib>,
}

/// The state of a job and its slices on this node. The job is active if any slice is: its busiest slice decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The run of the job that has the lease.
    pub key: Key,
    /// The time of the first sample.
    pub began: BootTime,
    /// The time of the last sample, with or without an answer.
    pub sampled: BootTime,
    /// Whether the slice was ever active, or may have been.
    #[serde(rename = "used")]
    pub was_active: bool,
    /// The last time at which the slice was active, or may have been; `began` if there is none.
    #[serde(rename = "last_use")]
    pub last_active: BootTime,
    /// The reason why this counts as activity.
    pub reason: String,
    /// The job's processes on its first slice at the last sample.
    contexts: u32,
    /// The memory of these processes.
    memory: Option<MemoryMib>,
    /// The same values of its further slices, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further: Vec<Seen>,
    /// Since when memory is held without a process.
    held_since: Option<BootTime>,
    /// Since when the job exceeds its share.
    over_since: Option<BootTime>,
    /// The steps that were carried out.
    #[serde(rename = "ladder")]
    pub escalation: Escalation,
}

impl Watch {
    pub fn new(key: Key, now: BootTime) -> Watch {
        Watch {
            key,
            began: now,
            sampled: now,
            was_active: false,
            last_active: now,
            reason: String::new(),
            contexts: 0,
            memory: None,
            further: Vec::new(),
            held_since: None,
            over_since: None,
            escalation: Escalation::default(),
        }
    }

    /// The number of slices in the last sample.
    pub fn slices(&self) -> usize {
        1 + self.further.len()
    }

    /// Adds a sample of each slice, in order. Activity in a gap longer than `longest_gap` is unknown.
    pub fn observe(&mut self, now: BootTime, samples: &[Sample], longest_gap: Duration) {
        if now.since(self.sampled) > longest_gap {
            self.restart_window(now, "no sample was taken for too long");
        }
        self.sampled = now;
        self.further
            .resize(samples.len().saturating_sub(1), Seen::default());
        let mut own = Seen {
            contexts: self.contexts,
            memory: self.memory,
        };
        let mut further = std::mem::take(&mut self.further);
        for (sample, seen) in samples
            .iter()
            .zip([&mut own].into_iter().chain(&mut further))
        {
            self.compare(now, sample, seen);
        }
        (self.contexts, self.memory, self.further) = (own.contexts, own.memory, further);
        // No slice has a process, but one still has memory in use.
        let held = samples.iter().all(|sample| sample.contexts == Some(0))
            && samples
                .iter()
                .any(|sample| sample.memory >= Some(DRIVERS_OWN));
        let held = held && self.was_active;
        self.held_since = held.then(|| self.held_since.unwrap_or(now));
        let has_excess = samples.iter().any(|sample| sample.excess.is_some());
        self.over_since = has_excess.then(|| self.over_since.unwrap_or(now));
    }

    /// Adds the sample of one slice, and keeps the values for the next comparison.
    fn compare(&mut self, now: BootTime, sample: &Sample, seen: &mut Seen) {
        match &sample.activity {
            Activity::Idle => {}
            Activity::Busy => self.mark_active(now, "it was used"),
            Activity::Unknown(why) => self.mark_active(now, why),
        }
        if let Some(contexts) = sample.contexts {
            // A new context counts as activity.
            if contexts > seen.contexts {
                self.mark_active(now, "a new context");
            }
            seen.contexts = contexts;
        }
        // An idle program neither allocates nor frees memory, so a change counts as activity, whatever the counters
        // show.
        if let (Some(before), Some(memory)) = (seen.memory, sample.memory)
            && before != memory
        {
            self.mark_active(now, "its memory changed");
        }
        seen.memory = sample.memory;
    }

    /// Records that the slice is active, or may be.
    pub fn mark_active(&mut self, now: BootTime, reason: &str) {
        self.was_active = true;
        self.last_active = self.last_active.max(now);
        reason.clone_into(&mut self.reason);
        self.held_since = None;
    }

    /// Ignores earlier samples.
    pub fn restart_window(&mut self, now: BootTime, reason: &str) {
        self.mark_active(now, reason);
        self.over_since = None;
    }

    /// The start of this kind of stall; None if there is none.
    pub fn since(&self, stall: Stall, grace: Duration) -> Option<BootTime> {
        let after_grace = |time: BootTime| time.max(self.began + grace);
        match stall {
            Stall::NeverUsed => (!self.was_active).then(|| after_grace(self.began)),
            Stall::Idle => self.was_active.then(|| after_grace(self.last_active)),
            Stall::Finished => self.held_since.map(after_grace),
            Stall::OverShare => self.over_since,
        }
    }

    /// The stall whose window ends first.
    pub fn stalled(&self, policy: &Policy, wish: IdleWish) -> Option<Stalled> {
        let wish = policy.granted(wish);
        let stalls = Stall::ALL.into_iter().filter_map(|stall| {
            Some(Stalled {
                stall,
                since: self.since(stall, policy.grace)?,
                window: policy.window(stall, wish)?,
            })
        });
        stalls.min_by_key(Stalled::due)
    }

    /// Whether the slice was active again after a warning, or the job is within its share again.
    pub fn is_cleared(&self) -> bool {
        let Some(first) = self.escalation.first_warning() else {
            return false;
        };
        let again = |since: Option<BootTime>| since.is_none_or(|since| since > first);
        match self.escalation.stall() {
            Some(stall @ (Stall::OverShare | Stall::Finished)) => {
                again(self.since(stall, Duration::ZERO))
            }
            _ => self.last_active > first,
        }
    }

    /// Whether the slice has been stalled for half of a window, so that it is observed without gaps.
    pub fn is_suspect(&self, policy: &Policy, wish: IdleWish, now: BootTime) -> bool {
        let half = |stalled: Stalled| now.since(stalled.since) * 2 >= stalled.window;
        self.stalled(policy, wish).is_some_and(half)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::slice::from_ref;

    use gpufrac_records::evidence::Source;

    use super::*;
    use crate::measure::sample::Excess;
    use gpufrac_core::ids::JobId;

    pub(crate) const KEY: Key = Key {
        job_id: JobId(7),
        restart_count: 0,
        created_unix: 0,
    };

    pub(crate) fn at(seconds: u64) -> BootTime {
        BootTime::after_boot(Duration::from_secs(1000 + seconds))
    }

    pub(crate) fn sample(activity: Activity, contexts: u32, memory: u64) -> Sample {
        Sample {
            source: Source::Gpm,
            activity,
            busy_share: None,
            contexts: Some(contexts),
            memory: Some(MemoryMib(memory)),
            excess: None,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Policy {
        Policy {
            grace: 5 * SECOND,
            never_used: Some(30 * SECOND),
            idle: Some(60 * SECOND),
            finished: Some(10 * SECOND),
            over_share: Some(10 * SECOND),
            ..Policy::default()
        }
    }

    fn stalled(watch: &Watch) -> Option<(Stall, BootTime)> {
        let stalled = watch.stalled(&policy(), IdleWish::Default)?;
        Some((stalled.stall, stalled.since))
    }

    #[test]
    fn each_stall_has_its_beginning() {
        let mut watch = Watch::new(KEY, at(0));
        let mut look = |second, sample: &Sample| {
            watch.observe(at(second), from_ref(sample), 6 * SECOND);
            stalled(&watch)
        };
        // The grace does not count.
        let never = Some((Stall::NeverUsed, at(5)));
        assert_eq!(look(1, &sample(Activity::Idle, 0, 0)), never);
        assert_eq!(look(2, &sample(Activity::Idle, 0, 0)), never);
        // A new context that computes nothing counts as activity once, not for ever.
        let once = Some((Stall::Idle, at(7)));
        assert_eq!(look(7, &sample(Activity::Idle, 1, 300)), once);
        assert_eq!(look(8, &sample(Activity::Idle, 1, 300)), once);
        assert_eq!(
            look(9, &sample(Activity::Busy, 1, 300)),
            Some((Stall::Idle, at(9)))
        );
        assert_eq!(
            look(10, &sample(Activity::Idle, 0, 300)),
            Some((Stall::Finished, at(10)))
        );
        assert_eq!(
            look(11, &sample(Activity::Idle, 0, 300)),
            Some((Stall::Finished, at(10)))
        );
        assert_eq!(
            look(12, &sample(Activity::Idle, 0, 12)),
            Some((Stall::Idle, at(12)))
        );
    }

    #[test]
    fn missing_samples_count_as_use() {
        let mut watch = Watch::new(KEY, at(0));
        watch.observe(at(1), &[Sample::missing("no driver")], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(5))));
        watch.observe(at(7), &[sample(Activity::Idle, 0, 0)], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(5))), "six intervals");
        watch.observe(at(14), &[sample(Activity::Idle, 0, 0)], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(14))), "seven");
    }

    #[test]
    fn use_outside_of_the_share_counts_only_without_a_gap() {
        let mut watch = Watch::new(KEY, at(0));
        let over = Sample {
            excess: Some(Excess::OutsideMps { pids: vec![1] }),
            ..sample(Activity::Busy, 1, 0)
        };
        watch.observe(at(1), from_ref(&over), 6 * SECOND);
        watch.observe(at(2), from_ref(&over), 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::OverShare, at(1))));
        watch.observe(at(3), &[sample(Activity::Busy, 1, 0)], 6 * SECOND);
        watch.observe(at(4), from_ref(&over), 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::OverShare, at(4))));
    }

    #[test]
    fn the_users_option_counts_if_the_rules_allow_it() {
        let mut watch = Watch::new(KEY, at(0));
        watch.observe(at(1), &[sample(Activity::Idle, 0, 0)], 6 * SECOND);
        let mut policy = policy();
        let window = |policy: &Policy, wish| watch.stalled(policy, wish).map(|s| s.window);
        assert_eq!(window(&policy, IdleWish::Long), Some(120 * SECOND));
        assert_eq!(window(&policy, IdleWish::Off), Some(30 * SECOND));
        policy.idle_option = IdleWish::ALL.to_vec();
        assert_eq!(window(&policy, IdleWish::Off), None);
    }

    #[test]
    fn a_job_is_as_active_as_its_busiest_slice() {
        let mut watch = Watch::new(KEY, at(0));
        let idle = || sample(Activity::Idle, 0, 16);
        let mut look = |second, one: Sample, other: Sample| {
            watch.observe(at(second), &[one, other], 6 * SECOND);
            (watch.slices(), stalled(&watch))
        };
        let never = (2, Some((Stall::NeverUsed, at(5))));
        assert_eq!(look(1, idle(), idle()), never);
        assert_eq!(look(2, idle(), idle()), never);
        let since = |second| (2, Some((Stall::Idle, at(second))));
        assert_eq!(look(6, idle(), sample(Activity::Busy, 1, 300)), since(6));
        // A program that moves from one slice to the other counts as new there.
        assert_eq!(look(7, sample(Activity::Idle, 1, 300), idle()), since(7));
        assert_eq!(look(8, sample(Activity::Idle, 1, 300), idle()), since(7));
        assert_eq!(
            look(
                9,
                sample(Activity::Idle, 1, 300),
                sample(Activity::Unknown(String::new()), 0, 16)
            ),
            since(9)
        );
        // Memory without a process on one slice, while the other one has a process.
        let busy = || sample(Activity::Busy, 1, 300);
        assert_eq!(look(10, sample(Activity::Idle, 0, 300), busy()), since(10));
        assert_eq!(look(11, sample(Activity::Idle, 0, 300), busy()), since(11));
        assert_eq!(
            look(
                12,
                sample(Activity::Idle, 0, 300),
                sample(Activity::Idle, 0, 300)
            ),
            (2, Some((Stall::Finished, at(12))))
        );
    }

    #[test]
    fn use_outside_of_the_share_on_one_slice_suffices() {
        let mut watch = Watch::new(KEY, at(0));
        let busy = || sample(Activity::Busy, 1, 0);
        let over = || Sample {
            excess: Some(Excess::OutsideMps { pids: vec![1] }),
            ..busy()
        };
        watch.observe(at(1), &[busy(), over()], 6 * SECOND);
        watch.observe(at(2), &[over(), busy()], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::OverShare, at(1))));
        watch.observe(at(3), &[busy(), busy()], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(5))));
    }
}
