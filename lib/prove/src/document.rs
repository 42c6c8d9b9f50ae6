//! The file that a run leaves.

use std::collections::BTreeMap;

use gpufrac_core::geometry::Geometry;
use serde::{Deserialize, Serialize};

use crate::statistics::Times;

/// The version of the format.
pub const VERSION: u32 = 1;

/// All that a run measured. It has no names of users or hosts, no serial numbers and no UUIDs: devices have aliases,
/// `GPU-1`, `MIG-3`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    pub version: u32,
    /// True for a file that no GPU stands behind.
    #[serde(default)]
    pub made_up: bool,
    /// The day of the run, `2026-11-25`.
    pub date: String,
    /// The version of gpufrac.
    pub gpufrac: String,
    /// The GPU and its driver.
    pub head: Head,
    /// The profiles and positions that the driver reports.
    pub geometry: Geometry,
    /// Why and where the run stopped before its end.
    #[serde(default)]
    pub stopped: Option<Stopped>,
    /// The answers, in the order of the steps.
    pub answers: Vec<Answer>,
    /// Each place with the instance that was made there alone.
    pub places: Vec<PlaceRow>,
    /// The duration of each call.
    pub times: Vec<TimesRow>,
    /// The calls that change something, and those that were refused.
    pub calls: Vec<CallRow>,
    /// What MPS does; None where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<gpufrac_compute::mps::Record>,
}

/// The GPU and its driver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The model as gpufrac.toml(5) names it.
    pub model: Option<String>,
    /// NVML's name of the product.
    pub product: String,
    /// Memory of the GPU, MiB.
    pub memory_mib: u64,
    /// The driver's version.
    pub driver: String,
    /// Further facts by name.
    pub facts: BTreeMap<String, String>,
}

/// Where a run stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    pub step: String,
    pub reason: String,
}

/// The answer to one question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub step: String,
    /// The question, as a statement.
    pub question: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// As gpufrac takes it for true.
    Agrees { value: String },
    /// Not so.
    Differs {
        /// What gpufrac takes for true.
        expected: String,
        /// The driver's answer.
        found: String,
    },
    /// A value of which gpufrac assumes nothing.
    Noted { value: String },
    /// No value.
    NotMeasured { reason: String },
}

/// A place with the instance that was made there alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceRow {
    /// The profile's name.
    pub profile: String,
    /// NVML's profile id.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u8,
    /// The id of the GPU instance.
    pub gi: u32,
    /// The id of the compute instance.
    pub ci: u32,
    /// Alias of the MIG UUID; the same alias is the same UUID.
    pub uuid: String,
    /// The version digit of the MIG UUID.
    pub uuid_version: Option<char>,
    /// Minor numbers of the two capabilities.
    pub minors: Option<[u32; 2]>,
    /// Memory of the instance and memory in use while it is idle, MiB.
    pub memory_mib: Option<[u64; 2]>,
}

/// The duration of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimesRow {
    /// The function of NVML.
    pub call: String,
    /// `alone`, `seven` sessions at once, or a special case such as `first`.
    pub when: String,
    #[serde(flatten)]
    pub times: Times,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRow {
    pub step: String,
    /// The function of NVML.
    pub call: String,
    pub args: String,
    /// NVML's return code.
    pub code: u32,
    /// Duration in milliseconds.
    pub ms: f64,
    /// Ids of the GPU instances in the driver's folder before the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<u32>>,
    /// The same after the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<u32>>,
}

impl Document {
    /// How many answers differ from what gpufrac takes for true.
    pub fn differences(&self) -> usize {
        let differs = |answer: &&Answer| matches!(answer.outcome, Outcome::Differs { .. });
        self.answers.iter().filter(differs).count()
    }

    /// Whether the run left nothing behind.
    pub fn is_clean(&self) -> bool {
        let left = |answer: &Answer| {
            answer.step == "cleanup" && !matches!(answer.outcome, Outcome::Agrees { .. })
        };
        !self.answers.iter().any(left)
    }

    /// The name of its files without an ending, `H100-80-570.172.08-2026-11-25`.
    pub fn name(&self) -> String {
        let model = self.head.model.as_ref().unwrap_or(&self.head.product);
        let plain = |text: &str| -> String {
            let safe = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            text.chars()
                .map(|c| if safe(c) { c } else { '-' })
                .collect()
        };
        format!(
            "{}-{}-{}",
            plain(model),
            plain(&self.head.driver),
            self.date
        )
    }
}

impl std::fmt::Display for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.memory_mib;
        write!(
            f,
            "{} with {memory} MiB, driver {}",
            self.product, self.driver
        )
    }
}
