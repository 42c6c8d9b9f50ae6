//! Faults, delays and latencies on demand, and the counters of calls that they need.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::latency::{Latencies, Latency, Place};
use crate::shared::Words;
use crate::symbols;

/// All disturbances of a node's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbances {
    /// Count calls even if no rule needs it.
    pub counting: bool,
    /// GPM and utilization report no activity.
    #[serde(default)]
    pub dead_telemetry: bool,
    /// Log each call: the caller, the GPU, the duration.
    #[serde(default)]
    pub journal: bool,
    /// The model of latencies, if it is on.
    #[serde(default)]
    pub latencies: Option<Latencies>,
    /// The rules; the first that fails a call decides, delays add up.
    pub rules: Vec<Rule>,
}

/// A rule for some calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The function; None for any.
    pub call: Option<String>,
    /// Only on this GPU; calls on others are still counted.
    #[serde(default)]
    pub gpu: Option<usize>,
    /// The number of the first affected call.
    pub first: u64,
    /// The number of affected calls; 0 for all that follow.
    pub count: u64,
    pub what: What,
}

/// The effect of a rule on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The call takes this many milliseconds longer.
    Delay(u64),
    /// The call does nothing and returns this code.
    Fail(u32),
    /// The call does its work and returns this code nevertheless.
    FailAfter(u32),
    /// The call answers the second code instead of the first.
    Instead(u32, u32),
    /// The caller is killed before the call does anything.
    Kill,
    /// The caller is killed after the call has done its work.
    KillAfter,
}

/// The effect on one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effect {
    /// Microseconds to wait.
    pub delay_us: u64,
    /// The GPU whose turn the call waits for, and keeps until its end.
    pub turn: Option<usize>,
    /// Log the call at its end, as one on this GPU.
    pub note: Option<Option<usize>>,
    /// Return this without doing anything.
    pub fail: Option<Code>,
    /// Return this after the work.
    pub fail_after: Option<Code>,
    /// Return the second code instead of the first.
    pub instead: Option<(u32, u32)>,
    /// Kill the caller before the work.
    pub kill: bool,
    /// Kill the caller after the work.
    pub kill_after: bool,
}

impl Disturbances {
    /// Whether calls need not be counted.
    pub fn is_calm(&self) -> bool {
        !self.counting && !self.journal && self.latencies.is_none() && self.rules.is_empty()
    }

    /// Whether the call's GPU matters; finding it takes time.
    fn asks_where(&self, latency: Option<&Latency>) -> bool {
        self.journal || latency.is_some() || self.rules.iter().any(|rule| rule.gpu.is_some())
    }

    /// Counts a call and returns the effect on it. `place`: its GPU; `others`: the number of other open sessions.
    pub(crate) fn count(
        &self,
        counters: &Words,
        call: &str,
        place: impl FnOnce() -> Option<Place>,
        others: impl FnOnce() -> u64,
    ) -> Effect {
        let of_any = counters.word(0).fetch_add(1, Ordering::Relaxed) + 1;
        let of_name = match symbols::position(call) {
            Some(at) => counters.word(at + 1).fetch_add(1, Ordering::Relaxed) + 1,
            None => 0,
        };
        let mut effect = Effect::default();
        let model = self.latencies.as_ref();
        let latency = model.and_then(|_| Latency::of(call));
        let place = self.asks_where(latency).then(place).flatten();
        let gpu = place.map(|place| place.gpu);
        if let (Some(model), Some(latency)) = (model, latency) {
            effect.delay_us = model.micros(latency.at(place), place, others);
            effect.turn = gpu.filter(|_| latency.changes);
        }
        effect.note = self.journal.then_some(gpu);
        for rule in &self.rules {
            let number = match rule.call.as_deref() {
                None => of_any,
                Some(name) if name == call => of_name,
                Some(_) => continue,
            };
            let met = number >= rule.first && (rule.count == 0 || number - rule.first < rule.count);
            let here = rule.gpu.is_none_or(|wanted| gpu == Some(wanted));
            if !met || !here {
                continue;
            }
            match rule.what {
                What::Delay(ms) => effect.delay_us += ms.saturating_mul(1000),
                What::Fail(code) => effect.fail = effect.fail.or(Some(Code(code))),
                What::FailAfter(code) => {
                    effect.fail_after = effect.fail_after.or(Some(Code(code)));
                }
                What::Instead(own, other) => effect.instead = Some((own, other)),
                What::Kill => effect.kill = true,
                What::KillAfter => effect.kill_after = true,
            }
        }
        effect
    }
}

/// The current value of the counter that a rule on this function (or on any) reads.
pub fn counted(counters: &Words, call: Option<&str>) -> u64 {
    let position = match call {
        None => Some(0),
        Some(name) => symbols::position(name).map(|at| at + 1),
    };
    position.map_or(0, |at| counters.word(at).load(Ordering::Relaxed))
}
