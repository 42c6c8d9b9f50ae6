//! What is remembered of a job's slices here from sample to sample, and since when they are stalled. No I/O,
//! no clock of its own.

use std::time::Duration;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::policy::{IdleWish, Policy, Stall};
use serde::{Deserialize, Serialize};

use crate::clock::BootTime;
use crate::judge::escalation::Escalation;
use crate::judge::stall::Stalled;
use crate::key::Key;
use crate::measure::sample::{Activity, Sample};

/// Intervals that may pass between two samples of a slice; what happens in a longer gap is not known.
pub const LONGEST_GAP_ROUNDS: u32 = 6;
/// As [`LONGEST_GAP_ROUNDS`] for a slice that is looked at all the time, as its job may end by what is seen.
pub const LONGEST_SUSPECT_GAP_ROUNDS: u32 = 3;
/// Memory of an instance that the driver itself may hold.
const DRIVERS_OWN: MemoryMib = MemoryMib(256);

/// What the last look at a slice found.
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
    /// The run of the job that holds the lease.
    pub key: Key,
    /// When it was first seen.
    pub began: BootTime,
    /// When it was last looked at with an answer or without.
    pub sampled: BootTime,
    /// Whether the slice was ever active, or may have been.
    #[serde(rename = "used")]
    pub was_active: bool,
    /// When the slice was last active, or may have been; `began` if it never was.
    #[serde(rename = "last_use")]
    pub last_active: BootTime,
    /// Why that counts as activity.
    pub reason: String,
    /// The job's processes on its first slice at the last look.
    contexts: u32,
    /// Their memory at the last look.
    memory: Option<MemoryMib>,
    /// The same of its further slices, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further: Vec<Seen>,
    /// Since when memory is held and no process is left.
    held_since: Option<BootTime>,
    /// Since when the job takes more than its share.
    over_since: Option<BootTime>,
    /// What has been done about it.
    #[serde(rename = "ladder")]
    pub escalation: Escalation,
}

impl Watch {
    /// Begins to watch.
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

    /// How many slices the last look was at.
    pub fn slices(&self) -> usize {
        1 + self.further.len()
    }

    /// Takes in a sample of each slice, in their order. `longest_gap`: what may have happened in more time without them is
    /// not known.
    pub fn observe(&mut self, now: BootTime, samples: &[Sample], longest_gap: Duration) {
        if now.since(self.sampled) > longest_gap {
            self.restart_window(now, "nobody looked for too long");
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
        // No process on any slice, and memory on one.
        let held = samples.iter().all(|sample| sample.contexts == Some(0))
            && samples
                .iter()
                .any(|sample| sample.memory >= Some(DRIVERS_OWN));
        self.held_since = match (held && self.was_active, self.held_since) {
            (false, _) => None,
            (true, None) => Some(now),
            (true, since) => since,
        };
        let has_excess = samples.iter().any(|sample| sample.excess.is_some());
        self.over_since = match (has_excess, self.over_since) {
            (false, _) => None,
            (true, None) => Some(now),
            (true, since) => since,
        };
    }

    /// Takes in the sample of one slice, and what of it the next one is compared with.
    fn compare(&mut self, now: BootTime, sample: &Sample, seen: &mut Seen) {
        match &sample.activity {
            Activity::Idle => {}
            Activity::Busy => self.mark_active(now, "it was used"),
            Activity::Unknown(why) => self.mark_active(now, why),
        }
        if let Some(contexts) = sample.contexts {
            // A new context is made to be used.
            if contexts > seen.contexts {
                self.mark_active(now, "a new context");
            }
            seen.contexts = contexts;
        }
        // Idle programs neither take nor give: whatever the counters say.
        if let (Some(before), Some(memory)) = (seen.memory, sample.memory)
            && before != memory
        {
            self.mark_active(now, "its memory changed");
        }
        seen.memory = sample.memory;
    }

    /// The slice is active now, or that cannot be ruled out.
    pub fn mark_active(&mut self, now: BootTime, reason: &str) {
        self.was_active = true;
        self.last_active = self.last_active.max(now);
        reason.clone_into(&mut self.reason);
        self.held_since = None;
    }

    /// Earlier samples do not count.
    pub fn restart_window(&mut self, now: BootTime, reason: &str) {
        self.mark_active(now, reason);
        self.over_since = None;
    }

    /// Since when the slice is stalled in this way; None if it is not.
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

    /// Whether the slice was used again after a warning, or the job keeps to its share again.
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

    /// Whether the slice has been stalled for half of a window: it is looked at without gaps then.
    pub fn is_suspect(&self, policy: &Policy, wish: IdleWish, now: BootTime) -> bool {
        let half = |stalled: Stalled| now.since(stalled.since) * 2 >= stalled.window;
        self.stalled(policy, wish).is_some_and(half)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::measure::sample::{Excess, Source};
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
        // A context that computes nothing is a use once, not for ever.
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
    fn what_is_not_known_counts_as_use() {
        let mut watch = Watch::new(KEY, at(0));
        watch.observe(at(1), &[Sample::missing("no driver")], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(5))));
        watch.observe(at(7), &[sample(Activity::Idle, 0, 0)], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(5))), "six intervals");
        watch.observe(at(14), &[sample(Activity::Idle, 0, 0)], 6 * SECOND);
        assert_eq!(stalled(&watch), Some((Stall::Idle, at(14))), "seven");
    }

    #[test]
    fn too_much_must_last_without_a_gap() {
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
    fn what_the_user_asked_for_counts_where_it_is_allowed() {
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
    fn the_busiest_slice_speaks_for_its_job() {
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
        // A program that moves from one slice to the other is a new one there.
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
        // Memory without a process, while the other slice has one.
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
    fn who_takes_too_much_does_so_on_any_slice() {
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
