//! The rounds of the daemon. Four owners have all that lasts: `Decisions`, `Accounting`, `PrivateFiles` and
//! `Published`. None knows another; a round passes values between them: leases, samples, due actions, findings.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpufrac_core::lease::Lease;
use gpufrac_host::files::FileError;
use gpufrac_node::clock::BootTime;
use gpufrac_node::node::Node;

use self::accounting::Accounting;
use self::decisions::{Decisions, Judgement};
use self::private::PrivateFiles;
use self::published::Published;
use crate::judge::peers::PeerError;
use crate::keep::shipping::ShippingError;
use crate::outside::Outside;
use crate::report::errors::topic;
use crate::report::metrics::Snapshot;
use crate::rhythm::{LookScope, Rhythm};
use crate::round::Round;

mod accounting;
mod decisions;
mod private;
mod published;

/// Rounds between two clean-ups.
const ROUNDS_BETWEEN_CLEANUPS: u64 = 6;
/// Rounds between two removals of old records.
const ROUNDS_BETWEEN_PURGES: u64 = 360;
/// Rounds between two records of what is not over yet.
const ROUNDS_BETWEEN_RECORDS: u64 = 6;

/// The daemon without its loop.
pub struct Daemon {
    round: Round,
    /// All leases of the node.
    leases: Vec<Lease>,
    /// When the leases were last read without an error.
    leases_known: Option<BootTime>,
    decisions: Decisions,
    accounting: Accounting,
    private: PrivateFiles,
    published: Published,
}

impl Daemon {
    /// Starts with the state that an earlier run of the daemon saved. Errors: the saved state cannot be read.
    pub fn start(
        node: Node,
        outside: Outside,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> Result<Daemon, FileError> {
        let (state, unusable) = outside.memory.load()?;
        if let Some(why) = unusable {
            outside.log.warning(format!(
                "reading the saved state failed: {why}; every slice counts as active now"
            ));
        }
        Ok(Daemon {
            leases: Vec::new(),
            leases_known: None,
            accounting: Accounting::take_up(&outside),
            private: PrivateFiles::default(),
            published: Published::new(&node, snapshot),
            round: Round::new(node, outside, state.totals.clone()),
            decisions: Decisions::resume(state),
        })
    }

    /// Takes a new configuration; windows, warnings and history stay.
    pub fn reload(&mut self, node: Node) {
        self.published.reload(&node);
        self.decisions.reload();
        self.round.reload(node);
    }

    /// The rhythm of the next round. A slice that has been stalled for half of its window is observed without gaps.
    pub fn rhythm(&self) -> Rhythm {
        Rhythm::new(self.round.interval(), self.decisions.suspects(&self.round))
    }

    /// One round. `changed`: whether leases may have changed since the last round. `observe` waits while activity is
    /// measured, as long as the [`LookScope`] allows, and returns whether the time was long enough for a measurement.
    pub fn round(&mut self, changed: bool, mut observe: impl FnMut(LookScope) -> bool) {
        let Daemon {
            round,
            leases,
            leases_known,
            decisions,
            accounting,
            private,
            published,
        } = self;
        round.begin();
        private.follow(round);

        // inotify can lose events, so leases are also read at intervals; and again after an error.
        let is_due = round.is_each(ROUNDS_BETWEEN_CLEANUPS) || round.has_error(topic::LEASES);
        if changed || is_due {
            let read = round.outside.slices.list(&round.node);
            round.report(topic::LEASES, read.as_ref());
            let Ok(read) = read else {
                // The job of a damaged lease is not known, so nothing is decided.
                decisions.lend_nothing(round, leases);
                let hidden = private.hidden(&round.node);
                return published.publish(round, decisions.findings(round), hidden);
            };
            accounting.sync(round, leases, &read);
            let over = decisions.sync(round, &read, *leases_known);
            private.keep(
                round,
                over.iter().filter(|record| !record.events.is_empty()),
            );
            accounting.take_evidence(over);
            *leases = read;
        }
        if leases_known.is_none() {
            // A daemon that was killed may have left limits lifted, and this look may take long.
            decisions.lend_nothing(round, leases);
        }
        *leases_known = Some(round.now());
        private.copy_leases(round, leases, &|job| decisions.watches(job));
        let failed = accounting.learn_ends(round, published.pools());
        private.keep(round, failed.iter());

        let samples = decisions.sample(round, leases, &mut observe);
        accounting.add(round, &samples);
        let at = samples.at;
        decisions.end_unlimited(round, at);
        let now = round.now();
        decisions.lend(round, leases, now);

        let Judgement { due, closed, mails } = decisions.judge(round, now);
        published.send(round, mails);
        for due in due {
            if round.is_late(now) {
                break;
            }
            let errors = round.totals.slurm_errors;
            if let Some(action) = decisions.confirm(round, due, &closed, now) {
                if let Some(effect) = action.effect_before() {
                    accounting.note(&action.slices, effect);
                    accounting.save(round, leases, published.pools());
                }
                let done = decisions.carry_out(round, &action, now);
                if let Some(effect) = done.effect {
                    accounting.note(&action.slices, effect);
                }
                published.send(round, done.mail);
            }
            if round.totals.slurm_errors > errors {
                // If Slurm does not answer, it is not asked about the other jobs in this round.
                break;
            }
        }

        let Outside { slices, log, .. } = &round.outside;
        let ended = slices.end_kept(&round.node, leases, log);
        round.report(topic::KEPT, ended);
        if round.is_each(ROUNDS_BETWEEN_CLEANUPS) {
            decisions.cleanup.run(round, leases);
        }
        if round.is_each(ROUNDS_BETWEEN_PURGES) {
            purge(round, private);
        }

        let findings = decisions.findings(round);
        let hidden = private.hidden(&round.node);
        published.show(round, leases, &findings, hidden);
        published.publish(round, findings, hidden);
        decisions.save(round);
        private.copy_records(round, decisions.records());
        accounting.save(round, leases, published.pools());
        if round.is_each(ROUNDS_BETWEEN_RECORDS) {
            let shipped = accounting.record(round, leases);
            report_shipping(round, shipped, private);
        }
    }

    /// Saves the state; the daemon ends.
    pub fn stop(&mut self) {
        let round = &mut self.round;
        self.decisions.stop(round, &self.leases);
        self.private.copy_again();
        self.private.copy_records(round, self.decisions.records());
        let shipped = self.accounting.stop(round, &self.leases);
        report_shipping(round, shipped, &self.private);
        self.published.stop();
    }
}

/// Removes old records.
fn purge(round: &mut Round, private: &PrivateFiles) {
    let now = Duration::from_secs(round.outside.clock.unix_now());
    let before = now.saturating_sub(round.settings().keep);
    let purged = round.outside.memory.purge(before, &round.peers);
    let purged = purged.and(private.purge(round, before).map_err(PeerError::from));
    round.report(topic::PURGE, purged);
}

/// Copies usage records to the folders of users, after those of all.
fn report_shipping(round: &mut Round, shipped: Result<(), ShippingError>, private: &PrivateFiles) {
    let shipped = shipped.and(private.ship(&round.node));
    round.report(topic::SHIPPING, shipped);
}
