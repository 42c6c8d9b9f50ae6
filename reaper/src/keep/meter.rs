//! How slices are used, added up from sample to sample for their usage records. Epilogs read the sums.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_records::usage::{Elapsed, Ended, Kind, SliceKey, Tallies, Tally};

use crate::key::SliceId;
use crate::measure::sample::{Activity, Sample};
use gpufrac_node::clock::BootTime;
use gpufrac_node::state::record::boot_id;

/// How long before its end a slice counts as full: the memory of a program that failed is free before its job ends.
const LAST: Duration = Duration::from_secs(60);
/// Rounds for the same where a round takes longer: the last sample may be as old as one.
const LAST_ROUNDS: u32 = 2;
/// A slice is full from this part of its memory on. A framework fails at the first allocation that does not fit, which
/// for a large model is hundreds of MiB; a lower bound would count frameworks that by their design take a fixed part in
/// advance (TensorFlow and vLLM 90 to 95 %).
const FULL_PERCENT: u64 = 97;

/// The sums of all slices of the node.
#[derive(Debug, Default)]
pub struct Meter {
    slices: BTreeMap<SliceKey, Metered>,
    /// Of each GPU, by UUID: millijoules at the last look.
    energy: HashMap<String, u64>,
}

#[derive(Debug)]
struct Metered {
    tally: Tally,
    /// The end of the time that the sums cover.
    until: BootTime,
    /// When a sample last found the slice full, and its memory then.
    full: Option<(BootTime, MemoryMib)>,
}

fn is_full(used: MemoryMib, all: MemoryMib) -> bool {
    all.0 > 0 && used.0 * 100 >= all.0 * FULL_PERCENT
}

/// What the reaper did to a job.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Warned,
    /// The reaper ends the job.
    Reclaimed {
        /// Seconds that are left of its time limit, if it has one.
        returned: Option<u64>,
    },
    /// The reaper did not end the job after all.
    Spared,
}

/// A sample of a slice, and what else is known of the slice's time.
#[derive(Debug)]
pub struct Reading<'a> {
    pub lease: &'a Lease,
    pub sample: &'a Sample,
    /// Whether Slurm has suspended the job.
    pub suspended: bool,
}

impl Reading<'_> {
    fn kind(&self) -> Kind {
        match self.sample.activity {
            _ if self.suspended => Kind::Suspended,
            Activity::Busy => Kind::Busy,
            Activity::Idle => Kind::Idle,
            Activity::Unknown(_) => Kind::Unknown,
        }
    }

    /// Activity, 0 to 1; None where it is not known.
    fn activity(&self) -> Option<f64> {
        match (self.kind(), self.sample.busy_share) {
            (Kind::Unknown, _) => None,
            (Kind::Suspended, _) => Some(0.0),
            (_, share) => share,
        }
    }

    /// The slice's part in the work of its GPU, not to scale.
    fn weight(&self) -> f64 {
        let by_kind = f64::from(u8::from(self.kind() == Kind::Busy));
        self.activity().unwrap_or(by_kind) * f64::from(self.lease.units.0)
    }
}

impl Meter {
    /// Goes on with the sums of an earlier run of the daemon; the time between is unknown.
    pub fn resume(tallies: Tallies, now: BootTime) -> Meter {
        let mut meter = Meter::default();
        if tallies.boot_id == boot_id().unwrap_or_default() {
            for tally in tallies.slices {
                let metered = Metered {
                    tally,
                    until: now,
                    full: None,
                };
                meter.slices.insert(metered.tally.key.clone(), metered);
            }
        }
        meter
    }

    /// Begins with new slices, and drops those whose leases are gone. Slices that are being released stay: their
    /// epilogs are yet to read the sums.
    pub fn sync(&mut self, leases: &[Lease], now: BootTime) {
        self.slices.retain(|key, _| {
            let mut leases = leases.iter();
            leases.any(|lease| lease.state != LeaseState::Kept && SliceKey::of(lease) == *key)
        });
        for lease in leases
            .iter()
            .filter(|lease| lease.state == LeaseState::Active)
        {
            let key = SliceKey::of(lease);
            self.slices.entry(key).or_insert_with_key(|key| Metered {
                tally: Tally::new(key.clone()),
                until: now,
                full: None,
            });
        }
    }

    /// Adds the time since the last sample of each slice; nothing is known of a time that is longer than `longest`.
    /// `energy`: counters of GPUs by UUID, in millijoules.
    pub fn add(
        &mut self,
        now: BootTime,
        longest: Duration,
        readings: &[Reading<'_>],
        energy: &HashMap<String, u64>,
    ) {
        let used = self.energy_since(energy);
        for reading in readings {
            let gpu = &reading.lease.slice.gpu_uuid;
            let Some(metered) = self.slices.get_mut(&SliceKey::of(reading.lease)) else {
                continue;
            };
            let time = now.since(metered.until);
            metered.until = now;
            let memory = reading.sample.memory;
            if let Some(used) = memory.filter(|used| is_full(*used, reading.lease.slice.memory_mib))
            {
                metered.full = Some((now, used));
            }
            let here = |other: &&Reading<'_>| other.lease.slice.gpu_uuid == *gpu;
            let all: f64 = readings.iter().filter(here).map(Reading::weight).sum();
            let part = if all > 0.0 { reading.weight() / all } else { 0.0 };
            let energy_mj = used
                .get(gpu)
                .map(|&used| (used, (used as f64 * part) as u64));
            metered.tally.add(Elapsed {
                time,
                kind: if time > longest { Kind::Unknown } else { reading.kind() },
                activity: reading.activity(),
                memory,
                source: reading.sample.source.name(),
                energy_mj,
            });
        }
    }

    /// Millijoules of each GPU since the last look. None after the first look, or where the counter began again with
    /// the driver.
    fn energy_since(&mut self, counters: &HashMap<String, u64>) -> HashMap<String, u64> {
        let used = counters.iter().filter_map(|(gpu, now)| {
            let before = self.energy.get(gpu)?;
            Some((gpu.clone(), now.checked_sub(*before)?))
        });
        let used = used.collect();
        self.energy.clone_from(counters);
        used
    }

    /// Adds what the reaper did to these slices.
    pub fn note(&mut self, slices: &[SliceId], effect: Effect) {
        for (key, Metered { tally, .. }) in &mut self.slices {
            let is_it = |id: &SliceId| (id.job_id, id.number) == (key.job, key.slice);
            if !slices.iter().any(is_it) {
                continue;
            }
            match effect {
                Effect::Warned => tally.warnings += 1,
                Effect::Reclaimed { returned } => {
                    (tally.ended, tally.returned) = (Some(Ended::Reclaimed), returned);
                }
                Effect::Spared => (tally.ended, tally.returned) = (None, None),
            }
        }
    }

    pub fn is_reclaimed(&self, key: &SliceKey) -> bool {
        let metered = self.slices.get(key);
        metered.is_some_and(|metered| metered.tally.ended == Some(Ended::Reclaimed))
    }

    /// The memory of a slice that was full in its last minute, where it ends now, and how long that holds. `interval`:
    /// of the rounds.
    pub fn filled(
        &self,
        key: &SliceKey,
        now: BootTime,
        interval: Duration,
    ) -> Option<(MemoryMib, Duration)> {
        let (at, used) = self.slices.get(key)?.full?;
        let left = LAST
            .max(interval * LAST_ROUNDS)
            .checked_sub(now.since(at))?;
        Some((used, left))
    }

    pub fn tallies(&self) -> Tallies {
        Tallies {
            boot_id: boot_id().unwrap_or_default(),
            slices: self
                .slices
                .values()
                .map(|metered| metered.tally.clone())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::watch::tests::{at, sample};
    use gpufrac_core::fraction::Units;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A lease of so many units of GPU 0.
    fn lease(job: u32, units: u32) -> Lease {
        Lease {
            units: Units(units),
            created_boot_ms: Some(1_000_000),
            ..test_examples::lease(job)
        }
    }

    fn share(activity: Activity, share: f64) -> Sample {
        Sample {
            busy_share: Some(share),
            ..sample(activity, 1, 300)
        }
    }

    /// The record of a lease that ends 100 s after [`at`] 0.
    fn used(meter: &Meter, lease: &Lease) -> gpufrac_records::usage::Used {
        let tallies = meter.tallies();
        let key = SliceKey::of(lease);
        let tally = tallies.slices.iter().find(|tally| tally.key == key);
        let record = {
            let end = gpufrac_records::usage::End {
                unix: 1_100,
                boot_ms: 1_100_000,
                boot_id: "boot",
            };
            gpufrac_records::usage::UsageRecord::of(lease, end, tally)
        };
        record.used.unwrap()
    }

    #[test]
    fn each_time_is_of_the_kind_that_its_sample_says() {
        let lease = lease(7, 25);
        let mut meter = Meter::default();
        meter.sync(std::slice::from_ref(&lease), at(0));
        let mut look = |second, sample: &Sample, suspended| {
            let reading = Reading {
                lease: &lease,
                sample,
                suspended,
            };
            meter.add(at(second), MINUTE, &[reading], &HashMap::new());
        };
        look(10, &share(Activity::Busy, 0.5), false);
        look(30, &share(Activity::Idle, 0.0), false);
        look(45, &share(Activity::Idle, 0.0), true);
        look(50, &Sample::missing("no driver"), false);
        let used = used(&meter, &lease);
        let times = (used.busy, used.idle, used.suspended, used.unknown);
        // 5 s without a figure, and 50 s that no sample covers.
        assert_eq!(times, (10, 20, 15, 55));
        assert_eq!(used.peak_memory_mib, Some(300));
    }

    #[test]
    fn a_slice_is_full_from_97_percent_on_until_a_minute_later() {
        let lease = lease(7, 25);
        let key = SliceKey::of(&lease);
        let all = lease.slice.memory_mib.0;
        let bound = (all * 97).div_ceil(100);
        let second = Duration::from_secs(1);
        for (memory, expected) in [
            (bound - 1, None),
            (bound, Some(bound)),
            (all + 9, Some(all + 9)),
        ] {
            let mut meter = Meter::default();
            meter.sync(std::slice::from_ref(&lease), at(0));
            let mut look = |at_second, memory| {
                let sample = sample(Activity::Busy, 1, memory);
                let reading = Reading {
                    lease: &lease,
                    sample: &sample,
                    suspended: false,
                };
                meter.add(at(at_second), MINUTE, &[reading], &HashMap::new());
            };
            look(10, memory);
            // The program has died, and its job goes on to the end of the script.
            look(20, 0);
            let filled = |at_second, interval| meter.filled(&key, at(at_second), interval);
            let expected = |left| Some((MemoryMib(expected?), left));
            assert_eq!(filled(70, second), expected(Duration::ZERO));
            assert_eq!(filled(71, second), None);
            assert_eq!(filled(71, second * 31), expected(second));
        }
        assert_eq!(Meter::default().filled(&key, at(0), second), None);
    }

    #[test]
    fn a_gap_is_unknown_whatever_comes_after_it() {
        let lease = lease(7, 25);
        let mut meter = Meter::default();
        meter.sync(std::slice::from_ref(&lease), at(0));
        let sample = share(Activity::Busy, 1.0);
        let reading = Reading {
            lease: &lease,
            sample: &sample,
            suspended: false,
        };
        meter.add(at(61), MINUTE, &[reading], &HashMap::new());
        assert_eq!(used(&meter, &lease).unknown, 100);
    }

    #[test]
    fn a_daemon_that_starts_again_goes_on_with_the_sums() {
        let lease = lease(7, 25);
        let sample = share(Activity::Busy, 1.0);
        let reading = || Reading {
            lease: &lease,
            sample: &sample,
            suspended: false,
        };
        let mut meter = Meter::default();
        meter.sync(std::slice::from_ref(&lease), at(0));
        meter.add(at(10), MINUTE, &[reading()], &HashMap::new());
        meter.note(&[SliceId::of(&lease)], Effect::Warned);
        let mut meter = Meter::resume(meter.tallies(), at(40));
        meter.sync(std::slice::from_ref(&lease), at(40));
        meter.add(at(50), MINUTE, &[reading()], &HashMap::new());
        let used = used(&meter, &lease);
        assert_eq!((used.busy, used.unknown, used.warnings), (20, 80, 1));
        // A lease that is gone has had its record.
        meter.sync(&[], at(50));
        assert!(meter.tallies().slices.is_empty());
        let other_boot = Tallies {
            boot_id: "another".to_owned(),
            slices: vec![Tally::new(SliceKey::of(&lease))],
        };
        assert!(Meter::resume(other_boot, at(0)).tallies().slices.is_empty());
    }

    #[test]
    fn energy_goes_to_slices_by_size_and_activity() {
        let (one, other) = (lease(7, 25), lease(8, 50));
        let leases = [one.clone(), other.clone()];
        let mut meter = Meter::default();
        meter.sync(&leases, at(0));
        let (busy, half) = (share(Activity::Busy, 1.0), share(Activity::Busy, 0.25));
        let mut look = |second, counter| {
            let readings = [
                Reading {
                    lease: &one,
                    sample: &busy,
                    suspended: false,
                },
                Reading {
                    lease: &other,
                    sample: &half,
                    suspended: false,
                },
            ];
            let energy = HashMap::from([("GPU-0".to_owned(), counter)]);
            meter.add(at(second), MINUTE, &readings, &energy);
        };
        // The first counter says nothing; 25 and 12.5 are the weights of both.
        look(10, 5_000_000);
        look(20, 8_000_000);
        // The driver was loaded again.
        look(30, 1_000_000);
        look(40, 4_000_000);
        let energy = |lease| {
            let used = used(&meter, lease);
            (used.gpu_energy_j, used.energy_j)
        };
        assert_eq!(energy(&one), (Some(6000), Some(4000)));
        assert_eq!(energy(&other), (Some(6000), Some(2000)));
    }
}
