//! Keeps the node's books: how each slice is used, for its usage record, and which GPUs there were to be used.

use std::collections::HashMap;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::LeaseState;
use gpufrac_records::usage::{End, SliceKey, Tally, UsageRecord};

use super::Daemon;
use super::watched::WatchedJob;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::keep::books::{Running, TakenUp};
use crate::keep::gpus;
use crate::keep::meter::Reading;
use crate::key::SliceId;
use crate::measure::sample::Activity;
use crate::report::errors::Topic;
use gpufrac_node::clock::BootTime;
use gpufrac_node::state::record::boot_id;

/// Rounds between two records of what is not over yet, for a boot that no epilog sees.
const ROUNDS_BETWEEN_RECORDS: u64 = 6;

impl Daemon {
    /// Takes up the books of an earlier run.
    pub(super) fn take_up_books(&mut self) {
        let TakenUp { gpus, lost } = self.outside.books.take_up().unwrap_or_else(|error| {
            self.outside.log.warning(error);
            TakenUp::default()
        });
        self.gpus = gpus;
        if lost > 0 {
            self.outside.log.warning(format!(
                "the node was booted while jobs held {lost} slices: their usage records end with the last minute before it"
            ));
        }
    }

    /// Adds what the last look found.
    pub(super) fn count_use(&mut self, now: BootTime, energy: &HashMap<String, u64>) {
        let sampled = self
            .watched
            .values()
            .flat_map(|watched| watched.sampled(now));
        let readings = sampled.map(|(lease, sample)| Reading {
            lease,
            sample,
            // A job that computes is not suspended; asking takes time.
            suspended: sample.activity != Activity::Busy
                && self.outside.sampler.is_suspended(lease),
        });
        let readings: Vec<Reading<'_>> = readings.collect();
        let longest = self.node.config.reaper.interval * LONGEST_GAP_ROUNDS;
        self.meter.add(now, longest, &readings, energy);
    }

    /// Changes the sums of the slices of a job.
    pub(super) fn change_sums(&mut self, job: JobId, change: impl Fn(&mut Tally)) {
        let watched = self.watched.get(&job);
        let slices = watched.into_iter().flat_map(WatchedJob::leases);
        let slices: Vec<SliceId> = slices.map(SliceId::of).collect();
        self.meter.change(&slices, change);
    }

    /// Writes the sums, which epilogs read.
    pub(super) fn save_sums(&mut self) {
        let saved = self.outside.books.save(&self.meter.tallies());
        self.reports
            .report_once(&self.outside.log, Topic::Books, saved.err());
    }

    /// Writes the sums, and now and then what is not over yet.
    pub(super) fn save_books(&mut self) {
        self.save_sums();
        if self.round % ROUNDS_BETWEEN_RECORDS == 1 {
            self.count_gpus();
            self.save_running();
            self.ship_records();
        }
    }

    /// Writes what has not been recorded yet, as if it ended now.
    pub(super) fn save_running(&mut self) {
        let boot_id = boot_id().unwrap_or_default();
        let end = self.now_by_both_clocks(&boot_id);
        let tallies = self.meter.tallies();
        let held = self
            .leases
            .iter()
            .filter(|lease| lease.state == LeaseState::Active);
        let records = held.map(|lease| {
            let key = SliceKey::of(lease);
            let tally = tallies.slices.iter().find(|tally| tally.key == key);
            UsageRecord::of(lease, end, tally)
        });
        let running = Running {
            records: records.collect(),
            gpus: self.gpus.clone(),
            boot_id,
        };
        let saved = self.outside.books.save_running(running);
        self.reports
            .report_once(&self.outside.log, Topic::Running, saved.err());
    }

    fn now_by_both_clocks<'b>(&self, boot_id: &'b str) -> End<'b> {
        let clock = &self.outside.clock;
        End {
            unix: clock.unix_now(),
            boot_ms: clock.now().milliseconds(),
            boot_id,
        }
    }

    /// Counts the time of the GPUs up to now.
    fn count_gpus(&mut self) {
        let boot_id = boot_id().unwrap_or_default();
        let now = gpus::of_node(&self.node, self.now_by_both_clocks(&boot_id));
        let counted = gpus::count(std::mem::take(&mut self.gpus), now);
        self.gpus = counted.on;
        let recorded = self.outside.books.record_gpus(&counted.over);
        self.reports
            .report_once(&self.outside.log, Topic::Gpus, recorded.err());
    }

    /// Records the time of the GPUs up to now, as the daemon ends; the next one goes on from here.
    pub(super) fn close_gpus(&mut self) {
        self.count_gpus();
        let recorded = self.outside.books.record_gpus(&self.gpus);
        if recorded.is_ok() {
            for gpu in &mut self.gpus {
                gpu.from = gpu.until;
                gpu.boot.from = gpu.boot.until;
            }
        }
        self.reports
            .report_once(&self.outside.log, Topic::Gpus, recorded.err());
    }

    /// Copies records to the folder that the nodes share, and to those of users.
    pub(super) fn ship_records(&mut self) {
        let shipped = match &self.node.shared {
            Some(shared) => self.outside.books.ship(shared, &self.node.name),
            None => Ok(()),
        };
        let shipped = shipped.and(self.ship_own());
        self.reports
            .report_once(&self.outside.log, Topic::Shipping, shipped.err());
    }
}
