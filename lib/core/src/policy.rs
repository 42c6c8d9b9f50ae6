//! The policy of `[reaper]`: when a slice counts as stalled, what then happens to its job, and which rule holds for a
//! job. `config/keys/reaper.rs` has what each key means.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

mod exporter;
mod signal;
#[cfg(test)]
mod tests;

pub use exporter::ExporterUrl;
pub use signal::Signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Slices are measured; no decision is made.
    Off,
    /// Decisions are recorded and logged, but not carried out.
    DryRun,
    /// Users are warned, and jobs are ended.
    On,
}

/// The action on a stalled job at the end of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Requeue the job; cancel a job that cannot be requeued.
    Requeue,
    /// Requeue and hold the job; cancel a job that cannot be requeued.
    RequeueHold,
    /// Cancel the job.
    Cancel,
}

/// The kinds of stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stall {
    /// No context and no activity since the job started.
    NeverUsed,
    /// The slice was used before, but not within the window.
    Idle,
    /// No process is left on the slice, but memory is still held.
    Finished,
    /// The job uses more than its share of a GPU without MIG.
    OverShare,
}

impl Stall {
    pub const ALL: [Stall; 4] = [
        Stall::NeverUsed,
        Stall::Idle,
        Stall::Finished,
        Stall::OverShare,
    ];

    /// The name in configuration, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stall::NeverUsed => "never-used",
            Stall::Idle => "idle",
            Stall::Finished => "finished",
            Stall::OverShare => "over-share",
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value of `--gpufrac-idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleWish {
    /// The windows of the policy.
    #[default]
    Default,
    /// Windows that are [`Policy::long_factor`] times as long.
    Long,
    /// The job is never reclaimed.
    Off,
}

impl IdleWish {
    pub const ALL: [IdleWish; 3] = [IdleWish::Default, IdleWish::Long, IdleWish::Off];

    pub fn name(self) -> &'static str {
        match self {
            IdleWish::Default => "default",
            IdleWish::Long => "long",
            IdleWish::Off => "off",
        }
    }
}

impl fmt::Display for IdleWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is not a value of `--gpufrac-idle`.
/// Cure: Write `default`, `long` or `off`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--gpufrac-idle={0} is unknown; write default, long or off")]
pub struct UnknownWish(pub String);

impl FromStr for IdleWish {
    type Err = UnknownWish;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = IdleWish::ALL.into_iter();
        let found = all.find(|wish| wish.name() == text);
        found.ok_or_else(|| UnknownWish(text.to_owned()))
    }
}

/// The content of `[reaper]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reaper {
    /// Whether the file has `[reaper]`; without it, a daemon that does not run is no fault.
    pub is_written: bool,
    pub interval: Duration,
    /// The address at which Prometheus reads metrics; None if there is none.
    pub metrics: Option<SocketAddr>,
    pub dcgm_exporter: Option<ExporterUrl>,
    pub keep: Duration,
    pub reaps_per_hour: u32,
    pub breaker: Breaker,
    pub mail: Mail,
    /// The policy of jobs that no rule matches.
    pub general: Policy,
    /// Rules in the order of the file; the first that matches a job holds for it.
    pub rules: Vec<Rule>,
}

/// The circuit breaker: the share of slices that look idle above which the telemetry is probably faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    pub node_share: u8,
    pub cluster_share: u8,
    pub least: u32,
}

/// How mail leaves the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mail {
    pub sendmail: Option<String>,
    pub program: Option<String>,
    pub from: Option<String>,
    pub domain: Option<String>,
    pub admins: Vec<String>,
    pub contact: Option<String>,
}

/// A rule: its conditions and its policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub conditions: Conditions,
    /// The policy; its name is that of the rule.
    pub policy: Policy,
}

/// The conditions of a rule; an empty list matches every job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    pub pools: Vec<WildMatch>,
    pub partitions: Vec<WildMatch>,
    pub qos: Vec<WildMatch>,
    pub accounts: Vec<WildMatch>,
    pub users: Vec<WildMatch>,
    pub reservations: Vec<WildMatch>,
    pub names: Vec<WildMatch>,
    /// Whether the job has no batch script (salloc, srun); None matches both.
    pub interactive: Option<bool>,
}

/// How slices are judged, and what happens to jobs with stalled slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The name of the rule; empty for the general policy.
    pub name: String,
    pub mode: Mode,
    pub grace: Duration,
    // None for a window that never ends.
    pub never_used: Option<Duration>,
    pub idle: Option<Duration>,
    pub finished: Option<Duration>,
    pub over_share: Option<Duration>,
    pub busy_above: f64,
    pub cpu_busy_above: f64,
    /// The times of the warnings before the end of the window; never empty, the longest first.
    pub warn: Vec<Duration>,
    /// The signal to the batch script, and the time that the job then has until its end.
    pub signal: Option<(Signal, Duration)>,
    pub action: Action,
    pub long_factor: u32,
    pub idle_option: Vec<IdleWish>,
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl Default for Policy {
    fn default() -> Self {
        Policy {
            name: String::new(),
            mode: Mode::DryRun,
            grace: 15 * MINUTE,
            never_used: Some(2 * HOUR),
            idle: Some(4 * HOUR),
            finished: Some(30 * MINUTE),
            over_share: Some(30 * MINUTE),
            busy_above: 0.0,
            cpu_busy_above: 1.0,
            warn: vec![20 * MINUTE],
            signal: None,
            action: Action::Cancel,
            long_factor: 4,
            idle_option: vec![IdleWish::Default, IdleWish::Long],
        }
    }
}

impl Default for Reaper {
    fn default() -> Self {
        Reaper {
            is_written: false,
            interval: Duration::from_secs(10),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 9835))),
            dcgm_exporter: None,
            keep: 14 * 24 * HOUR,
            reaps_per_hour: 6,
            breaker: Breaker {
                node_share: 60,
                cluster_share: 30,
                least: 4,
            },
            mail: Mail::default(),
            general: Policy::default(),
            rules: Vec::new(),
        }
    }
}

/// The known properties of a job. None: not known (yet). An empty text: the job has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    pub pool: Option<&'a str>,
    pub partition: Option<&'a str>,
    pub qos: Option<&'a str>,
    pub account: Option<&'a str>,
    pub user: Option<&'a str>,
    pub reservation: Option<&'a str>,
    pub name: Option<&'a str>,
    /// Whether the job has no batch script.
    pub interactive: Option<bool>,
}

impl Conditions {
    /// Whether the job matches all conditions; None if that depends on an unknown property.
    pub fn hold(&self, facts: &Facts<'_>) -> Option<bool> {
        let lists = [
            (&self.pools, facts.pool),
            (&self.partitions, facts.partition),
            (&self.qos, facts.qos),
            (&self.accounts, facts.account),
            (&self.users, facts.user),
            (&self.reservations, facts.reservation),
            (&self.names, facts.name),
        ];
        let lists = lists.into_iter().filter(|(list, _)| !list.is_empty());
        let listed = lists.map(|(list, fact)| {
            // A job without an account or a reservation matches no list of them, not even `*`.
            fact.map(|fact| !fact.is_empty() && list.iter().any(|pattern| pattern.matches(fact)))
        });
        let kind = self.interactive.map(|wanted| {
            let is = facts.interactive?;
            Some(is == wanted)
        });
        let answers: Vec<Option<bool>> = listed.chain(kind).collect();
        if answers.contains(&Some(false)) {
            Some(false)
        } else if answers.contains(&None) {
            None
        } else {
            Some(true)
        }
    }
}

impl Reaper {
    /// The policy of a job. A rule whose conditions cannot be decided does not match.
    pub fn policy(&self, facts: &Facts<'_>) -> &Policy {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.conditions.hold(facts) == Some(true));
        rule.map_or(&self.general, |rule| &rule.policy)
    }

    /// Whether the job may use this value of `--gpufrac-idle`. If some properties are unknown, the values of every
    /// rule that may match are allowed.
    pub fn allows(&self, facts: &Facts<'_>, wish: IdleWish) -> bool {
        self.candidates(facts)
            .any(|policy| policy.idle_option.contains(&wish))
    }

    /// The values that [`Reaper::allows`] accepts.
    pub fn allowed(&self, facts: &Facts<'_>) -> Vec<IdleWish> {
        let all = IdleWish::ALL.into_iter();
        all.filter(|wish| self.allows(facts, *wish)).collect()
    }

    fn candidates(&self, facts: &Facts<'_>) -> impl Iterator<Item = &Policy> {
        let mut open = true;
        let held = self.rules.iter().map(|rule| {
            let holds = rule.conditions.hold(facts);
            (holds, &rule.policy)
        });
        let general = std::iter::once((Some(true), &self.general));
        held.chain(general).filter_map(move |(holds, policy)| {
            let candidate = open && holds != Some(false);
            open &= holds != Some(true);
            candidate.then_some(policy)
        })
    }

    /// All policies: the general one and those of the rules.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let rules = self.rules.iter().map(|rule| &rule.policy);
        std::iter::once(&self.general).chain(rules)
    }
}

impl Policy {
    /// The window for a kind of stall; None if it never ends.
    pub fn window(&self, stall: Stall, wish: IdleWish) -> Option<Duration> {
        let window = match stall {
            Stall::NeverUsed => self.never_used,
            Stall::Idle => self.idle,
            Stall::Finished => self.finished,
            // `--gpufrac-idle=long` does not prolong this window, because the job takes from others.
            Stall::OverShare => return self.over_share,
        }?;
        match wish {
            IdleWish::Default => Some(window),
            IdleWish::Long => Some(window.saturating_mul(self.long_factor)),
            IdleWish::Off => None,
        }
    }

    /// The wish that takes effect: `default` if the policy does not allow `wish`.
    pub fn granted(&self, wish: IdleWish) -> IdleWish {
        if self.idle_option.contains(&wish) { wish } else { IdleWish::Default }
    }
}
