//! Sums of the samples of a slice while the slice exists.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ended, Full, SliceKey, Used};
use gpufrac_core::fraction::MemoryMib;

/// All slices that gpufrac-reaperd watches on a node: its file for the epilogs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tallies {
    /// Names the boot of the node whose times these are.
    pub boot_id: String,
    pub slices: Vec<Tally>,
}

/// The measurements of a slice so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Which slice.
    #[serde(flatten)]
    pub key: SliceKey,
    /// Milliseconds with activity.
    busy_ms: u64,
    /// Milliseconds without.
    idle_ms: u64,
    /// Milliseconds in which Slurm had suspended the job.
    suspended_ms: u64,
    /// Milliseconds that were looked at and could not be told.
    unknown_ms: u64,
    /// Mean activity, 0 to 1, weighted by time.
    activity: Mean,
    /// Memory in MiB, weighted by time.
    memory: Mean,
    /// Greatest memory in MiB.
    peak_memory_mib: Option<u64>,
    /// Source of the last sample that could tell.
    source: Option<String>,
    /// Warnings of the reaper.
    pub warnings: u32,
    /// Why the slice ends, where the reaper ends it.
    pub ended: Option<Ended>,
    /// Seconds of the job's time limit that are left then, if it has one.
    pub returned: Option<u64>,
    /// That a sample found the slice full; the next samples need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<Filled>,
    /// Millijoules of the GPU.
    gpu_energy_mj: Option<u64>,
    /// Millijoules by the slice's activity.
    energy_mj: Option<u64>,
}

/// A slice that was full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Filled {
    /// Until when a failure has to do with it: milliseconds since the node was booted.
    pub until_boot_ms: u64,
    pub full: Full,
}

/// A mean over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Mean {
    /// The value times milliseconds.
    sum: f64,
    /// Milliseconds for which the value is known.
    ms: u64,
}

impl Mean {
    fn add(&mut self, value: f64, ms: u64) {
        self.sum += value * ms as f64;
        self.ms += ms;
    }

    fn value(self) -> Option<f64> {
        (self.ms > 0).then(|| self.sum / self.ms as f64)
    }
}

/// The kind of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The slice was used.
    Busy,
    /// The slice was not used.
    Idle,
    /// That cannot be told.
    Unknown,
    /// Slurm had suspended the job.
    Suspended,
}

/// A time, and what a sample says of it.
#[derive(Debug, Clone, Copy)]
pub struct Elapsed<'a> {
    pub time: Duration,
    /// The use of the slice.
    pub kind: Kind,
    /// Activity, 0 to 1, where the source has a figure.
    pub activity: Option<f64>,
    /// Memory that the job held on the slice.
    pub memory: Option<MemoryMib>,
    /// Name of the sample's source.
    pub source: &'a str,
    /// Energy of the whole GPU in this time, and the slice's part by activity, in millijoules.
    pub energy_mj: Option<(u64, u64)>,
}

impl Tally {
    /// Of a slice without a sample.
    pub fn new(key: SliceKey) -> Tally {
        Tally {
            key,
            busy_ms: 0,
            idle_ms: 0,
            suspended_ms: 0,
            unknown_ms: 0,
            activity: Mean::default(),
            memory: Mean::default(),
            peak_memory_mib: None,
            source: None,
            warnings: 0,
            ended: None,
            returned: None,
            filled: None,
            gpu_energy_mj: None,
            energy_mj: None,
        }
    }

    /// Whether any sample was taken.
    pub fn has_samples(&self) -> bool {
        self.busy_ms + self.idle_ms + self.suspended_ms + self.unknown_ms > 0
    }

    /// Adds a time.
    pub fn add(&mut self, elapsed: Elapsed<'_>) {
        let ms = u64::try_from(elapsed.time.as_millis()).unwrap_or(u64::MAX);
        let sum = match elapsed.kind {
            Kind::Busy => &mut self.busy_ms,
            Kind::Idle => &mut self.idle_ms,
            Kind::Unknown => &mut self.unknown_ms,
            Kind::Suspended => &mut self.suspended_ms,
        };
        *sum = sum.saturating_add(ms);
        if elapsed.kind != Kind::Unknown {
            if let Some(activity) = elapsed.activity {
                self.activity.add(activity, ms);
            }
            if self.source.as_deref() != Some(elapsed.source) {
                self.source = Some(elapsed.source.to_owned());
            }
        }
        if let Some(memory) = elapsed.memory {
            self.memory.add(memory.0 as f64, ms);
            self.peak_memory_mib = self.peak_memory_mib.max(Some(memory.0));
        }
        if let Some((gpu, own)) = elapsed.energy_mj {
            *self.gpu_energy_mj.get_or_insert(0) += gpu;
            *self.energy_mj.get_or_insert(0) += own;
        }
    }

    /// Of a slice that existed for `length_ms` milliseconds, as whole `seconds`. Time that no sample covers is unknown.
    pub(super) fn used(&self, length_ms: u64, seconds: u64) -> Used {
        let measured = self.busy_ms + self.idle_ms + self.suspended_ms;
        let unknown = length_ms.saturating_sub(measured);
        let parts = [self.busy_ms, self.idle_ms, self.suspended_ms, unknown];
        let [busy, idle, suspended, unknown] = apportion(seconds, parts);
        let round = |value: f64| value.round() as u64;
        Used {
            busy,
            idle,
            unknown,
            suspended,
            activity: self
                .activity
                .value()
                .map(|share| (share * 1000.0).round() / 1000.0),
            peak_memory_mib: self.peak_memory_mib,
            mean_memory_mib: self.memory.value().map(round),
            source: self.source.clone().unwrap_or_else(|| "missing".to_owned()),
            warnings: self.warnings,
            gpu_energy_j: self.gpu_energy_mj.map(|mj| mj / 1000),
            energy_j: self.energy_mj.map(|mj| mj / 1000),
        }
    }
}

/// Splits a whole number by weights, by the method of the largest remainder: the parts add up to it. Without any weight
/// all of it is the last part.
pub fn apportion<const N: usize>(whole: u64, weights: [u64; N]) -> [u64; N] {
    let total: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let mut parts = [0; N];
    if total == 0 {
        if let Some(last) = parts.last_mut() {
            *last = whole;
        }
        return parts;
    }
    let mut order: Vec<(u128, usize)> = Vec::with_capacity(N);
    for (place, (part, weight)) in parts.iter_mut().zip(weights).enumerate() {
        let exact = u128::from(whole) * u128::from(weight);
        *part = u64::try_from(exact / total).unwrap_or(u64::MAX);
        order.push((exact % total, place));
    }
    // Largest remainder first; of equal ones the first.
    order.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
    let left = whole - parts.iter().sum::<u64>();
    for (_, place) in order.into_iter().take(left as usize) {
        parts[place] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::ids::JobId;
    use proptest::prelude::*;

    fn tally() -> Tally {
        Tally::new(SliceKey {
            job: JobId(7),
            slice: 0,
            restart_count: 0,
            start: 1000,
            node: "n1".to_owned(),
        })
    }

    fn elapsed(
        kind: Kind,
        ms: u64,
        activity: Option<f64>,
        memory: Option<u64>,
    ) -> Elapsed<'static> {
        Elapsed {
            time: Duration::from_millis(ms),
            kind,
            activity,
            memory: memory.map(MemoryMib),
            source: "gpm",
            energy_mj: None,
        }
    }

    #[test]
    fn time_without_a_sample_is_unknown_and_not_idle() {
        let mut tally = tally();
        assert!(!tally.has_samples());
        tally.add(elapsed(Kind::Busy, 20_000, Some(0.5), Some(300)));
        tally.add(elapsed(Kind::Idle, 30_000, Some(0.0), Some(100)));
        let used = tally.used(60_000, 60);
        let times = (used.busy, used.idle, used.unknown, used.suspended);
        assert_eq!(times, (20, 30, 10, 0));
        assert_eq!(used.activity, Some(0.2));
        assert_eq!(
            (used.peak_memory_mib, used.mean_memory_mib),
            (Some(300), Some(180))
        );
        assert_eq!(used.source, "gpm");
    }

    #[test]
    fn energy_is_added_up_where_the_driver_has_it() {
        let mut tally = tally();
        tally.add(elapsed(Kind::Busy, 1000, None, None));
        assert_eq!(tally.used(1000, 1).gpu_energy_j, None);
        let energy_mj = Some((700_000, 200_000));
        let with = Elapsed {
            energy_mj,
            ..elapsed(Kind::Busy, 1000, None, None)
        };
        tally.add(with);
        tally.add(with);
        let used = tally.used(3000, 3);
        assert_eq!((used.gpu_energy_j, used.energy_j), (Some(1400), Some(400)));
    }

    proptest! {
        /// Promise (admins): a usage record says how its slice was used: four times that add up to its length, whatever
        /// the wall clock does; without a measurement the use is unknown.
        /// With `a_month_of_jobs`, `time_without_a_sample_is_unknown_and_not_idle`,
        /// `a_step_of_the_wall_clock_does_not_change_the_length`, `a_gap_is_unknown_whatever_comes_after_it`.
        #[test]
        fn the_four_times_add_up_to_the_length(
            parts in proptest::collection::vec((0_u8..4, 0_u64..5_000_000), 0..20),
            length_ms in 0_u64..100_000_000,
        ) {
            let mut tally = tally();
            for (kind, ms) in parts {
                let kind = [Kind::Busy, Kind::Idle, Kind::Unknown, Kind::Suspended][usize::from(kind)];
                tally.add(elapsed(kind, ms, None, None));
            }
            let seconds = (length_ms + 500) / 1000;
            let used = tally.used(length_ms, seconds);
            prop_assert_eq!(used.busy + used.idle + used.unknown + used.suspended, seconds);
        }
    }
}
