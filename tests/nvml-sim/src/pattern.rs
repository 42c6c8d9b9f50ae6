//! How busy a simulated program keeps its GPU over time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pattern of activity, a function of the time since the program started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// All the time.
    Busy,
    /// Holds memory, computes nothing.
    Idle,
    /// At the start of each period busy for `duty` (0 to 1) of it, then idle.
    Burst {
        /// Length of a period in seconds.
        period_seconds: f64,
        /// Busy part of a period.
        duty: f64,
    },
}

/// A text that is no pattern.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no pattern: write busy, idle or burst:PERIOD:DUTY, such as burst:10:0.3")]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let error = || PatternError(text.to_owned());
        let mut words = text.split(':');
        let pattern = match words.next() {
            Some("busy") => Pattern::Busy,
            Some("idle") => Pattern::Idle,
            Some("burst") => {
                let mut number = || -> Option<f64> { words.next()?.parse().ok() };
                let period_seconds = number().ok_or_else(error)?;
                let duty = number().ok_or_else(error)?;
                if !(period_seconds > 0.0 && (0.0..=1.0).contains(&duty)) {
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
    /// Busy seconds in the first `seconds` of the program's life.
    #[must_use]
    pub fn busy_seconds(&self, seconds: f64) -> f64 {
        let seconds = seconds.max(0.0);
        match *self {
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
        }
    }
}
