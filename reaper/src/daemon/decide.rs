//! Writes decisions to the job's record and to the log.

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Mode, Policy, Stall};
use gpufrac_records::evidence::{Decision, Event, Source};

use super::Daemon;
use crate::act::refusal::Refusal;
use crate::judge::escalation::Escalation;
use crate::judge::stall::Stalled;
use crate::report::errors::Topic;

impl Daemon {
    /// Writes a decision to the record and to the log.
    pub(super) fn decide(
        &mut self,
        job: JobId,
        decision: Decision,
        stalled: &Stalled,
        policy: &Policy,
        detail: &str,
    ) -> Option<Event> {
        let now = self.outside.clock.now();
        let watched = self.watched.get_mut(&job)?;
        let event = Event {
            at_ms: now.since(watched.watch.began).as_millis() as u64,
            decision,
            dry_run: policy.mode != Mode::On,
            stall: stalled.stall,
            stalled_ms: now.since(stalled.since).as_millis() as u64,
            window_ms: stalled.window.as_millis() as u64,
            rule: policy.name.clone(),
            source: watched
                .last
                .as_ref()
                .map_or(Source::Missing, |sample| sample.source),
            detail: detail.to_owned(),
        };
        watched.record.events.push(event.clone());
        let record = &watched.record;
        self.outside.log.info(format!(
            "decision={} dry_run={} job={job} user={} account={} partition={} pool={} device={} fraction={} stall={} stalled_s={:.1} window_s={:.1} rule={:?} source={} detail={detail:?}",
            decision.name(),
            event.dry_run,
            record.user,
            record.account.as_deref().unwrap_or("-"),
            record.partition,
            record.pool,
            record.device,
            record.fraction,
            event.stall,
            event.stalled_ms as f64 / 1000.0,
            event.window_ms as f64 / 1000.0,
            event.rule,
            event.source,
        ));
        // At once, because /run is lost if the node goes down.
        let kept = self.outside.memory.keep(record, &self.peers);
        let written = self.outside.memory.write(record);
        let error = kept.err().map(|error| error.to_string());
        let error = error.or(written.err().map(|error| error.to_string()));
        self.reports
            .report_once(&self.outside.log, Topic::Records, error);
        Some(event)
    }

    /// Cancels the warnings of a job without a record.
    pub(super) fn forget_warnings(&mut self, job: JobId) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.watch.escalation = Escalation::default();
            watched.refused = None;
        }
    }

    /// Records once that a due action was not taken.
    pub(super) fn refuse(&mut self, job: JobId, stalled: &Stalled, policy: &Policy, why: Refusal) {
        let Some(watched) = self.watched.get_mut(&job) else {
            return;
        };
        if watched.refused.as_ref() != Some(&why) {
            let detail = why.to_string();
            watched.refused = Some(why);
            self.decide(job, Decision::Refuse, stalled, policy, &detail);
        }
    }

    /// Cancels the warnings of a job and records it.
    pub(super) fn clear(&mut self, job: JobId, policy: &Policy, detail: &str) {
        let Some(watched) = self.watched.get(&job) else {
            return;
        };
        let stall = watched.watch.escalation.stall().unwrap_or(Stall::Idle);
        let wish = policy.granted(watched.lease.idle_wish);
        let stalled = Stalled {
            stall,
            since: watched.watch.last_active,
            window: policy.window(stall, wish).unwrap_or_default(),
        };
        self.decide(job, Decision::Clear, &stalled, policy, detail);
        self.forget_warnings(job);
    }
}
