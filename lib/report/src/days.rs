//! Sums of each day of a period.

use gpufrac_core::rates::Rates;
use gpufrac_records::usage::apportion;
use jiff::tz::TimeZone;

use crate::ledger::LedgerSlice;
use crate::period::{Period, day_text};
use crate::sums::Sums;

/// The days of a period.
#[derive(Debug)]
pub struct Days {
    period: Period,
    /// First seconds.
    begins: Vec<u64>,
    sums: Vec<Sums>,
}

impl Days {
    /// Without sums.
    pub fn new(period: Period, zone: &TimeZone) -> Days {
        let begins = period.days(zone);
        Days {
            period,
            sums: vec![Sums::default(); begins.len()],
            begins,
        }
    }

    /// Adds what a job held to the days on which it held it. A record does not say when in its life a slice was busy:
    /// each day has its part by length.
    pub fn add(&mut self, held: &LedgerSlice, rates: &Rates) {
        let (from, to) = (
            held.from.max(self.period.since),
            held.to.min(self.period.until),
        );
        let first = self
            .begins
            .partition_point(|&begin| begin <= from)
            .saturating_sub(1);
        if self.begins.get(first + 1).is_none_or(|&next| to <= next) {
            self.sums[first].add(held, rates);
            return;
        }
        let mut left = [held.busy, held.idle, held.unknown, held.suspended];
        let mut time = to.saturating_sub(from);
        for day in first..self.begins.len() {
            let begin = self.begins[day].max(from);
            let end = self.begins.get(day + 1).map_or(to, |&next| next.min(to));
            let length = end.saturating_sub(begin);
            if length == 0 {
                break;
            }
            // The rest is split between this day and the days after it: nothing is lost by rounding.
            let parts = left.map(|part| apportion(part, [length, time - length])[0]);
            let of_day = LedgerSlice {
                busy: parts[0],
                idle: parts[1],
                unknown: parts[2],
                suspended: parts[3],
                // The reaper's work is that of the last day.
                reclaimed: if end == to { held.reclaimed } else { 0 },
                is_reclaimed: held.is_reclaimed && end == to,
                energy_j: if end == to { held.energy_j } else { 0 },
                ..held.clone()
            };
            self.sums[day].add(&of_day, rates);
            for (left, part) in left.iter_mut().zip(parts) {
                *left -= part;
            }
            time -= length;
        }
    }

    /// Name and sums of each day.
    pub fn sums(&self, zone: &TimeZone) -> Vec<(String, Sums)> {
        let days = self.begins.iter().zip(&self.sums);
        days.map(|(&begin, sums)| (day_text(begin, zone), *sums))
            .collect()
    }
}
