//! The steps of an escalation: a warning, the signal for a checkpoint, the end. Each is carried out if it is still due
//! after Slurm was asked.

use std::time::Duration;

use gpufrac_core::policy::{Action, Mail, Policy, Reaper, Stall};
use gpufrac_node::clock::BootTime;
use gpufrac_node::slurm_call::{SlurmAction, SlurmError};
use gpufrac_records::evidence::Decision;
use gpufrac_view::why::words;
use slurm_sys::client::{JobInfo, JobState};

use super::Decisions;
use super::breakers::Closed;
use super::judge::Due;
use super::watched::WatchedJob;
use crate::act::mail::{self, Message, Notice};
use crate::act::refusal::Refusal;
use crate::judge::escalation::Step;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::keep::meter::Effect;
use crate::key::SliceId;
use crate::round::Round;

/// The end time of a job without a time limit is a year after its start; a limit this long counts as none.
const SHORTEST_NO_LIMIT_S: u64 = 364 * 24 * 3600;

/// An action that is due by Slurm's answer, too.
pub(crate) struct Confirmed {
    due: Due,
    /// Slurm's answer.
    job: JobInfo,
    /// How the job ends.
    action: Action,
    /// Seconds that are left of the job's time limit, if it has one.
    returned: Option<u64>,
    pub(crate) slices: Vec<SliceId>,
}

/// What an action changes elsewhere.
#[derive(Default)]
pub(crate) struct Done {
    /// In the books.
    pub(crate) effect: Option<Effect>,
    /// The message to the user.
    pub(crate) mail: Option<Message>,
}

impl Confirmed {
    /// What the books must say before Slurm ends the job, because the epilog reads them.
    pub(crate) fn effect_before(&self) -> Option<Effect> {
        let ends = self.due.step == Step::End && self.due.acts();
        let returned = self.returned;
        ends.then_some(Effect::Reclaimed { returned })
    }
}

impl Decisions {
    /// The action, if it may be carried out and is still due after Slurm was asked.
    pub(crate) fn confirm(
        &mut self,
        round: &mut Round,
        due: Due,
        closed: &Closed,
        now: BootTime,
    ) -> Option<Confirmed> {
        let ends = due.step == Step::End && due.acts();
        let most = round.settings().reaps_per_hour;
        let is_over_limit = ends && self.state.reaped.len() >= most as usize;
        let watched = self.watched.get_mut(&due.job)?;
        match closed {
            Err(why) => {
                round.totals.refused_breaker += u64::from(due.step == Step::End);
                watched.refuse(round, &due.stalled, &due.policy, why.clone());
                return None;
            }
            // A breaker also closes when jobs end or daemons restart. The samples before that may have been faulty
            // until the last moment, so windows start again after it.
            Ok(Some(open)) if due.stalled.since <= *open => {
                watched.restart_window(now);
                return None;
            }
            Ok(_) => {}
        }
        if watched.is_still_refused(is_over_limit) || watched.is_out_of_date(round) {
            return None;
        }
        let was_known = watched.is_on_several_nodes();
        let job = watched.ask(round)?;
        if watched.is_out_of_date(round)
            || !watched.is_this_run(round, &job, now)
            || !watched.is_still_due(&due, round.settings())
        {
            return None;
        }
        if job.het_job_id != 0 {
            watched.refuse(round, &due.stalled, &due.policy, Refusal::HetJob);
            return None;
        }
        if job.node_count > 1 && !was_known {
            // The job was judged as if it ran only on this node.
            return None;
        }
        let is_warning = matches!(due.step, Step::Warn { .. });
        if !is_warning && due.acts() && !self.is_stalled_now(round, &due) {
            return None;
        }
        let watched = self.watched.get_mut(&due.job)?;
        if is_over_limit {
            round.totals.refused_rate += u64::from(watched.refused.is_none());
            let why = Refusal::HourlyLimit(most);
            watched.refuse(round, &due.stalled, &due.policy, why);
            return None;
        }
        let left = job.end_unix.saturating_sub(round.outside.clock.unix_now());
        Some(Confirmed {
            returned: Some(left).filter(|left| *left < SHORTEST_NO_LIMIT_S),
            action: action(&due.policy, &job),
            slices: watched.slices().collect(),
            due,
            job,
        })
    }

    /// Takes another sample: Slurm's answer took time, for other jobs too, so that the job may be active again, or
    /// other nodes may have withdrawn their reports.
    fn is_stalled_now(&mut self, round: &mut Round, due: &Due) -> bool {
        self.look_again(round, due.job);
        let Some(watched) = self.watched.get_mut(&due.job) else {
            return false;
        };
        let own = watched.stalled(&due.policy);
        let own = own.filter(|own| own.since <= due.stalled.since);
        own.is_some_and(|own| {
            let now = round.now();
            let all = watched.of_all_nodes(round, &self.breakers, own, &due.policy, now);
            all.is_some()
        })
    }

    pub(crate) fn carry_out(
        &mut self,
        round: &mut Round,
        confirmed: &Confirmed,
        now: BootTime,
    ) -> Done {
        let Some(watched) = self.watched.get_mut(&confirmed.due.job) else {
            return Done::default();
        };
        let reaped = &mut self.state.reaped;
        let done = match confirmed.due.step {
            Step::None => Ok(Done::default()),
            Step::Warn { end } => watched.warn(round, confirmed, end.since(now)),
            Step::Signal { end } => watched.signal(round, confirmed, end.since(now)),
            Step::End => watched.end(round, confirmed, now, reaped),
        };
        // An error means that Slurm does not answer, for other jobs either.
        round.answer(done).unwrap_or_default()
    }
}

/// Whether a due action still is.
impl WatchedJob {
    /// Whether the action was refused earlier for a reason that needs no new question to Slurm.
    fn is_still_refused(&self, is_over_limit: bool) -> bool {
        let is_het = self.job.as_ref().is_some_and(|job| job.het_job_id != 0);
        self.refused.is_some() && (is_het || is_over_limit)
    }

    /// Whether Slurm's answers, for this job or for earlier ones, took so long that the samples are outdated.
    fn is_out_of_date(&self, round: &Round) -> bool {
        round.now().since(self.watch.sampled) > round.interval() * LONGEST_GAP_ROUNDS
    }

    /// Whether the run of the job that was judged still runs; otherwise its slice counts as active. A suspension in
    /// Slurm's answer moves the last activity.
    fn is_this_run(&mut self, round: &Round, job: &JobInfo, now: BootTime) -> bool {
        let now_unix = round.outside.clock.unix_now();
        let same = job.restart_count == self.leases.first.restart_count;
        if !same || job.state != JobState::Running {
            // A suspended job is idle, but its user is not the cause.
            self.watch.mark_active(now, "it is suspended or ending");
            return false;
        }
        if job.suspend_unix > 0 {
            let resumed = Duration::from_secs(now_unix.saturating_sub(job.suspend_unix));
            let resumed = now.before(resumed);
            if resumed > self.watch.last_active && resumed > self.watch.began {
                let reason = "it was suspended until then";
                self.watch.mark_active(resumed, reason);
            }
        }
        true
    }

    /// Whether the same action is still due with Slurm's answer, which may select another rule or change the start of
    /// the window.
    fn is_still_due(&self, due: &Due, reaper: &Reaper) -> bool {
        let policy = self.policy(reaper);
        let own = self.stalled(policy);
        *policy == due.policy && own.is_some_and(|own| own.since <= due.stalled.since)
    }
}

/// The steps.
impl WatchedJob {
    fn warn(
        &mut self,
        round: &mut Round,
        confirmed: &Confirmed,
        ends_in: Duration,
    ) -> Result<Done, SlurmError> {
        let Confirmed { due, job, .. } = confirmed;
        let to = self.recipient(&round.settings().mail, job);
        if due.acts() {
            let text = self.announcement(round, confirmed, ends_in);
            let results = self.act(round, told(job, text))?;
            if let Some(Err(error)) = results.into_iter().next()
                && to.is_none()
            {
                // A warning that did not reach the user does not count.
                let why = Refusal::NotWarned(error.to_string());
                self.refuse(round, &due.stalled, &due.policy, why);
                return Ok(Done::default());
            }
        }
        let what = if confirmed.action == Action::Cancel { "cancelled" } else { "requeued" };
        let detail = format!("to be {what} in {}", words::span(ends_in));
        let event = self.decide(round, Decision::Warn, &due.stalled, &due.policy, &detail);
        // Slurm may have needed long to deliver the warning.
        let given = round.now();
        let escalation = &mut self.watch.escalation;
        escalation.warned(&due.stalled, &due.policy, given);
        self.refused = None;
        if !due.acts() {
            round.totals.dry_run += 1;
            return Ok(Done::default());
        }
        round.totals.warned(due.stalled.stall);
        let message = to.map(|to| {
            let notice = Notice {
                to: vec![to],
                action: confirmed.action,
                ends_in,
                policy: &due.policy,
            };
            mail::warning(&self.record, &event, &notice, &round.settings().mail)
        });
        Ok(Done {
            effect: Some(Effect::Warned),
            mail: message,
        })
    }

    fn signal(
        &mut self,
        round: &mut Round,
        Confirmed { due, job, .. }: &Confirmed,
        ends_in: Duration,
    ) -> Result<Done, SlurmError> {
        let Some((signal, _)) = due.policy.signal else {
            return Ok(Done::default());
        };
        if due.acts() {
            let results = self.act(round, vec![SlurmAction::Signal(signal.number())])?;
            if let Some(Err(error)) = results.into_iter().next() {
                // If the script does not exist any more, the signal cannot be sent; the job keeps the time before its
                // end.
                let log = &round.outside.log;
                log.warning(format!("job {}: {signal} was not sent: {error}", due.job));
            }
            round.totals.signals += 1;
        } else {
            round.totals.dry_run += 1;
        }
        let receiver = if job.batch { "the batch script" } else { "its steps" };
        let time = words::span(ends_in);
        let detail = format!("{signal} to {receiver}, {time} for a checkpoint");
        self.decide(round, Decision::Signal, &due.stalled, &due.policy, &detail);
        self.watch.escalation.signalled(round.now());
        Ok(Done::default())
    }

    /// `reaped`: when jobs were ended.
    fn end(
        &mut self,
        round: &mut Round,
        confirmed: &Confirmed,
        now: BootTime,
        reaped: &mut Vec<BootTime>,
    ) -> Result<Done, SlurmError> {
        let Confirmed { due, action, .. } = confirmed;
        if due.acts() {
            let results = self.act(round, self.actions(confirmed, now));
            // Slurm may have needed long; the hour of the limit begins when the job ended.
            let ended = round.now();
            let results = results.inspect_err(|error| {
                // Slurm may have ended the job although it reported an error.
                reaped.push(ended);
                let why = Refusal::UnknownOutcome(error.to_string());
                self.refuse(round, &due.stalled, &due.policy, why);
            })?;
            if let Some(Err(error)) = results.into_iter().next_back() {
                let why = Refusal::Slurm(error.to_string());
                self.refuse(round, &due.stalled, &due.policy, why);
                return Ok(Done {
                    effect: Some(Effect::Spared),
                    mail: None,
                });
            }
            reaped.push(ended);
            let returned = confirmed.returned.unwrap_or_default();
            round.totals.reaped(*action, returned as f64);
        } else {
            round.totals.dry_run += 1;
        }
        let decision = match action {
            Action::Requeue | Action::RequeueHold => Decision::Requeue,
            Action::Cancel => Decision::Cancel,
        };
        let said = words::end(*action);
        self.decide(round, decision, &due.stalled, &due.policy, said);
        self.watch.escalation.ended();
        Ok(Done::default())
    }

    /// What informs the user and ends the job.
    fn actions(&self, confirmed: &Confirmed, now: BootTime) -> Vec<SlurmAction> {
        let Confirmed { due, action, .. } = confirmed;
        let text = format!(
            "gpufrac: job {} is {}: {}, for {}; `gpufrac why {}` shows the reason",
            due.job,
            words::end(*action),
            words::stall(due.stalled.stall),
            words::span(now.since(due.stalled.since)),
            due.job
        );
        let mut actions = match self.refused {
            // If Slurm refused before, the user was informed already.
            Some(Refusal::Slurm(_)) => Vec::new(),
            // Before the end, because a user does not read messages of an ended job.
            _ => told(&confirmed.job, text),
        };
        actions.push(match action {
            Action::Requeue => SlurmAction::Requeue { hold: false },
            Action::RequeueHold => SlurmAction::Requeue { hold: true },
            Action::Cancel => SlurmAction::Cancel,
        });
        actions
    }

    /// The message on the terminal or in the output.
    fn announcement(&self, round: &Round, confirmed: &Confirmed, ends_in: Duration) -> String {
        let Confirmed { due, action, .. } = confirmed;
        let end = round.outside.clock.unix_now() + ends_in.as_secs();
        let excess = self.last.as_ref().and_then(|last| last.excess.as_ref());
        let reason = match (due.stalled.stall, excess) {
            (Stall::OverShare, Some(excess)) => format!("the job {excess}"),
            (stall, _) => words::stall(stall).to_owned(),
        };
        let job = due.job;
        format!(
            "gpufrac: job {job} will be {} in {} (at {}): {reason}. `gpufrac why {job}` shows the samples",
            words::end(*action),
            words::span(ends_in),
            gpufrac_page::words::utc(end),
        )
    }

    /// The recipient of mail; None if no mail is sent.
    fn recipient(&self, mail: &Mail, job: &JobInfo) -> Option<String> {
        mail.sendmail.as_ref().or(mail.program.as_ref())?;
        mail::recipient(
            &job.mail_user,
            &self.leases.first.user,
            mail.domain.as_deref(),
        )
    }
}

/// The action that is possible for this job: a job without a script cannot be requeued.
fn action(policy: &Policy, job: &JobInfo) -> Action {
    if job.can_requeue { policy.action } else { Action::Cancel }
}

/// Tells the user, and writes the admin comment: the text of others, then gpufrac's.
pub(super) fn told(job: &JobInfo, text: String) -> Vec<SlurmAction> {
    let others = job.admin_comment.split(" | ");
    let others = others.filter(|part| !part.is_empty() && !part.starts_with("gpufrac: "));
    let comment: Vec<&str> = others.chain([text.as_str()]).collect();
    let comment = SlurmAction::Comment(comment.join(" | "));
    vec![SlurmAction::Notify(text), comment]
}
