//! The steps of an escalation: a warning, the signal for a checkpoint, the end.

use gpufrac_core::policy::{Action, Mode, Policy};
use gpufrac_records::evidence::Decision;
use gpufrac_view::why::words;
use slurm_sys::client::JobInfo;

use super::Daemon;
use super::reap::Due;
use super::tell::comment;
use crate::act::refusal::Refusal;
use crate::keep::meter;
use gpufrac_node::clock::BootTime;
use gpufrac_node::slurm_call::{ActionError, SlurmAction, SlurmError};

/// The end time of a job without a time limit is a year after its start; a limit this long counts as none.
const SHORTEST_NO_LIMIT_S: u64 = 364 * 24 * 3600;

impl Daemon {
    pub(super) fn warn(
        &mut self,
        due: &Due,
        job: &JobInfo,
        end: BootTime,
        now: BootTime,
    ) -> Result<(), SlurmError> {
        let on = due.policy.mode == Mode::On;
        let action = action(&due.policy, job);
        let ends_in = end.since(now);
        if on {
            let text = self.announcement(due, action, ends_in);
            let comment = comment(job, &text);
            let actions = vec![SlurmAction::Notify(text), SlurmAction::Comment(comment)];
            let results = self.act(due, actions)?;
            if let Some(Err(error)) = results.into_iter().next()
                && self.recipient(due, job).is_none()
            {
                // A warning that did not reach the user does not count.
                let why = Refusal::NotWarned(error.to_string());
                self.refuse(due.job, &due.stalled, &due.policy, why);
                return Ok(());
            }
        }
        let detail = match action {
            Action::Cancel => format!("to be cancelled in {}", words::span(ends_in)),
            _ => format!("to be requeued in {}", words::span(ends_in)),
        };
        let Some(event) = self.decide(due.job, Decision::Warn, &due.stalled, &due.policy, &detail)
        else {
            return Ok(());
        };
        // Slurm may have needed long to deliver the warning.
        let given = self.outside.clock.now();
        if let Some(watched) = self.watched.get_mut(&due.job) {
            let escalation = &mut watched.watch.escalation;
            escalation.warned(&due.stalled, &due.policy, given);
            watched.refused = None;
        }
        if on {
            self.state.totals.warned(due.stalled.stall);
            self.change_sums(due.job, meter::warned);
            self.write_to_user(due, job, &event, action, ends_in);
        } else {
            self.state.totals.dry_run += 1;
        }
        Ok(())
    }

    pub(super) fn signal(
        &mut self,
        due: &Due,
        job: &JobInfo,
        end: BootTime,
        now: BootTime,
    ) -> Result<(), SlurmError> {
        let Some((signal, _)) = due.policy.signal else {
            return Ok(());
        };
        let on = due.policy.mode == Mode::On;
        if on {
            let results = self.act(due, vec![SlurmAction::Signal(signal.number())])?;
            if let Some(Err(error)) = results.into_iter().next() {
                // If the script does not exist any more, the signal cannot be sent; the job keeps the time before its
                // end.
                self.outside
                    .log
                    .warning(format!("job {}: {signal} was not sent: {error}", due.job));
            }
            self.state.totals.signals += 1;
        } else {
            self.state.totals.dry_run += 1;
        }
        let receiver = if job.batch { "the batch script" } else { "its steps" };
        let detail = format!(
            "{signal} to {receiver}, {} for a checkpoint",
            words::span(end.since(now))
        );
        self.decide(
            due.job,
            Decision::Signal,
            &due.stalled,
            &due.policy,
            &detail,
        );
        let sent = self.outside.clock.now();
        if let Some(watched) = self.watched.get_mut(&due.job) {
            watched.watch.escalation.signalled(sent);
        }
        Ok(())
    }

    pub(super) fn end(
        &mut self,
        due: &Due,
        job: &JobInfo,
        now: BootTime,
    ) -> Result<(), SlurmError> {
        let action = action(&due.policy, job);
        if due.policy.mode != Mode::On {
            self.state.totals.dry_run += 1;
        } else if self.is_over_limit(due) {
            self.refuse_by_limit(due);
            return Ok(());
        } else if !self.end_in_slurm(due, job, action, now)? {
            return Ok(());
        }
        let decision = match action {
            Action::Requeue | Action::RequeueHold => Decision::Requeue,
            Action::Cancel => Decision::Cancel,
        };
        let said = words::end(action);
        self.decide(due.job, decision, &due.stalled, &due.policy, said);
        if let Some(watched) = self.watched.get_mut(&due.job) {
            watched.watch.escalation.ended();
        }
        Ok(())
    }

    fn refuse_by_limit(&mut self, due: &Due) {
        let watched = self.watched.get(&due.job);
        if watched.is_some_and(|watched| watched.refused.is_none()) {
            self.state.totals.refused_rate += 1;
        }
        let most = self.node.config.reaper.reaps_per_hour;
        let why = Refusal::HourlyLimit(most);
        self.refuse(due.job, &due.stalled, &due.policy, why);
    }

    /// Informs the user and ends the job by Slurm. Returns whether Slurm did so.
    fn end_in_slurm(
        &mut self,
        due: &Due,
        job: &JobInfo,
        action: Action,
        now: BootTime,
    ) -> Result<bool, SlurmError> {
        let text = format!(
            "gpufrac: job {} is {}: {}, for {}; `gpufrac why {}` shows the reason",
            due.job,
            words::end(action),
            words::stall(due.stalled.stall),
            words::span(now.since(due.stalled.since)),
            due.job
        );
        let refused = self.watched.get(&due.job).and_then(|w| w.refused.as_ref());
        let mut actions = match refused {
            // If Slurm refused before, the user was informed already.
            Some(Refusal::Slurm(_)) => Vec::new(),
            // Before the end, because a user does not read messages of an ended job.
            _ => {
                let comment = comment(job, &text);
                vec![SlurmAction::Notify(text), SlurmAction::Comment(comment)]
            }
        };
        actions.push(match action {
            Action::Requeue => SlurmAction::Requeue { hold: false },
            Action::RequeueHold => SlurmAction::Requeue { hold: true },
            Action::Cancel => SlurmAction::Cancel,
        });
        // Before Slurm ends the job: the epilog reads it.
        let left = job.end_unix.saturating_sub(self.outside.clock.unix_now());
        let left = Some(left).filter(|left| *left < SHORTEST_NO_LIMIT_S);
        self.change_sums(due.job, |tally| meter::reclaimed(tally, left));
        self.save_sums();
        let results = self.act(due, actions);
        // Slurm may have needed long; the hour of the limit begins when the job ended.
        let ended = self.outside.clock.now();
        let results = match results {
            Ok(results) => results,
            Err(error) => {
                // Slurm may have ended the job although it reported an error.
                self.state.reaped.push(ended);
                let why = Refusal::UnknownOutcome(error.to_string());
                self.refuse(due.job, &due.stalled, &due.policy, why);
                return Err(error);
            }
        };
        if let Some(Err(error)) = results.into_iter().next_back() {
            self.change_sums(due.job, meter::spared);
            let why = Refusal::Slurm(error.to_string());
            self.refuse(due.job, &due.stalled, &due.policy, why);
            return Ok(false);
        }
        self.state.reaped.push(ended);
        self.state.totals.reaped(action, left.unwrap_or(0) as f64);
        Ok(true)
    }

    /// Carries out an action on this run of the job only.
    pub(super) fn act(
        &mut self,
        due: &Due,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
        let run = self
            .watched
            .get(&due.job)
            .map(|w| w.watch.key.restart_count);
        self.outside
            .slurm
            .act(due.job, run.unwrap_or_default(), actions)
    }
}

/// The action that is possible for this job: a job without a script cannot be requeued.
fn action(policy: &Policy, job: &JobInfo) -> Action {
    if job.can_requeue { policy.action } else { Action::Cancel }
}
