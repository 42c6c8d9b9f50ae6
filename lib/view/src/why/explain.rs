//! Explains why a job was warned or ended.

use gpufrac_page::words::{clipped, plain, utc, wrapped};
use gpufrac_records::evidence::{Decision, Event, Record, Source};

use super::chart;
use super::words::{amount, done, event_time, listed, remedies, rule, span_ms, stall};

/// A record as text for people, in lines of about `width` characters.
pub fn explain(record: &Record, width: usize) -> Vec<String> {
    let mut lines = head(record, width);
    lines.push(String::new());
    lines.extend(wrapped(&measured(record), width, ""));
    lines.push(String::new());
    if let Some(it) = &record.full {
        let told = plain(&it.told(record.memory_mib, &record.node));
        lines.extend(wrapped(
            &format!("The job failed with a full slice: {told}."),
            width,
            "  ",
        ));
    } else if record.events.is_empty() {
        lines.push("No decision was made about this job.".to_owned());
    }
    for event in &record.events {
        lines.extend(wrapped(&sentence(record, event), width, "  "));
    }
    lines.push(String::new());
    lines.extend(chart::terminal(record, width));
    let advice = advice(record);
    if !advice.is_empty() {
        lines.push(String::new());
    }
    for (at, paragraph) in advice.iter().enumerate() {
        lines.extend(match at {
            0 => wrapped(paragraph, width, ""),
            _ => listed(paragraph, width),
        });
    }
    lines
}

fn head(record: &Record, width: usize) -> Vec<String> {
    let account = record.account.as_deref().filter(|name| !name.is_empty());
    let restarts = match record.restart_count {
        0 => String::new(),
        count => format!(", requeued {count} times before"),
    };
    let until = match record.ended_ms {
        Some(ended) => format!("until {}", event_time(record, ended)),
        None => "still running when written".to_owned(),
    };
    let gib = record.memory_mib as f64 / 1024.0;
    let rows = [
        format!(
            "job {} on node {}{restarts}",
            record.job,
            plain(&record.node)
        ),
        format!(
            "user {}, account {}, partition {}",
            plain(&record.user),
            account.map_or("-".to_owned(), plain),
            plain(&record.partition)
        ),
        format!(
            "slice: {} of pool {} ({}), {:.1} GiB, device {}",
            amount(&record.fraction),
            plain(&record.pool),
            plain(&record.profile),
            (gib * 10.0).floor() / 10.0,
            plain(&record.device)
        ),
        format!("requested: --gpufrac-idle={}", record.wish),
        format!("measured from {}, {until}", utc(record.began_unix)),
    ];
    rows.iter()
        .flat_map(|row| wrapped(row, width, "  "))
        .collect()
}

/// The sources of the samples, and their results in percent.
fn measured(record: &Record) -> String {
    let points = record.series.points.iter();
    let sum = points.fold((0, 0, 0), |(samples, busy, unknown), point| {
        let add = |sum: u64, more: u32| sum + u64::from(more);
        (
            add(samples, point.samples),
            add(busy, point.busy),
            add(unknown, point.unknown),
        )
    });
    let (samples, busy, unknown) = sum;
    if samples == 0 {
        return "No sample was taken.".to_owned();
    }
    let percent = |part: u64| 100.0 * part as f64 / samples as f64;
    let points = || {
        record
            .series
            .points
            .iter()
            .filter(|point| point.samples > 0)
    };
    let used = |source: &Source| points().any(|point| point.source == *source);
    let names = Source::ALL.iter().filter(|source| used(source));
    let names: Vec<&str> = names.map(|source| source.name()).collect();
    format!(
        "{samples} samples by {}: the slice was busy in {:.1} % of them; {:.1} % had no value, which counts as busy.",
        names.join(", "),
        percent(busy),
        percent(unknown)
    )
}

fn sentence(record: &Record, event: &Event) -> String {
    let when = event_time(record, event.at_ms);
    let dry_run = if event.dry_run { " in dry-run (logged only)" } else { "" };
    let what = done(event.decision);
    let detail = match event.detail.as_str() {
        "" => String::new(),
        detail => format!("; {}", clipped(detail, 400).trim_end_matches('.')),
    };
    if event.decision == Decision::Clear {
        return format!(
            "{when}: {what}{dry_run}, last sample by {}{detail}.",
            event.source
        );
    }
    format!(
        "{when}: {what}{dry_run} by {}: {} ({}) for {} of {}, last sample by {}{detail}.",
        rule(event),
        stall(event.stall),
        event.stall,
        span_ms(event.stalled_ms),
        span_ms(event.window_ms),
        event.source
    )
}

/// Advice for the user, depending on the last event.
fn advice(record: &Record) -> Vec<String> {
    let Some(last) = record.events.last() else {
        return Vec::new();
    };
    let begin = match last.decision {
        _ if last.dry_run => "The job was not changed: the policy is in dry-run.",
        Decision::Clear => return Vec::new(),
        Decision::Requeue | Decision::Cancel => "To prevent this for the next job:",
        Decision::Warn | Decision::Signal | Decision::Refuse => "What you can do:",
    };
    let mut advice = vec![begin.to_owned()];
    let job = record.ended_ms.is_none().then_some(record.job);
    advice.extend(remedies(job, last.stall));
    advice.push(
        "A job that must wait long for its work can be submitted with `--gpufrac-idle=long`, or `--gpufrac-idle=off`, where the \
         rules of your site allow it."
            .to_owned(),
    );
    advice
}

#[cfg(test)]
mod tests {
    use gpufrac_records::usage::{Full, Larger};
    use test_examples::evidence::record;

    use super::*;

    #[test]
    fn everything_is_told() {
        let mut told = record();
        told.user = "al\u{1b}[2Jice".to_owned();
        let lines = explain(&told, 100);
        let text = lines.join("\n");
        if std::env::var_os("GPUFRAC_PICTURES").is_some() {
            println!("{text}");
        }
        for wanted in [
            "job 4242 on node gn07",
            "user al?[2Jice, account physics, partition gpu",
            "slice: 0.25 of a GPU of pool h100 (2g.20gb), 19.6 GiB",
            "--gpufrac-idle=default",
            "measured from 2026-11-18 11:06:44 UTC, until 2026-11-18 21:06:44 UTC",
            "3300 samples by gpm: the slice was busy in 37.3 % of them; 7.8 % had no value",
            "2026-11-18 11:26:44 UTC: warned in dry-run (logged only) by",
            "[reaper.rule.interactive]",
            "no process has used the slice since the job started (never-used) for 20m of 2h",
            "used again, last sample by gpm.",
            "(idle) for 3h40m of 4h00m",
            "by gpm; SIGUSR1 to the batch script.",
            "not done by [reaper]",
            "the breaker of the node is open.",
            "requeued by [reaper]",
            "100 % ┤",
            "To prevent this for the next job:",
            "- Use the GPU",
        ] {
            let joined = lines.join(" ").replace("   ", " ").replace("  ", " ");
            assert!(
                text.contains(wanted) || joined.contains(wanted),
                "{wanted}\n{text}"
            );
        }
        assert!(
            lines.iter().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_job_that_failed_with_a_full_slice_is_told_the_next_size() {
        let mut failed = record();
        failed.events.clear();
        let said = |larger: Option<bool>| {
            let mut failed = failed.clone();
            failed.full = Some(Full {
                used_mib: 19_968,
                larger: larger.map(|is_free| Larger {
                    request: "gpufrac:0.5".to_owned(),
                    is_free,
                }),
            });
            explain(&failed, 300).join("\n")
        };
        let begin = "The job failed with a full slice: used 19.5 of 19.6 GiB of its slice; ";
        for (larger, rest) in [
            (
                Some(true),
                "the next larger size is gpufrac:0.5 (one was free on gn07 then).",
            ),
            (
                Some(false),
                "the next larger size is gpufrac:0.5 (none was free on gn07 then).",
            ),
            (None, "the pool has no larger size."),
        ] {
            let text = said(larger);
            assert!(text.contains(&format!("{begin}{rest}")), "{text}");
            assert!(!text.contains("No decision"), "{text}");
        }
    }

    #[test]
    fn a_record_without_samples_or_events_is_told() {
        let mut empty = record();
        empty.events.clear();
        empty.series.points.clear();
        empty.ended_ms = None;
        let text = explain(&empty, 80).join("\n");
        assert!(text.contains("No sample was taken."));
        assert!(text.contains("No decision was made about this job."));
        assert!(text.contains("still running when written"));
        assert!(!text.contains("scancel"));
    }
}
