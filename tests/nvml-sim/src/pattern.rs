//! The activity of a simulated program over time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pattern of activity, a function of the time since the program started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// Active all the time.
    Busy,
    /// Holds memory, computes nothing.
    Idle,
    /// At the start of each period active for `duty` (0 to 1) of it, then idle.
    Burst {
        /// Length of a period in seconds.
        period_seconds: f64,
        /// Busy part of a period.
        duty: f64,
    },
    /// Parts one after another, each with constant activity; then idle, or from the first part again.
    Steps {
        steps: Vec<Step>,
        /// Whether the parts are repeated.
        repeat: bool,
    },
}

/// A part of [`Pattern::Steps`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Busy fraction, 0 to 1.
    pub busy: f64,
    /// Length in seconds.
    pub seconds: f64,
}

/// The text is not a pattern.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no pattern: write busy, idle, burst:PERIOD:DUTY, such as burst:10:0.3, or \
     steps:BUSY@SECONDS,..., such as steps:0@5,1@0.2,0.3@4, which repeats with `,...` at its end"
)]
pub struct PatternError(String);

/// The end of a text whose steps are repeated.
const AGAIN: &str = ",...";

impl Step {
    fn parse(text: &str) -> Option<Step> {
        let (busy, seconds) = text.split_once('@')?;
        let (busy, seconds) = (busy.parse().ok()?, seconds.parse::<f64>().ok()?);
        let sound = (0.0..=1.0).contains(&busy) && seconds > 0.0 && seconds.is_finite();
        sound.then_some(Step { busy, seconds })
    }

    fn busy_seconds(self) -> f64 {
        self.busy * self.seconds
    }
}

fn parse_steps(text: &str) -> Option<Pattern> {
    let (list, repeat) = match text.strip_suffix(AGAIN) {
        Some(list) => (list, true),
        None => (text, false),
    };
    let steps = list.split(',').map(Step::parse).collect::<Option<_>>()?;
    Some(Pattern::Steps { steps, repeat })
}

/// Busy seconds in the first `seconds` of steps without repetition.
fn busy_in_steps(steps: &[Step], seconds: f64) -> f64 {
    let mut left = seconds;
    let mut busy = 0.0;
    for step in steps {
        busy += step.busy * left.clamp(0.0, step.seconds);
        left -= step.seconds;
    }
    busy
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let error = || PatternError(text.to_owned());
        if let Some(steps) = text.strip_prefix("steps:") {
            return parse_steps(steps).ok_or_else(error);
        }
        let mut words = text.split(':');
        let pattern = match words.next() {
            Some("busy") => Pattern::Busy,
            Some("idle") => Pattern::Idle,
            Some("burst") => {
                let mut number = || -> Option<f64> { words.next()?.parse().ok() };
                let period_seconds = number().ok_or_else(error)?;
                let duty = number().ok_or_else(error)?;
                if !(period_seconds > 0.0
                    && period_seconds.is_finite()
                    && (0.0..=1.0).contains(&duty))
                {
                    return Err(error());
                }
                Pattern::Burst {
                    period_seconds,
                    duty,
                }
            }
            _ => return Err(error()),
        };
        match words.next() {
            None => Ok(pattern),
            Some(_) => Err(error()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Busy => f.write_str("busy"),
            Pattern::Idle => f.write_str("idle"),
            Pattern::Burst {
                period_seconds,
                duty,
            } => write!(f, "burst:{period_seconds}:{duty}"),
            Pattern::Steps { steps, repeat } => {
                for (position, Step { busy, seconds }) in steps.iter().enumerate() {
                    let before = if position == 0 { "steps:" } else { "," };
                    write!(f, "{before}{busy}@{seconds}")?;
                }
                f.write_str(if *repeat { AGAIN } else { "" })
            }
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Pattern, PatternError> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.to_string()
    }
}

impl Pattern {
    /// Busy seconds in the first `seconds` of the program.
    pub fn busy_seconds(&self, seconds: f64) -> f64 {
        let seconds = seconds.max(0.0);
        match self {
            Pattern::Busy => seconds,
            Pattern::Idle => 0.0,
            Pattern::Burst {
                period_seconds,
                duty,
            } => {
                let whole = (seconds / period_seconds).floor();
                let rest = seconds - whole * period_seconds;
                let burst = period_seconds * duty;
                whole * burst + rest.min(burst)
            }
            Pattern::Steps { steps, repeat } => {
                let length: f64 = steps.iter().map(|step| step.seconds).sum();
                let whole = match repeat {
                    true if length > 0.0 => (seconds / length).floor(),
                    _ => 0.0,
                };
                let once: f64 = steps.iter().map(|step| step.busy_seconds()).sum();
                whole * once + busy_in_steps(steps, seconds - whole * length)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_is_read_as_it_is_written() {
        for text in [
            "busy",
            "idle",
            "burst:10:0.3",
            "steps:1@2",
            "steps:0@5,1@0.2,0.3@4",
            "steps:0@5,1@0.2,...",
        ] {
            assert_eq!(pattern(text).to_string(), text);
        }
        for wrong in [
            "",
            "busy:1",
            "burst:10",
            "burst:0:1",
            "burst:inf:1",
            "steps",
            "steps:",
            "steps:...",
            "steps:,...",
            "steps:1",
            "steps:1@",
            "steps:1@0",
            "steps:1@-1",
            "steps:1@inf",
            "steps:1@nan",
            "steps:1.1@2",
            "steps:-0.1@2",
            "steps:nan@2",
            "steps:1@2,",
            "steps:1@2,,1@2",
            "steps:...,1@2",
        ] {
            let error = wrong.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("steps:BUSY@SECONDS"), "{error}");
        }
    }

    #[test]
    fn steps_are_summed_up() {
        let close = |text: &str, seconds: f64, busy: f64| {
            let found = pattern(text).busy_seconds(seconds);
            assert!((found - busy).abs() < 1e-9, "{text} at {seconds}: {found}");
        };
        let once = "steps:0@5,1@0.2,0.3@4";
        for (seconds, busy) in [
            (-1.0, 0.0),
            (0.0, 0.0),
            (5.0, 0.0),
            (5.1, 0.1),
            (5.2, 0.2),
            (7.2, 0.8),
            (9.2, 1.4),
            (1000.0, 1.4),
        ] {
            close(once, seconds, busy);
        }
        let again = "steps:0@5,1@0.2,0.3@4,...";
        for (seconds, busy) in [
            (7.2, 0.8),
            (9.2, 1.4),
            (14.2, 1.4),
            (14.3, 1.5),
            (92.0, 14.0),
        ] {
            close(again, seconds, busy);
        }
    }

    #[test]
    fn bursts_are_summed_up() {
        let burst = pattern("burst:10:0.3");
        for (seconds, busy) in [(2.0, 2.0), (9.0, 3.0), (11.0, 4.0), (20.0, 6.0)] {
            assert!((burst.busy_seconds(seconds) - busy).abs() < 1e-9);
        }
    }
}
