//! Mail messages: to a user whose job will end, and to the admins when reclaims are suspended.
#![expect(
    clippy::disallowed_methods,
    reason = "mail leaves by the real clock, beside the rounds"
)]

use std::time::Duration;

use gpufrac_core::policy::{Action, IdleWish, Mail, Policy, Stall};
use gpufrac_page::words::{clipped, plain, utc, wrapped};
use gpufrac_records::evidence::{Event, Record};
use gpufrac_view::why::chart;
use gpufrac_view::why::words::{self, event_time, listed, remedies, rule, span, span_ms};

use crate::judge::breaker::{BreakerScope, Count};

mod mime;
mod send;
#[cfg(test)]
mod tests;

pub use send::{MailError, send};

/// The usual width of a mail message in characters.
const LINE_WIDTH: usize = 72;
/// The longest address in bytes (RFC 5321, 4.5.3.1.3).
const LONGEST_ADDRESS: usize = 254;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub to: Vec<String>,
    /// The subject, one line.
    pub subject: String,
    /// The lines of the text.
    pub text: String,
    /// An attached chart, if the mail program supports attachments.
    pub chart_svg: Option<String>,
}

/// The data of a warning besides the event.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice<'a> {
    /// The addresses from [`recipient`].
    pub to: Vec<String>,
    /// The action that will be taken on the job.
    pub action: Action,
    /// The time from the event to the action.
    pub ends_in: Duration,
    pub policy: &'a Policy,
}

/// The address of a job's user: the job's MailUser if it is one address, otherwise the user. MailUser is text of the
/// user; a text that a mail program could read as an option, a list, a file or a program is not used.
pub fn recipient(mail_user: &str, user: &str, domain: Option<&str>) -> Option<String> {
    let whole = |name: &str| match domain {
        Some(domain) if !name.contains('@') => format!("{name}@{domain}"),
        _ => name.to_owned(),
    };
    let names = [mail_user, user]
        .into_iter()
        .filter(|name| !name.is_empty());
    names.map(whole).find(|address| is_address(address))
}

/// Whether a text is a user name, or a name and a host. An option, folder, pipe or file of a mail program begins with
/// another character than a name does (`-`, `+`, `|`, `/`); the last two of these are not allowed anywhere in an
/// address.
fn is_address(text: &str) -> bool {
    let name = |text: &str| {
        let usual = |c: char| c.is_ascii_alphanumeric() || "._+-=".contains(c);
        let first = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.starts_with(first) && text.chars().all(usual)
    };
    let host = |text: &str| {
        let usual = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
        !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(usual)
    };
    text.len() <= LONGEST_ADDRESS
        && match text.split_once('@') {
            Some((local, domain)) => name(local) && host(domain),
            None => name(text),
        }
}

/// The warning to a user that the job will end.
pub fn warning(record: &Record, event: &Event, notice: &Notice<'_>, mail: &Mail) -> Message {
    let dry_run = if event.dry_run { " (dry-run)" } else { "" };
    let subject = format!(
        "Job {} on {} will be {} in {}: {}{dry_run}",
        record.job,
        clipped(&record.node, 64),
        words::end(notice.action),
        span(notice.ends_in),
        in_short(event.stall)
    );
    let attached = mail.sendmail.is_some();
    let mut lines = announcement(record, event, notice);
    lines.push(String::new());
    lines.push("What you can do:".to_owned());
    for remedy in options(record, event, notice, mail) {
        lines.extend(listed(&remedy, LINE_WIDTH));
    }
    lines.push(String::new());
    lines.extend(chart::terminal(record, LINE_WIDTH));
    lines.push(String::new());
    lines.extend(wrapped(&closing(record, attached), LINE_WIDTH, ""));
    Message {
        to: notice.to.clone(),
        subject,
        text: lines.join("\n") + "\n",
        chart_svg: attached.then(|| chart::svg(record)),
    }
}

fn in_short(stall: Stall) -> &'static str {
    match stall {
        Stall::NeverUsed => "its GPU was never used",
        Stall::Idle => "its GPU is idle",
        Stall::Finished => "it holds GPU memory without a process",
        Stall::OverShare => "it uses more than its share of the GPU",
    }
}

/// The action, its time and its cause.
fn announcement(record: &Record, event: &Event, notice: &Notice<'_>) -> Vec<String> {
    let end_ms = event
        .at_ms
        .saturating_add(notice.ends_in.as_millis() as u64);
    let what = format!(
        "Your job {} holds {} ({}) on node {}. It will be {} at {}, {} after this message was written, unless this changes.",
        record.job,
        words::amount(&record.fraction),
        plain(&record.profile),
        plain(&record.node),
        words::end(notice.action),
        event_time(record, end_ms),
        span(notice.ends_in),
    );
    let why = format!(
        "Reason: {} ({}), for {} until now; {} ends jobs after {}. Source of the samples: {}.",
        words::stall(event.stall),
        event.stall,
        span_ms(event.stalled_ms),
        rule(event),
        span_ms(event.window_ms),
        event.source,
    );
    let dry_run = "This is a dry-run: the job will not be ended.".to_owned();
    let said = [what, why]
        .into_iter()
        .chain(event.dry_run.then_some(dry_run));
    let paragraphs: Vec<String> = said
        .map(|text| wrapped(&text, LINE_WIDTH, "").join("\n"))
        .collect();
    vec![paragraphs.join("\n\n")]
}

/// Advice for the user: the remedies, the checkpoint, and the contact for an exemption.
fn options(record: &Record, event: &Event, notice: &Notice<'_>, mail: &Mail) -> Vec<String> {
    let mut options = remedies(Some(record.job), event.stall);
    if let Some((signal, before)) = notice.policy.signal {
        let at = notice.ends_in.saturating_sub(before);
        let at_ms = event.at_ms.saturating_add(at.as_millis() as u64);
        options.push(format!(
            "Catch {signal} in the batch script and write a checkpoint: the signal comes at {}, {} before the end.",
            event_time(record, at_ms),
            span(before.min(notice.ends_in)),
        ));
    }
    options.extend(exemption(record, event, notice.policy));
    let contact = mail.contact.as_deref().map(plain);
    options.extend(contact.filter(|contact| !contact.trim().is_empty()));
    options
}

/// The value of `--gpufrac-idle` that the user may choose for the next job.
fn exemption(record: &Record, event: &Event, policy: &Policy) -> Option<String> {
    if event.stall == Stall::OverShare {
        // `--gpufrac-idle` does not change this window.
        return None;
    }
    let asked = policy.granted(record.wish);
    let may = |wish: IdleWish| asked != wish && policy.idle_option.contains(&wish);
    let long = may(IdleWish::Long) && asked != IdleWish::Off && policy.long_factor > 1;
    let long = long.then(|| {
        let factor = policy.long_factor;
        format!("`--gpufrac-idle=long` ({factor} times as long)")
    });
    let off = may(IdleWish::Off).then(|| "`--gpufrac-idle=off` (never)".to_owned());
    let words: Vec<String> = long.into_iter().chain(off).collect();
    (!words.is_empty()).then(|| {
        let words = words.join(" or ");
        format!("If your next job has to wait longer for its work, submit it with {words}.")
    })
}

fn closing(record: &Record, attached: bool) -> String {
    let job = record.job;
    if attached {
        format!(
            "The attached chart shows the activity of the whole job. `gpufrac why {job}` shows the samples and the decisions."
        )
    } else {
        format!(
            "`gpufrac why {job}` shows the samples and the decisions, `gpufrac why {job} --svg FILE` writes a chart of them."
        )
    }
}

/// The message of a node to the admins that a circuit breaker opened, and that warnings and reclaims are suspended.
/// None without recipients. `share`: percent of the leases at which the breaker opens; `since_unix`: when it opened.
pub fn breaker(
    node: &str,
    scope: BreakerScope,
    Count { leases, stalled }: Count,
    share: u8,
    since_unix: u64,
    mail: &Mail,
) -> Option<Message> {
    let node = plain(node);
    let place = match scope {
        BreakerScope::Node => format!("node {node}"),
        BreakerScope::Cluster => "the cluster".to_owned(),
    };
    let cause = format!(
        "{stalled} of {leases} slices of {place} look idle (limit {share} %). The telemetry is probably faulty. Node {node} suspends \
         warnings and reclaims until fewer slices look idle. The circuit breaker opened at {}.",
        utc(since_unix),
    );
    let advice = "Look at the log of gpufrac-reaperd and at its metrics: they show the source of the samples and \
                  the number of unknown samples. `gpufrac why JOB` shows a job's samples. If the slices are really idle, \
                  set a larger share in `[reaper.breaker]`.";
    let paragraphs = [cause.as_str(), advice].map(|text| wrapped(text, LINE_WIDTH, "").join("\n"));
    let admins = mail.admins.iter().filter(|address| is_address(address));
    let to: Vec<String> = admins.cloned().collect();
    (!to.is_empty()).then(|| Message {
        to,
        subject: format!(
            "gpufrac: circuit breaker open, {stalled} of {leases} slices of {place} look idle"
        ),
        text: paragraphs.join("\n\n") + "\n",
        chart_svg: None,
    })
}
