//! What counts: how each slice is used, for its usage record, why slices ended, and which GPUs there were to be used.

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::state::record::boot_id;
use gpufrac_records::usage::{End, Filled, GpuTime, SliceKey, Tallies, UsageRecord};

use self::ends::EndedSlice;
use super::decisions::Samples;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::keep::books::{Running, TakenUp};
use crate::keep::gpus;
use crate::keep::meter::{Effect, Meter, Reading};
use crate::keep::shipping::ShippingError;
use crate::key::SliceId;
use crate::measure::sample::Activity;
use crate::outside::Outside;
use crate::report::errors::topic;
use crate::report::metrics::PoolMetrics;
use crate::round::Round;

mod ends;

pub(super) struct Accounting {
    /// How the slices are used.
    meter: Meter,
    /// The GPUs of pools, whose time is not recorded yet.
    gpus: Vec<GpuTime>,
    /// Slices that ended, of which Slurm is to be asked.
    ended: Vec<EndedSlice>,
    /// The round from which on Slurm is asked about them.
    next_question_of_ends: u64,
}

impl Accounting {
    /// Takes up the books of an earlier run.
    pub(super) fn take_up(outside: &Outside) -> Accounting {
        let Outside { books, log, .. } = outside;
        let tallies = books.resume().unwrap_or_else(|error| {
            log.warning(error);
            Tallies::default()
        });
        let TakenUp { gpus, lost } = books.take_up().unwrap_or_else(|error| {
            log.warning(error);
            TakenUp::default()
        });
        if lost > 0 {
            log.warning(format!(
                "the node was booted while jobs held {lost} slices: their usage records end with the last minute before it"
            ));
        }
        Accounting {
            meter: Meter::resume(tallies, outside.clock.now()),
            gpus,
            ended: Vec::new(),
            next_question_of_ends: 0,
        }
    }

    /// Begins with new slices, and notes those that ended.
    pub(super) fn sync(&mut self, round: &Round, before: &[Lease], leases: &[Lease]) {
        // Before the sums forget them.
        self.note_ends(round, before, leases);
        self.meter.sync(leases, round.now());
    }

    /// Adds what the last look found.
    pub(super) fn add(&mut self, round: &Round, samples: &Samples<'_>) {
        let readings = samples.slices.iter().map(|(lease, sample)| Reading {
            lease,
            sample,
            // A job that computes is not suspended; asking takes time.
            suspended: sample.activity != Activity::Busy
                && round.outside.sampler.is_suspended(lease),
        });
        let readings: Vec<Reading<'_>> = readings.collect();
        let longest = round.interval() * LONGEST_GAP_ROUNDS;
        self.meter
            .add(samples.at, longest, &readings, &samples.energy);
    }

    /// Adds what an action changes for slices of a job.
    pub(super) fn note(&mut self, slices: &[SliceId], effect: Effect) {
        self.meter.note(slices, effect);
    }

    /// Writes the sums, which epilogs read, and steps that failed. `pools`: with their room.
    pub(super) fn save(&self, round: &mut Round, leases: &[Lease], pools: &[PoolMetrics]) {
        let mut tallies = self.meter.tallies();
        for tally in &mut tallies.slices {
            tally.filled = self.filled(round, &tally.key, leases, pools);
        }
        let saved = round.outside.books.save(&tallies);
        round.report(topic::BOOKS, saved);
    }

    /// Of a slice that is full, what a step that fails now tells its user.
    fn filled(
        &self,
        round: &Round,
        key: &SliceKey,
        leases: &[Lease],
        pools: &[PoolMetrics],
    ) -> Option<Filled> {
        let (now, interval) = (round.now(), round.interval());
        let (used, left) = self.meter.filled(key, now, interval)?;
        let mut leases = leases.iter();
        let lease = leases.find(|lease| SliceKey::of(lease) == *key)?;
        Some(Filled {
            until_boot_ms: now.milliseconds() + left.as_millis() as u64,
            full: ends::full(round, &lease.pool, lease.units, used, pools),
        })
    }

    /// Writes what is not over yet, for a boot that no epilog sees, and copies records to the folder that the nodes
    /// share.
    pub(super) fn record(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
    ) -> Result<(), ShippingError> {
        self.count_gpus(round);
        self.record_running(round, leases)
    }

    /// As [`Accounting::record`], as the daemon ends; the next one goes on from here with the time of the GPUs.
    pub(super) fn stop(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
    ) -> Result<(), ShippingError> {
        self.count_gpus(round);
        let recorded = round.outside.books.record_gpus(&self.gpus);
        if recorded.is_ok() {
            for gpu in &mut self.gpus {
                gpu.from = gpu.until;
                gpu.boot.from = gpu.boot.until;
            }
        }
        round.report(topic::GPUS, recorded);
        self.record_running(round, leases)
    }

    fn count_gpus(&mut self, round: &mut Round) {
        let boot_id = boot_id().unwrap_or_default();
        let now = gpus::of_node(&round.node, by_both_clocks(round, &boot_id));
        let counted = gpus::count(std::mem::take(&mut self.gpus), now);
        self.gpus = counted.on;
        let recorded = round.outside.books.record_gpus(&counted.over);
        round.report(topic::GPUS, recorded);
    }

    /// Writes the slices that jobs hold as if they ended now.
    fn record_running(&self, round: &mut Round, leases: &[Lease]) -> Result<(), ShippingError> {
        let boot_id = boot_id().unwrap_or_default();
        let end = by_both_clocks(round, &boot_id);
        let tallies = self.meter.tallies();
        let held = leases.iter();
        let held = held.filter(|lease| lease.state == LeaseState::Active);
        let records = held.map(|lease| {
            let key = SliceKey::of(lease);
            let tally = tallies.slices.iter().find(|tally| tally.key == key);
            UsageRecord::of(lease, end, tally)
        });
        let running = Running {
            records: records.collect(),
            gpus: self.gpus.clone(),
            boot_id: boot_id.clone(),
        };
        let saved = round.outside.books.save_running(running);
        round.report(topic::RUNNING, saved);
        match &round.node.shared {
            Some(shared) => round.outside.books.ship(shared, &round.node.name),
            None => Ok(()),
        }
    }
}

fn by_both_clocks<'b>(round: &Round, boot_id: &'b str) -> End<'b> {
    End {
        unix: round.outside.clock.unix_now(),
        boot_ms: round.now().milliseconds(),
        boot_id,
    }
}
