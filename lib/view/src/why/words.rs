//! Phrases that mail, chart and `gpufrac why` share.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::{Action, Stall};
use gpufrac_page::words::{plain, utc, wrapped};
use gpufrac_records::evidence::{Decision, Event, Record};

pub fn event_time(record: &Record, at_ms: u64) -> String {
    utc(record.began_unix.saturating_add(at_ms / 1000))
}

/// A duration: `1h20m`.
pub fn span(length: Duration) -> String {
    gpufrac_page::words::span(length.as_secs())
}

pub fn span_ms(length: u64) -> String {
    span(Duration::from_millis(length))
}

/// The amount in a record: `0.25 of a GPU`, `4 GPUs`.
pub fn amount(fraction: &str) -> String {
    match fraction.parse::<u32>() {
        Ok(gpus @ 2..) => format!("{gpus} GPUs"),
        _ => format!("{} of a GPU", plain(fraction)),
    }
}

/// The stall, in words for the user.
pub fn stall(stall: Stall) -> &'static str {
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
pub fn done(decision: Decision) -> &'static str {
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
pub fn end(action: Action) -> &'static str {
    match action {
        Action::Requeue => "requeued",
        Action::RequeueHold => "requeued and held",
        Action::Cancel => "cancelled",
    }
}

/// The policy of a decision, with its name in the configuration.
pub fn rule(event: &Event) -> String {
    match event.rule.as_str() {
        "" => "[reaper]".to_owned(),
        name => format!("[reaper.rule.{}]", plain(name)),
    }
}

/// Advice for the user of a stalled slice; `job` is None if the job has ended.
pub fn remedies(job: Option<JobId>, stall: Stall) -> Vec<String> {
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
pub fn listed(text: &str, width: usize) -> Vec<String> {
    let item = format!("- {text}");
    wrapped(&item, width, "  ")
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
