//! Messages to the user of a job: on the terminal, in the admin comment, by mail.

use std::time::Duration;

use gpufrac_core::policy::{Action, Stall};
use gpufrac_records::evidence::Event;
use gpufrac_view::why::words;
use slurm_sys::client::JobInfo;

use super::Daemon;
use super::reap::Due;
use crate::act::mail::{self, Notice};

impl Daemon {
    /// The message on the terminal or in the output.
    pub(super) fn announcement(&self, due: &Due, action: Action, ends_in: Duration) -> String {
        let at = gpufrac_page::words::utc(self.outside.clock.unix_now() + ends_in.as_secs());
        let job = due.job;
        let watched = self.watched.get(&job);
        let excess = watched
            .and_then(|w| w.last.as_ref())
            .and_then(|s| s.excess.as_ref());
        let reason = match (due.stalled.stall, excess) {
            (Stall::OverShare, Some(excess)) => format!("the job {excess}"),
            (stall, _) => words::stall(stall).to_owned(),
        };
        format!(
            "gpufrac: job {job} will be {} in {} (at {at}): {reason}. `gpufrac why {job}` shows the samples",
            words::end(action),
            words::span(ends_in),
        )
    }

    /// The recipient of mail; None if no mail is sent.
    pub(super) fn recipient(&self, due: &Due, job: &JobInfo) -> Option<String> {
        let mail = &self.node.config.reaper.mail;
        mail.sendmail.as_ref().or(mail.program.as_ref())?;
        let user = &self.watched.get(&due.job)?.lease.user;
        mail::recipient(&job.mail_user, user, mail.domain.as_deref())
    }

    pub(super) fn write_to_user(
        &self,
        due: &Due,
        job: &JobInfo,
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
}

/// The new admin comment: the text of others, then gpufrac's.
pub(super) fn comment(job: &JobInfo, text: &str) -> String {
    let others = job
        .admin_comment
        .split(" | ")
        .filter(|part| !part.starts_with("gpufrac: "));
    let mut parts: Vec<&str> = others.filter(|part| !part.is_empty()).collect();
    parts.push(text);
    parts.join(" | ")
}
