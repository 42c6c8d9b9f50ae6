//! From a stalled slice to what is done about it.

use std::time::Duration;

use gpufrac_core::policy::{Action, Mode, Policy, Stall};

use crate::act::mail::{self, Breach, Notice};
use crate::act::refusal::Refusal;
use crate::act::slurm::{ActionError, Job, SlurmAction, SlurmError};
use crate::clock::BootTime;
use crate::daemon::{Daemon, WatchedLease, facts};
use crate::judge::breaker::{self, BreakerScope, LastOpen};
use crate::judge::escalation::Step;
use crate::judge::peers::{LeaseCount, PeerError};
use crate::judge::stall::Stalled;
use crate::judge::watch::LONGEST_GAP_ROUNDS;
use crate::keep::evidence::{Decision, Event};
use crate::report::errors::Topic;
use crate::report::words;

const LIMITED_SPAN: Duration = Duration::from_secs(3600);
/// Slurm lets a job without a limit end a year after its start: that is none.
const SHORTEST_NO_LIMIT_S: u64 = 364 * 24 * 3600;

/// A job, and what is due for it.
struct Due {
    job: u32,
    stalled: Stalled,
    policy: Policy,
    step: Step,
}

impl Daemon {
    /// Judges every lease and does what is due.
    pub(crate) fn reap(&mut self, now: BootTime) {
        self.state.reaped.retain(|at| now.since(*at) < LIMITED_SPAN);
        let jobs: Vec<u32> = self.watched.keys().copied().collect();
        let mut due = Vec::new();
        let mut stalled = 0;
        for job in jobs {
            let found = self.judge(job, now);
            let Some(watched) = self.watched.get(&job) else {
                continue;
            };
            // Of a job on several nodes each counts its own part: nothing is found but on the first.
            let counts = watched.watch.escalation.is_warned() || self.is_own_part_due(watched, now);
            stalled += u32::from(counts);
            due.extend(found);
        }
        let closed = self.check_breakers(stalled, now, !due.is_empty());
        for due in due {
            if self.is_late(now) {
                break;
            }
            let errors = self.state.totals.slurm_errors;
            let done = match &closed {
                Err(why) => {
                    self.state.totals.refused_breaker += u64::from(due.step == Step::End);
                    self.refuse(&due, why.clone());
                    Ok(())
                }
                // Jobs that end and daemons that start again close it too: what made it open may have been wrong until
                // the last moment.
                Ok(Some(open)) if due.stalled.since <= *open => {
                    self.restart_window(due.job, now);
                    Ok(())
                }
                Ok(_) => self.carry_out(due, now),
            };
            if let Err(error) = done {
                self.state.totals.slurm_errors += 1;
                self.reports
                    .report_once(&self.outside.log, Topic::Slurm, Some(error));
            }
            if self.state.totals.slurm_errors > errors {
                // Who does not answer once is not asked for the others now.
                break;
            }
        }
    }

    /// What is due for a job, after what is not true any more was taken back.
    fn judge(&mut self, job: u32, now: BootTime) -> Option<Due> {
        let watched = self.watched.get(&job)?;
        let policy = self.policy(watched).clone();
        let escalation = &watched.watch.escalation;
        if escalation.has_ended() && policy.mode == Mode::On {
            // It is on its way out: what is seen of it now tells nothing.
            return None;
        }
        if policy.mode == Mode::Off || escalation.is_of_other_mode(policy.mode) {
            self.forget_warnings(job);
        } else if watched.watch.is_cleared() {
            let reason = watched.watch.reason.clone();
            self.clear(job, &policy, &reason);
        }
        let watched = self.watched.get(&job)?;
        if policy.mode == Mode::Off {
            self.withdraw(job);
            return None;
        }
        // Only what was seen just now: a job whose samples stay out is not judged.
        if now.since(watched.watch.sampled) > self.node.config.reaper.interval * 2 {
            return None;
        }
        let Some(own) = watched.watch.stalled(&policy, watched.lease.idle_wish) else {
            self.withdraw(job);
            return None;
        };
        let stalled = self.of_all_nodes(job, own, &policy, now)?;
        let watched = self.watched.get(&job)?;
        let step = watched.watch.escalation.step(&stalled, &policy, now);
        (step != Step::None).then_some(Due {
            job,
            stalled,
            policy,
            step,
        })
    }

    /// Whether a warning about the slice would be due, whatever is known of others of the job.
    fn is_own_part_due(&self, watched: &WatchedLease, now: BootTime) -> bool {
        let policy = self.policy(watched);
        let stalled = watched.watch.stalled(policy, watched.lease.idle_wish);
        policy.mode != Mode::Off && stalled.is_some_and(|own| now >= own.warned_from(policy))
    }

    /// The stall of a job that may run on several nodes: as long as on the node where it is shortest. None where it is
    /// not this node that decides, or not all of them say so.
    fn of_all_nodes(
        &mut self,
        job: u32,
        own: Stalled,
        policy: &Policy,
        now: BootTime,
    ) -> Option<Stalled> {
        let interval = self.node.config.reaper.interval;
        let watched = self.watched.get(&job)?;
        let key = watched.watch.key;
        let is_due = now + interval * LONGEST_GAP_ROUNDS >= own.warned_from(policy);
        if !is_on_several(watched) {
            return Some(own);
        }
        if !self.breakers.node && self.state.opened.node.is_some_and(|open| own.since <= open) {
            // The others are not to act on it.
            self.restart_window(job, now);
            self.withdraw(job);
            return None;
        }
        let length = now.since(own.since);
        if !is_due && !watched.watch.escalation.is_warned() {
            self.withdraw(job);
            return None;
        }
        let nodes = watched.job.as_ref()?.nodes.clone();
        let claimed = match self.breakers.node {
            true => self.peers.withdraw(job),
            false => self.peers.claim(key, length, now),
        };
        let answer = claimed.and_then(|()| {
            // Twice as long as a round, as the folder may be a cache's.
            self.peers
                .stalled(key, &nodes, length, now, interval * LONGEST_GAP_ROUNDS * 2)
        });
        match answer {
            Ok(shortest) => Some(Stalled {
                since: now.before(shortest),
                ..own
            }),
            Err(PeerError::Follower(_) | PeerError::Unheard(_)) => None,
            Err(error @ PeerError::Busy(_)) => {
                if self.watched.get(&job)?.watch.escalation.is_warned() {
                    self.clear(job, policy, &error.to_string());
                }
                None
            }
            Err(error) => {
                if now >= own.warned_from(policy) {
                    self.refuse(
                        &Due {
                            job,
                            stalled: own,
                            policy: policy.clone(),
                            step: Step::None,
                        },
                        Refusal::Peers(error.to_string()),
                    );
                }
                None
            }
        }
    }

    /// What was measured while a breaker was open does not count.
    fn restart_window(&mut self, job: u32, now: BootTime) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.watch.restart_window(now, "a breaker was open");
        }
    }

    /// This node's part of a job is not stalled. Cheap where it never said so.
    fn withdraw(&mut self, job: u32) {
        let on_several = self.watched.get(&job).is_some_and(is_on_several);
        if on_several && self.node.shared.is_some() {
            let withdrawn = self.peers.withdraw(job);
            self.reports
                .report_once(&self.outside.log, Topic::Shared, withdrawn.err());
        }
    }

    /// The warnings of a job do not hold any more.
    fn clear(&mut self, job: u32, policy: &Policy, detail: &str) {
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

    /// Whether so few slices look stalled that it may be true, and when that was not so last, here or on a node of the
    /// cluster; else why nothing is done. `acts`: whether something is due.
    fn check_breakers(
        &mut self,
        stalled: u32,
        now: BootTime,
        acts: bool,
    ) -> Result<Option<BootTime>, Refusal> {
        let interval = self.node.config.reaper.interval;
        let own = self.count(stalled);
        let told = self.peers.tell(own, now, interval);
        self.reports
            .report_once(&self.outside.log, Topic::Shared, told.err());
        // All nodes are only asked for when something is to be done.
        let cluster = match acts || self.breakers.cluster {
            true => self.count_cluster(),
            false => Ok(None),
        };
        self.set_breaker(BreakerScope::Node, Some(own));
        // Who cannot count must not close it.
        if let Ok(count) = &cluster {
            self.set_breaker(BreakerScope::Cluster, *count);
        }
        self.state.opened.update(self.breakers, now);
        if self.breakers.node {
            return Err(Refusal::Breaker(BreakerScope::Node));
        }
        if self.breakers.cluster {
            return Err(Refusal::Breaker(BreakerScope::Cluster));
        }
        let elsewhere = cluster?.and_then(|count| count.opened(self.outside.clock.as_ref()));
        let LastOpen { node, cluster } = self.state.opened;
        Ok(node.max(cluster).max(elsewhere))
    }

    /// The leases of all nodes; None without a shared folder.
    fn count_cluster(&mut self) -> Result<Option<LeaseCount>, Refusal> {
        let interval = self.node.config.reaper.interval;
        let count = self.peers.cluster(interval, self.outside.clock.unix_now());
        let error = count.as_ref().err();
        self.reports
            .report_once(&self.outside.log, Topic::Cluster, error);
        count.map_err(|_| Refusal::UncountedCluster)
    }

    /// Opens or closes a breaker, and says so when that changes it.
    fn set_breaker(&mut self, scope: BreakerScope, count: Option<LeaseCount>) {
        let limits = self.node.config.reaper.breaker;
        let too_many = count.filter(|count| breaker::is_open(&limits, scope, *count));
        if !self.breakers.set(scope, too_many.is_some()) {
            return;
        }
        let name = scope.name();
        let Some(count) = too_many else {
            self.outside.log.warning(format!(
                "the breaker of the {name} is closed again: jobs are warned and ended by what is measured from now on"
            ));
            return;
        };
        let share = breaker::share(&limits, scope);
        self.outside.log.error(format!(
            "THE BREAKER OF THE {} IS OPEN: {} of {} slices look stalled, more than {share} %; rather the telemetry is wrong than all of these jobs. Nobody is warned and nothing is ended until that changes; look at the GPUs of this node (`gpufrac status`, `nvidia-smi`), or raise [reaper.breaker] {name}_share",
            name.to_uppercase(), count.stalled, count.leases
        ));
        let breach = Breach {
            node: self.node.name.clone(),
            cluster: scope == BreakerScope::Cluster,
            stalled: count.stalled,
            leases: count.leases,
            share,
            since_unix: self.outside.clock.unix_now(),
        };
        let mail = &self.node.config.reaper.mail;
        if let Some(message) = mail::breaker(&breach, mail) {
            self.mail_queue.send(mail, message);
        }
    }

    /// Nothing is done although it is due; said once.
    fn refuse(&mut self, due: &Due, why: Refusal) {
        let Some(watched) = self.watched.get_mut(&due.job) else {
            return;
        };
        if watched.refused.as_ref() != Some(&why) {
            watched.refused = Some(why.clone());
            let detail = why.to_string();
            self.decide(
                due.job,
                Decision::Refuse,
                &due.stalled,
                &due.policy,
                &detail,
            );
        }
    }

    /// Does what is due. An error is Slurm's, which then does not answer for others either.
    fn carry_out(&mut self, due: Due, now: BootTime) -> Result<(), SlurmError> {
        if self.is_still_refused(&due) || self.is_out_of_date(due.job) {
            return Ok(());
        }
        let was_known = self.watched.get(&due.job).is_some_and(is_on_several);
        let Some(job) = self.fresh(due.job) else {
            // It said so, or does not know the job.
            return Ok(());
        };
        if self.is_out_of_date(due.job) {
            return Ok(());
        }
        let now_unix = self.outside.clock.unix_now();
        let Some(watched) = self.watched.get_mut(&due.job) else {
            return Ok(());
        };
        let same = job.restart_count == watched.lease.restart_count;
        if !same || !job.running {
            // That is not the user's idleness.
            let reason = "it is suspended, or on its way out";
            watched.watch.mark_active(now, reason);
            return Ok(());
        }
        if job.suspend_unix > 0 {
            let resumed = Duration::from_secs(now_unix.saturating_sub(job.suspend_unix));
            let resumed = now.before(resumed);
            if resumed > watched.watch.last_active && resumed > watched.watch.began {
                watched
                    .watch
                    .mark_active(resumed, "it was suspended until then");
            }
        }
        // What Slurm says now may choose another rule, or move the beginning.
        let policy = self
            .node
            .config
            .reaper
            .policy(&facts(&watched.lease, Some(&job)))
            .clone();
        let wish = watched.lease.idle_wish;
        if policy != due.policy
            || watched
                .watch
                .stalled(&policy, wish)
                .is_none_or(|own| own.since > due.stalled.since)
        {
            return Ok(());
        }
        if job.het {
            self.refuse(&due, Refusal::HetJob);
            return Ok(());
        }
        if job.node_count > 1 && !was_known {
            // It was judged as if it were here alone.
            return Ok(());
        }
        if !matches!(due.step, Step::Warn { .. }) && policy.mode == Mode::On {
            // Slurm took its time to answer, for others too: the job may have woken up meanwhile.
            self.look_again(due.job);
            let watched = self.watched.get(&due.job);
            let own = watched.and_then(|watched| watched.watch.stalled(&policy, wish));
            let Some(own) = own.filter(|own| own.since <= due.stalled.since) else {
                return Ok(());
            };
            // Other nodes may have taken their word back.
            if self
                .of_all_nodes(due.job, own, &policy, self.outside.clock.now())
                .is_none()
            {
                return Ok(());
            }
        }
        match due.step {
            Step::None => Ok(()),
            Step::Warn { end } => self.warn(&due, &job, end, now),
            Step::Signal { end } => self.signal(&due, &job, end, now),
            Step::End => self.end(&due, &job, now),
        }
    }

    /// Whether Slurm took so long, for this job or for those before, that what was seen does not hold any more.
    fn is_out_of_date(&self, job: u32) -> bool {
        let longest = self.node.config.reaper.interval * LONGEST_GAP_ROUNDS;
        let watched = self.watched.get(&job);
        let now = self.outside.clock.now();
        watched.is_none_or(|watched| now.since(watched.watch.sampled) > longest)
    }

    /// Whether this was refused before for a reason that Slurm need not be asked about again.
    fn is_still_refused(&self, due: &Due) -> bool {
        let Some(watched) = self.watched.get(&due.job) else {
            return false;
        };
        let is_het = watched.job.as_ref().is_some_and(|job| job.het);
        watched.refused.is_some() && (is_het || self.is_over_limit(due))
    }

    /// Whether this would end more jobs than a node may in an hour.
    fn is_over_limit(&self, due: &Due) -> bool {
        let most = self.node.config.reaper.reaps_per_hour as usize;
        let ends = due.step == Step::End && due.policy.mode == Mode::On;
        ends && self.state.reaped.len() >= most
    }

    fn warn(
        &mut self,
        due: &Due,
        job: &Job,
        end: BootTime,
        now: BootTime,
    ) -> Result<(), SlurmError> {
        let on = due.policy.mode == Mode::On;
        let action = action(&due.policy, job);
        let ends_in = end.since(now);
        if on {
            let text = self.announcement(due, action, ends_in);
            let comment = self.comment(job, &text);
            let actions = vec![SlurmAction::Notify(text), SlurmAction::Comment(comment)];
            let results = self.act(due, actions)?;
            if let Some(Err(error)) = results.into_iter().next()
                && self.recipient(due, job).is_none()
            {
                // Who was not told was not warned.
                self.refuse(due, Refusal::NotWarned(error.to_string()));
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
        // Slurm may have taken long to deliver it.
        let given = self.outside.clock.now();
        if let Some(watched) = self.watched.get_mut(&due.job) {
            let escalation = &mut watched.watch.escalation;
            escalation.warned(&due.stalled, &due.policy, given);
            watched.refused = None;
        }
        if on {
            self.state.totals.warned(due.stalled.stall);
            self.write_to_user(due, job, &event, action, ends_in);
        } else {
            self.state.totals.dry_run += 1;
        }
        Ok(())
    }

    fn write_to_user(
        &self,
        due: &Due,
        job: &Job,
        event: &Event,
        action: Action,
        ends_in: Duration,
    ) {
        let mail = &self.node.config.reaper.mail;
        let (Some(watched), Some(to)) = (self.watched.get(&due.job), self.recipient(due, job))
        else {
            return;
        };
        let notice = Notice {
            to: vec![to],
            action,
            ends_in,
            policy: &due.policy,
        };
        let message = mail::warning(&watched.record, event, &notice, mail);
        self.mail_queue.send(mail, message);
    }

    /// Whom to write to; None where there is no mail.
    fn recipient(&self, due: &Due, job: &Job) -> Option<String> {
        let mail = &self.node.config.reaper.mail;
        mail.sendmail.as_ref().or(mail.program.as_ref())?;
        let user = &self.watched.get(&due.job)?.lease.user;
        mail::recipient(&job.mail_user, user, mail.domain.as_deref())
    }

    fn signal(
        &mut self,
        due: &Due,
        job: &Job,
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
                // A script that is not there any more can not be helped; the end has its time all the same.
                self.outside
                    .log
                    .warning(format!("job {}: {signal} was not sent: {error}", due.job));
            }
            self.state.totals.signals += 1;
        } else {
            self.state.totals.dry_run += 1;
        }
        let whom = if job.batch {
            "the batch script"
        } else {
            "its steps"
        };
        let detail = format!(
            "{signal} to {whom}, {} for a checkpoint",
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

    fn end(&mut self, due: &Due, job: &Job, now: BootTime) -> Result<(), SlurmError> {
        let action = action(&due.policy, job);
        let (decision, slurm_action) = match action {
            Action::Requeue => (Decision::Requeue, SlurmAction::Requeue { hold: false }),
            Action::RequeueHold => (Decision::Requeue, SlurmAction::Requeue { hold: true }),
            Action::Cancel => (Decision::Cancel, SlurmAction::Cancel),
        };
        let said = words::end(action);
        if due.policy.mode != Mode::On {
            self.state.totals.dry_run += 1;
            self.decide(due.job, decision, &due.stalled, &due.policy, said);
            if let Some(watched) = self.watched.get_mut(&due.job) {
                watched.watch.escalation.ended();
            }
            return Ok(());
        }
        if self.is_over_limit(due) {
            let most = self.node.config.reaper.reaps_per_hour;
            if self
                .watched
                .get(&due.job)
                .is_some_and(|watched| watched.refused.is_none())
            {
                self.state.totals.refused_rate += 1;
            }
            self.refuse(due, Refusal::HourlyLimit(most));
            return Ok(());
        }
        let text = format!(
            "gpufrac: job {} is {said}: {}, for {}; `gpufrac why {}` shows it",
            due.job,
            words::stall(due.stalled.stall),
            words::span(now.since(due.stalled.since)),
            due.job
        );
        let refused = self.watched.get(&due.job).and_then(|w| w.refused.as_ref());
        let was_refused = matches!(refused, Some(Refusal::Slurm(_)));
        let mut actions = vec![slurm_action];
        if !was_refused {
            // Before the end: who is gone can not be told. Once is enough where Slurm refuses.
            actions.insert(0, SlurmAction::Notify(text.clone()));
            actions.insert(1, SlurmAction::Comment(self.comment(job, &text)));
        }
        let results = self.act(due, actions);
        // Slurm may have taken long: the hour of the limit begins when the job ended.
        let ended = self.outside.clock.now();
        let results = match results {
            Ok(results) => results,
            Err(error) => {
                // It may have been done all the same.
                self.state.reaped.push(ended);
                self.refuse(due, Refusal::UnknownOutcome(error.to_string()));
                return Err(error);
            }
        };
        if let Some(Err(error)) = results.into_iter().next_back() {
            self.refuse(due, Refusal::Slurm(error.to_string()));
            return Ok(());
        }
        self.state.reaped.push(ended);
        let left = job.end_unix.saturating_sub(self.outside.clock.unix_now());
        let left = if left < SHORTEST_NO_LIMIT_S {
            left as f64
        } else {
            0.0
        };
        self.state.totals.reaped(action, left);
        self.decide(due.job, decision, &due.stalled, &due.policy, said);
        if let Some(watched) = self.watched.get_mut(&due.job) {
            watched.watch.escalation.ended();
        }
        Ok(())
    }

    /// Does something to this run of the job, and to no later one.
    fn act(
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

    /// What the user reads on the terminal or in the output.
    fn announcement(&self, due: &Due, action: Action, ends_in: Duration) -> String {
        let at = words::utc(self.outside.clock.unix_now() + ends_in.as_secs());
        let job = due.job;
        let watched: Option<&WatchedLease> = self.watched.get(&job);
        let excess = watched
            .and_then(|w| w.last.as_ref())
            .and_then(|s| s.excess.as_ref());
        let reason = match (due.stalled.stall, excess) {
            (Stall::OverShare, Some(excess)) => format!("the job {excess}"),
            (stall, _) => words::stall(stall).to_owned(),
        };
        format!(
            "gpufrac: job {job} will be {} in {} (at {at}): {reason}. `gpufrac why {job}` shows what was measured",
            words::end(action),
            words::span(ends_in),
        )
    }

    /// The admin comment with what is said, after what others wrote there.
    fn comment(&self, job: &Job, text: &str) -> String {
        let others = job
            .admin_comment
            .split(" | ")
            .filter(|part| !part.starts_with("gpufrac: "));
        let mut parts: Vec<&str> = others.filter(|part| !part.is_empty()).collect();
        parts.push(text);
        parts.join(" | ")
    }
}

/// Whether a job has other nodes, as far as Slurm was asked.
fn is_on_several(watched: &WatchedLease) -> bool {
    watched.job.as_ref().is_some_and(|job| job.node_count > 1)
}

/// What can be done to this job: one without a script can not be requeued.
fn action(policy: &Policy, job: &Job) -> Action {
    match job.can_requeue {
        true => policy.action,
        false => Action::Cancel,
    }
}
