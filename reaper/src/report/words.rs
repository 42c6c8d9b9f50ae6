//! Phrases that mail, chart and `gpufrac why` share.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Action, Stall};
pub(crate) use gpufrac_page::words::{clipped, plain, utc, wrapped};

use crate::keep::evidence::{Decision, Event, Record};

pub(crate) fn event_time(record: &Record, at_ms: u64) -> String {
    utc(record.began_unix.saturating_add(at_ms / 1000))
}

/// A duration: `1h20m`.
pub(crate) fn span(length: Duration) -> String {
    gpufrac_page::words::span(length.as_secs())
}

pub(crate) fn span_ms(length: u64) -> String {
    span(Duration::from_millis(length))
}

/// The amount in a record: `0.25 of a GPU`, `4 GPUs`.
pub(crate) fn amount(fraction: &str) -> String {
    match fraction.parse::<u32>() {
        Ok(gpus @ 2..) => format!("{gpus} GPUs"),
        _ => format!("{} of a GPU", plain(fraction)),
    }
}

/// The stall, in words for the user.
pub(crate) fn stall(stall: Stall) -> &'static str {
    match stall {
        Stall::NeverUsed => "no process has used the slice since the job started",
        Stall::Idle => "the slice has been idle",
        Stall::Finished => {
            "the last process on the slice has ended, but its memory is still allocated"
        }
        Stall::OverShare => "the job uses more of the GPU than its share",
    }
}

/// The decision in one or two words.
pub(crate) fn done(decision: Decision) -> &'static str {
    match decision {
        Decision::Warn => "warned",
        Decision::Signal => "signalled",
        Decision::Requeue => "requeued",
        Decision::Cancel => "cancelled",
        Decision::Clear => "used again",
        Decision::Refuse => "not done",
    }
}

/// The action, after the words "it will be".
pub(crate) fn end(action: Action) -> &'static str {
    match action {
        Action::Requeue => "requeued",
        Action::RequeueHold => "requeued and held",
        Action::Cancel => "cancelled",
    }
}

/// The policy of a decision, with its name in the configuration.
pub(crate) fn rule(event: &Event) -> String {
    match event.rule.as_str() {
        "" => "[reaper]".to_owned(),
        name => format!("[reaper.rule.{}]", plain(name)),
    }
}

/// Advice for the user of a stalled slice; `job` is None if the job has ended.
pub(crate) fn remedies(job: Option<JobId>, stall: Stall) -> Vec<String> {
    let end = |rest: &str| job.map(|job| format!("{rest}: `scancel {job}`."));
    let mut said: Vec<String> = Vec::new();
    let mut say = |text: &str| said.push(text.to_owned());
    match stall {
        Stall::OverShare => {
            say(
                "Stay within the share: limit the memory of your framework, and start no process outside of the job's environment.",
            );
            say("Or request a larger fraction.");
            said.extend(end("If the job is no longer needed, end it"));
        }
        Stall::Finished => {
            said.extend(end("If the work is done, end the job"));
            let batch = "Let the batch script end with its last GPU program; run the later steps in a job without a GPU.";
            said.push(batch.to_owned());
        }
        Stall::NeverUsed | Stall::Idle => {
            say("Use the GPU: any work on it counts.");
            say(
                "If the program should use the GPU and does not, read its output: a framework without CUDA continues on the CPU and reports this only there.",
            );
            say(
                "If it works in bursts, request a smaller fraction, or prepare the data in a job without a GPU.",
            );
            said.extend(end("If the job is no longer needed, end it"));
        }
    }
    said
}

/// [`wrapped`] as an item of a list.
pub(crate) fn listed(text: &str, width: usize) -> Vec<String> {
    let item = format!("- {text}");
    wrapped(&item, width, "  ")
}

/// A record for the tests of charts and texts.
#[cfg(test)]
pub(crate) mod example {
    use gpufrac_core::ids::UserId;
    use gpufrac_core::policy::IdleWish;

    use super::*;
    use crate::keep::evidence::{Point, Series, VERSION};
    use crate::measure::sample::Source;

    const MINUTE: u64 = 60_000;

    fn point(samples: u32, unknown: u32, peak: f32, memory_mib: u32) -> Point {
        Point {
            samples,
            unknown,
            busy: if peak > 0.0 { samples } else { 0 },
            peak,
            memory_mib,
            source: Source::Gpm,
        }
    }

    pub(crate) fn event(minute: u64, decision: Decision, stall: Stall) -> Event {
        Event {
            at_ms: minute * MINUTE,
            decision,
            dry_run: false,
            stall,
            stalled_ms: 220 * MINUTE,
            window_ms: 240 * MINUTE,
            rule: String::new(),
            source: Source::Gpm,
            detail: String::new(),
        }
    }

    /// Ten hours: activity, a gap, samples with unknown activity, idle until the end; every kind of event.
    pub(crate) fn record() -> Record {
        let points = (0..120).map(|at| match at {
            0..5 => point(30, 0, 0.0, 0),
            5..40 => point(30, 0, 0.55 + (at % 7) as f32 * 0.07, 14_000 + 40 * at),
            40..50 => point(0, 0, 0.0, 0),
            50..58 => point(30, 30, 0.0, 12_000),
            58..64 => point(30, 3, 0.3, 12_000),
            _ => point(30, 0, 0.0, 9_000),
        });
        let told = |minute, decision| event(minute, decision, Stall::Idle);
        Record {
            version: VERSION,
            job: JobId(4242),
            restart_count: 0,
            user: "alice".to_owned(),
            uid: UserId(1000),
            account: Some("physics".to_owned()),
            partition: "gpu".to_owned(),
            node: "gn07".to_owned(),
            pool: "h100".to_owned(),
            fraction: "0.25".to_owned(),
            profile: "2g.20gb".to_owned(),
            device: "MIG-11111111-2222-3333-4444-555555555555".to_owned(),
            memory_mib: 20_096,
            wish: IdleWish::Default,
            created_unix: 1_795_000_000,
            began_unix: 1_795_000_004,
            series: Series {
                step_ms: 5 * MINUTE,
                points: points.collect(),
            },
            events: vec![
                Event {
                    dry_run: true,
                    stall: Stall::NeverUsed,
                    stalled_ms: 20 * MINUTE,
                    window_ms: 120 * MINUTE,
                    rule: "interactive".to_owned(),
                    ..told(20, Decision::Warn)
                },
                told(26, Decision::Clear),
                told(560, Decision::Warn),
                Event {
                    detail: "SIGUSR1 to the batch script".to_owned(),
                    ..told(590, Decision::Signal)
                },
                Event {
                    detail: "the breaker of the node is open".to_owned(),
                    ..told(594, Decision::Refuse)
                },
                told(599, Decision::Requeue),
            ],
            ended_ms: Some(600 * MINUTE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_gpus_are_counted() {
        for (fraction, words) in [
            ("0.25", "0.25 of a GPU"),
            ("1", "1 of a GPU"),
            ("4", "4 GPUs"),
        ] {
            assert_eq!(amount(fraction), words);
        }
    }
}
