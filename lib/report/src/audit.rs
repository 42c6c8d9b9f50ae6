//! Whether the books balance: for each GPU and second, busy + idle + unknown + suspended + free + unplaceable + down =
//! capacity.
//!
//! Times are those of a boot's own clock, so that a step of the wall clock makes no difference. The parts of slices
//! come from their records, what is free from the times at which slices began and ended; both are compared for each
//! GPU.

use std::collections::BTreeMap;

use gpufrac_records::usage::{BootSpan, GpuTime, UsageRecord, apportion};

use crate::period::Period;

/// Seconds after which the time of a GPU is in a record: gpufrac-reaperd writes it each hour, and ships it to
/// `shared`.
const RECORDED_WITHIN_S: u64 = 2 * 3600;

/// The balance of GPUs, in unit-seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    /// All units in all seconds.
    pub capacity: u64,
    /// Held and used.
    pub busy: u64,
    /// Held and not used.
    pub idle: u64,
    /// Held, and nobody measured.
    pub unknown: u64,
    /// Held by suspended jobs.
    pub suspended: u64,
    /// Not held.
    pub free: u64,
    /// Not held, and less than the smallest size that still fits.
    pub unplaceable: u64,
    /// Not there: the node was down, or was no node of gpufrac.
    pub down: u64,
    /// Unit-seconds of slices beyond what the device has: two jobs at one place.
    pub beyond: u64,
    /// Unit-seconds beyond what the device has that are the rounding of sizes to units alone: four eighths of 13 units
    /// fill a half of 50. Slurm gives three, and a fourth is there as long as the slice of a job whose epilog died.
    pub rounded: u64,
    /// Unit-seconds of slices while no record says that the GPU was there: gpufrac-reaperd did not run.
    pub uncovered: u64,
    /// Of the period, but no part of the capacity: the time until now of which gpufrac-reaperd will write a record.
    pub pending: u64,
    /// Records without a time of the boot's clock (version 1), which cannot be compared.
    pub records_of_version_1: u64,
    pub records: u64,
}

impl Balance {
    /// The parts of the capacity with their names, in unit-seconds.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("busy", self.busy),
            ("idle", self.idle),
            ("unknown", self.unknown),
            ("suspended", self.suspended),
            ("free", self.free),
            ("unplaceable", self.unplaceable),
            ("down", self.down),
        ]
    }

    /// The residual, in seconds of a unit: 0 where the books balance.
    pub fn residual(&self) -> i128 {
        let parts = self.parts().into_iter();
        let parts: i128 = parts.map(|(_, part)| i128::from(part)).sum();
        i128::from(self.capacity) + i128::from(self.rounded) - parts
    }

    /// Whether nothing is left over, and nothing was given twice.
    pub fn is_right(&self) -> bool {
        self.residual() == 0 && self.beyond == 0
    }

    fn merge(&mut self, other: &Balance) {
        self.capacity += other.capacity;
        self.busy += other.busy;
        self.idle += other.idle;
        self.unknown += other.unknown;
        self.suspended += other.suspended;
        self.free += other.free;
        self.unplaceable += other.unplaceable;
        self.down += other.down;
        self.beyond += other.beyond;
        self.rounded += other.rounded;
        self.uncovered += other.uncovered;
        self.pending += other.pending;
        self.records_of_version_1 += other.records_of_version_1;
        self.records += other.records;
    }
}

/// A GPU by its node and UUID.
pub type GpuKey = (String, String);

/// The balance of each GPU, and of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    /// Of each GPU, by node and UUID.
    pub each: Vec<(GpuKey, Balance)>,
    /// The sum of them.
    pub all: Balance,
}

/// Collects records.
#[derive(Debug, Default)]
pub struct Audit {
    gpus: BTreeMap<GpuKey, GpuRecords>,
    without_boot: u64,
}

#[derive(Debug, Default)]
struct GpuRecords {
    /// When it was there.
    times: Vec<GpuTime>,
    slices: Vec<Slice>,
}

#[derive(Debug)]
struct Slice {
    boot: BootSpan,
    device: u32,
    units: u64,
    /// Its part of the GPU, exact: hundredths of a unit.
    exact: u64,
    /// Busy, idle, suspended, unknown seconds.
    parts: [u64; 4],
}

impl Audit {
    /// Adds the time of a GPU.
    pub fn gpu(&mut self, time: GpuTime) {
        let key = (time.node.clone(), time.gpu_uuid.clone());
        self.gpus.entry(key).or_default().times.push(time);
    }

    /// Adds a slice. Each is to be added once.
    pub fn slice(&mut self, record: &UsageRecord) {
        let (Some(boot), Some(device)) = (&record.boot, record.device) else {
            self.without_boot += 1;
            return;
        };
        let key = (record.node.clone(), record.gpu_uuid.clone());
        let parts = match &record.used {
            Some(used) => [used.busy, used.idle, used.suspended, used.unknown],
            None => [0, 0, 0, record.seconds],
        };
        self.gpus.entry(key).or_default().slices.push(Slice {
            boot: boot.clone(),
            device,
            units: u64::from(record.units),
            exact: exact(record),
            parts,
        });
    }

    /// The balance of each GPU in a period, and of all of them. `now`: seconds since 1970.
    pub fn balance(&self, period: Period, now: u64) -> Audited {
        let mut all = Balance {
            records_of_version_1: self.without_boot,
            ..Balance::default()
        };
        let mut each = Vec::with_capacity(self.gpus.len());
        for (gpu, known) in &self.gpus {
            let balance = known.balance(period, now);
            all.merge(&balance);
            each.push((gpu.clone(), balance));
        }
        Audited { each, all }
    }
}

impl Audited {
    /// Whether the books of each GPU balance: a second too much on one GPU does not make up for one that another GPU
    /// lacks.
    pub fn balances(&self) -> bool {
        self.each.iter().all(|(_, balance)| balance.is_right())
    }
}

/// A device of a GPU in one boot.
struct Device {
    index: u32,
    units: u64,
    menu: Vec<u32>,
}

impl GpuRecords {
    fn balance(&self, period: Period, now: u64) -> Balance {
        let mut balance = Balance::default();
        // What the next record may have is no time in which the GPU was away.
        let newest = self.times.iter().max_by_key(|time| time.until);
        let newest = newest.filter(|time| now < time.until + RECORDED_WITHIN_S);
        let end = newest.map_or(period.until, |time| {
            time.until.clamp(period.since, period.until)
        });
        balance.pending = period.until.min(now).saturating_sub(end) * 100;
        let period = Period {
            until: end,
            ..period
        };
        let mut boots: BTreeMap<&str, Vec<&GpuTime>> = BTreeMap::new();
        for time in &self.times {
            boots.entry(&time.boot.id).or_default().push(time);
        }
        let mut up = 0;
        for times in boots.values_mut() {
            times.sort_by_key(|time| time.boot.from);
            let mut end = 0;
            for time in &joined(times) {
                // Recorded twice by a daemon that died in between: the second one begins where the first one ended.
                let from = time.boot.from.max(end);
                end = end.max(time.boot.until);
                let Some((from, until)) = clip(time, from, period) else {
                    continue;
                };
                up += (until - from) * 100;
                self.add(&mut balance, time, from, until);
            }
        }
        let slices = self.slices.iter();
        balance.uncovered = slices.map(|slice| self.uncovered(slice, newest)).sum();
        // After a step of the wall clock a boot may be longer than the period.
        balance.capacity = up.max(period.seconds() * 100);
        balance.down = balance.capacity - up;
        balance
    }

    /// Unit-seconds of a slice that no record of the GPU has. `newest`: the record after which one is to come.
    fn uncovered(&self, slice: &Slice, newest: Option<&GpuTime>) -> u64 {
        let of_boot = self
            .times
            .iter()
            .filter(|time| time.boot.id == slice.boot.id);
        let mut times: Vec<&BootSpan> = of_boot.map(|time| &time.boot).collect();
        times.sort_by_key(|time| time.from);
        let (mut covered, mut end) = (0, 0);
        for time in times {
            let from = time.from.max(end).max(slice.boot.from);
            covered += time.until.min(slice.boot.until).saturating_sub(from);
            end = end.max(time.until);
        }
        let until = match newest {
            Some(newest) if newest.boot.id == slice.boot.id => {
                slice.boot.until.min(newest.boot.until.max(slice.boot.from))
            }
            // Of a boot after the newest record.
            Some(_) if end == 0 => slice.boot.from,
            _ => slice.boot.until,
        };
        (until - slice.boot.from).saturating_sub(covered) * slice.units
    }

    /// Adds a span of a boot in which the GPU was there with these devices.
    fn add(&self, balance: &mut Balance, time: &GpuTime, from: u64, until: u64) {
        for &(index, units) in &time.devices {
            let device = Device {
                index,
                units: u64::from(units),
                menu: time.menu.clone(),
            };
            self.add_device(balance, &time.boot.id, &device, from, until);
        }
    }

    fn add_device(
        &self,
        balance: &mut Balance,
        boot: &str,
        device: &Device,
        from: u64,
        until: u64,
    ) {
        let here = |slice: &&Slice| slice.boot.id == boot && slice.device == device.index;
        // Changes of what is held: at a second, by units and by their exact part.
        let mut changes: BTreeMap<u64, [i64; 2]> =
            BTreeMap::from([(from, [0; 2]), (until, [0; 2])]);
        for slice in self.slices.iter().filter(here) {
            let begin = slice.boot.from.clamp(from, until);
            let end = slice.boot.until.clamp(from, until);
            let seconds = end - begin;
            if seconds == 0 {
                continue;
            }
            balance.records += 1;
            let whole = slice.boot.until - slice.boot.from;
            let parts =
                if seconds == whole { slice.parts } else { apportion(seconds, slice.parts) };
            let [busy, idle, suspended, unknown] = parts.map(|part| part * slice.units);
            balance.busy += busy;
            balance.idle += idle;
            balance.suspended += suspended;
            balance.unknown += unknown;
            for (place, size) in [slice.units, slice.exact].into_iter().enumerate() {
                let size = i64::try_from(size).unwrap_or(0);
                changes.entry(begin).or_default()[place] += size;
                changes.entry(end).or_default()[place] -= size;
            }
        }
        let mut held = [0_i64; 2];
        let mut last = from;
        for (at, change) in changes {
            let seconds = at - last;
            let [used, exact] = held.map(|held| u64::try_from(held).unwrap_or(0));
            let left = device.units.saturating_sub(used);
            let fits = fits(left, &device.menu);
            balance.free += fits * seconds;
            balance.unplaceable += (left - fits) * seconds;
            let over = used.saturating_sub(device.units) * seconds;
            if exact > device.units * 100 {
                balance.beyond += over
            } else {
                balance.rounded += over
            }
            for (held, change) in held.iter_mut().zip(change) {
                *held += change;
            }
            last = at;
        }
    }
}

/// The size of a slice in hundredths of a unit, before it was rounded up to whole ones.
fn exact(record: &UsageRecord) -> u64 {
    let units = f64::from(record.units);
    let part = record
        .fraction
        .parse::<f64>()
        .map_or(units, |part| 100.0 * part);
    (100.0 * part.min(units)).floor() as u64
}

/// Times that follow each other without a change become one: each is compared with all slices of the GPU.
fn joined(times: &[&GpuTime]) -> Vec<GpuTime> {
    // The boot began at this second of the wall clock; both clocks are cut to whole seconds.
    let began = |time: &GpuTime| time.until.saturating_sub(time.boot.until);
    let mut joined: Vec<GpuTime> = Vec::new();
    for &time in times {
        match joined.last_mut() {
            Some(last)
                if time.boot.from <= last.boot.until
                    && time.boot.until >= last.boot.until
                    && (&time.devices, &time.menu) == (&last.devices, &last.menu)
                    && began(time).abs_diff(began(last)) <= 1 =>
            {
                last.until = time.until;
                last.boot.until = time.boot.until;
            }
            _ => joined.push(time.clone()),
        }
    }
    joined
}

/// The part of a GPU's time, from a second of its boot on, that lies in a period of the wall clock: seconds of the
/// boot.
fn clip(time: &GpuTime, from: u64, period: Period) -> Option<(u64, u64)> {
    // The boot began at this second of the wall clock, by what it showed at the end.
    let boot = i128::from(time.until) - i128::from(time.boot.until);
    let by_boot = |unix: u64| u64::try_from((i128::from(unix) - boot).max(0)).unwrap_or(u64::MAX);
    let from = from.max(by_boot(period.since));
    let until = time.boot.until.min(by_boot(period.until));
    (from < until).then_some((from, until))
}

/// The most units that slices of these sizes can fill.
fn fits(left: u64, menu: &[u32]) -> u64 {
    let left = usize::try_from(left).unwrap_or(0);
    let mut reached = vec![false; left + 1];
    reached[0] = true;
    for units in 0..=left {
        reached[units] = reached[units]
            || menu.iter().any(|&size| {
                let size = size as usize;
                size > 0 && size <= units && reached[units - size]
            });
    }
    let most = reached.iter().rposition(|&reached| reached);
    most.unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Period = Period {
        since: 1_000,
        until: 2_000,
    };

    /// Long after all records.
    const LATER: u64 = 1_000_000;

    /// A GPU with two halves, which was there from one second of its boot to another. The boot began at 900.
    fn gpu(from: u64, until: u64) -> GpuTime {
        GpuTime {
            node: "n1".to_owned(),
            gpu_uuid: "GPU-0".to_owned(),
            pool: "p".to_owned(),
            from: 900 + from,
            until: 900 + until,
            boot: span(from, until),
            devices: vec![(0, 50), (1, 50)],
            menu: vec![13, 25, 50],
        }
    }

    fn span(from: u64, until: u64) -> BootSpan {
        BootSpan {
            id: "boot".to_owned(),
            from,
            until,
        }
    }

    fn slice(audit: &mut Audit, device: u32, units: u64, from: u64, until: u64, parts: [u64; 4]) {
        let key = ("n1".to_owned(), "GPU-0".to_owned());
        audit.gpus.entry(key).or_default().slices.push(Slice {
            boot: span(from, until),
            device,
            units,
            // Eighths cost 13 units.
            exact: if units == 13 { 1_250 } else { 100 * units },
            parts,
        });
    }

    #[test]
    fn the_slice_of_a_dead_epilog_beside_its_successor_is_rounding() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 1_100));
        slice(&mut audit, 0, 13, 200, 400, [200, 0, 0, 0]);
        slice(&mut audit, 0, 13, 200, 400, [200, 0, 0, 0]);
        slice(&mut audit, 0, 25, 300, 500, [200, 0, 0, 0]);
        let audited = audit.balance(PERIOD, LATER);
        assert_eq!((audited.all.rounded, audited.all.beyond), (100, 0));
        assert!(audited.balances());
    }

    /// Promise (admins): the time of which no record is written yet is neither down nor held without a daemon.
    #[test]
    fn the_time_since_the_newest_record_is_not_down() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 600));
        slice(&mut audit, 0, 50, 500, 800, [300, 0, 0, 0]);
        let of = |now: u64| audit.balance(PERIOD, now).all;
        let soon = of(2_000);
        assert_eq!((soon.capacity, soon.pending), (50_000, 50_000));
        assert_eq!(of(1_600).pending, 10_000);
        assert_eq!((soon.busy, soon.down, soon.uncovered), (5_000, 0, 0));
        let late = of(1_500 + RECORDED_WITHIN_S);
        assert_eq!((late.capacity, late.pending), (100_000, 0));
        assert_eq!(
            (late.busy, late.down, late.uncovered),
            (5_000, 50_000, 10_000)
        );
        assert!(audit.balance(PERIOD, 2_000).balances());
        // The node has booted since.
        let key = ("n1".to_owned(), "GPU-0".to_owned());
        let slices = &mut audit.gpus.get_mut(&key).unwrap().slices;
        slices[0].boot.id = "next".to_owned();
        assert_eq!(audit.balance(PERIOD, 2_000).all.uncovered, 0);
    }

    #[test]
    fn all_seconds_of_a_gpu_are_of_one_kind() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 600));
        audit.gpu(gpu(600, 900));
        // A half for 200 s, beside it an eighth for 100 s.
        slice(&mut audit, 0, 50, 200, 400, [150, 30, 20, 0]);
        slice(&mut audit, 1, 13, 250, 350, [0, 0, 0, 100]);
        let all = audit.balance(PERIOD, LATER).all;
        assert_eq!(all.residual(), 0);
        assert_eq!((all.busy, all.idle, all.suspended), (7500, 1500, 1000));
        assert_eq!(all.unknown, 1300);
        assert_eq!(all.down, 200 * 100);
        // 37 are left beside an eighth: two more of 13 units fit, and 11 are lost.
        assert_eq!(all.unplaceable, 11 * 100);
        assert_eq!((all.beyond, all.uncovered), (0, 0));
    }

    #[test]
    fn a_slice_is_one_record_however_many_hours_it_has() {
        let mut audit = Audit::default();
        for hour in 0..8 {
            audit.gpu(gpu(100 + 100 * hour, 200 + 100 * hour));
        }
        slice(&mut audit, 0, 50, 150, 850, [700, 0, 0, 0]);
        let all = audit.balance(PERIOD, LATER).all;
        assert_eq!((all.residual(), all.records), (0, 1));
    }

    #[test]
    fn two_jobs_at_one_place_are_seen() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 1_100));
        slice(&mut audit, 0, 50, 200, 400, [200, 0, 0, 0]);
        slice(&mut audit, 0, 25, 300, 500, [200, 0, 0, 0]);
        let all = audit.balance(PERIOD, LATER).all;
        assert_eq!(all.beyond, 100 * 25);
        assert_eq!(all.residual(), -100 * 25);
    }

    #[test]
    fn a_record_that_contradicts_itself_is_seen() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 1_100));
        slice(&mut audit, 0, 50, 200, 400, [150, 0, 0, 0]);
        assert_eq!(audit.balance(PERIOD, LATER).all.residual(), 50 * 50);
    }

    #[test]
    fn a_gpu_does_not_make_up_for_another() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 1_100));
        audit.gpu(GpuTime {
            gpu_uuid: "GPU-1".to_owned(),
            ..gpu(100, 1_100)
        });
        slice(&mut audit, 0, 50, 200, 400, [150, 0, 0, 0]);
        let other = ("n1".to_owned(), "GPU-1".to_owned());
        audit.gpus.entry(other).or_default().slices.push(Slice {
            boot: span(200, 400),
            device: 0,
            units: 50,
            exact: 5_000,
            parts: [250, 0, 0, 0],
        });
        let audited = audit.balance(PERIOD, LATER);
        assert_eq!(audited.all.residual(), 0);
        assert!(!audited.balances());
    }

    #[test]
    fn slices_without_a_time_of_their_gpu_are_counted() {
        let mut audit = Audit::default();
        audit.gpu(gpu(100, 300));
        slice(&mut audit, 0, 50, 200, 400, [200, 0, 0, 0]);
        let all = audit.balance(PERIOD, LATER).all;
        assert_eq!((all.residual(), all.uncovered), (0, 100 * 50));
    }

    proptest! {
        /// Promise (admins): the books balance: each second of each GPU is of one kind; two jobs at one place and
        /// records that contradict themselves are seen.
        /// With `a_gpu_does_not_make_up_for_another`, `two_jobs_at_one_place_are_seen`,
        /// `a_record_that_contradicts_itself_is_seen`.
        // Slices one after the other on each half, seen through any period, and times of the GPU that overlap or leave
        // gaps.
        #[test]
        fn the_books_balance(
            slices in proptest::collection::vec((0_u32..2, 0_usize..3, 0_u64..90, 0_u64..40, 0_u64..90), 0..40),
            times in proptest::collection::vec((0_u64..2_000, 1_u64..700), 1..8),
            since in 900_u64..2_000,
            length in 1_u64..1_500,
        ) {
            let mut audit = Audit::default();
            for (from, length) in times {
                audit.gpu(gpu(from, from + length));
            }
            let mut next = [0, 0];
            for (device, size, busy, pause, idle) in slices {
                let from = next[device as usize] + pause;
                let until = from + busy + idle;
                slice(&mut audit, device, [13, 25, 50][size], from, until, [busy, idle, 0, 0]);
                next[device as usize] = until;
            }
            let period = Period { since, until: since + length };
            let all = audit.balance(period, LATER).all;
            prop_assert_eq!(all.residual(), 0);
            prop_assert_eq!(all.beyond, 0);
            prop_assert_eq!(all.capacity, length * 100);
        }
    }
}
