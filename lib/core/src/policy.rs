//! When a slice counts as stalled and what then happens to its job: the words of `[reaper]` in the
//! configuration, and which of its rules holds for a job.

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

/// Whether jobs are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Slices are measured, nothing is decided.
    Off,
    /// Decisions are recorded and logged, nothing is done.
    DryRun,
    /// Users are warned, jobs end.
    On,
}

/// What happens to a stalled job in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Back to the queue; jobs that cannot be requeued are cancelled.
    Requeue,
    /// Back to the queue and held there; jobs that cannot be requeued are cancelled.
    RequeueHold,
    /// Cancelled.
    Cancel,
}

/// How a slice can be stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stall {
    /// No context and no activity since the job started.
    NeverUsed,
    /// Used once, and not any more.
    Idle,
    /// No process is left on it, its memory is still held.
    Finished,
    /// The job takes more than its share of a GPU without MIG.
    OverShare,
}

impl Stall {
    /// All of them.
    pub const ALL: [Stall; 4] = [
        Stall::NeverUsed,
        Stall::Idle,
        Stall::Finished,
        Stall::OverShare,
    ];

    /// The word in configuration, logs and metrics.
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

/// What the user asks for with `--gpufrac-idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleWish {
    /// The windows of the policy.
    #[default]
    Default,
    /// Windows that are [`Policy::long_factor`] times as long.
    Long,
    /// Never reclaimed.
    Off,
}

impl IdleWish {
    /// All of them.
    pub const ALL: [IdleWish; 3] = [IdleWish::Default, IdleWish::Long, IdleWish::Off];

    /// The value of the option.
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

/// A value of `--gpufrac-idle` that is none.
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

/// The whole of `[reaper]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reaper {
    /// Whether the file has `[reaper]`: nobody misses the daemon where it has not.
    pub is_written: bool,
    /// From the beginning of one sample to that of the next.
    pub interval: Duration,
    /// Where Prometheus reads; None for nowhere.
    pub metrics: Option<SocketAddr>,
    /// The text endpoint of dcgm-exporter on the node.
    pub dcgm_exporter: Option<ExporterUrl>,
    /// How long records of decisions are kept.
    pub keep: Duration,
    /// Most jobs that one node ends in an hour.
    pub reaps_per_hour: u32,
    /// When nothing is reaped although jobs look idle.
    pub breaker: Breaker,
    /// How users are written to.
    pub mail: Mail,
    /// What holds for jobs that no rule names.
    pub general: Policy,
    /// Rules in the order of the file; the first that matches a job holds for it.
    pub rules: Vec<Rule>,
}

/// When so many slices look idle that the telemetry is probably faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Percent of a node's leases above which nothing is reaped there.
    pub node_share: u8,
    /// Percent of the cluster's leases above which nothing is reaped at all.
    pub cluster_share: u8,
    /// Fewer stalled leases than this never stop it.
    pub least: u32,
}

/// How mail leaves the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mail {
    /// A program that takes a whole message on stdin and its recipients as arguments, as sendmail does.
    pub sendmail: Option<String>,
    /// A program as Slurm's MailProg: `PROGRAM -s SUBJECT RECIPIENT`, the text on stdin.
    pub program: Option<String>,
    /// Sender; the program's own default without it.
    pub from: Option<String>,
    /// Appended to user names: `@cluster.example.org` without the `@`.
    pub domain: Option<String>,
    /// Who is told of the breaker.
    pub admins: Vec<String>,
    /// Where users can ask for an exemption; a sentence of the warning.
    pub contact: Option<String>,
}

/// A rule: its conditions and its policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The conditions.
    pub conditions: Conditions,
    /// What; its name is the rule's.
    pub policy: Policy,
}

/// What a job must be like for a rule; an empty list takes every job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Pools of the slice.
    pub pools: Vec<WildMatch>,
    /// Partitions.
    pub partitions: Vec<WildMatch>,
    /// Qualities of service.
    pub qos: Vec<WildMatch>,
    /// Accounts.
    pub accounts: Vec<WildMatch>,
    /// User names.
    pub users: Vec<WildMatch>,
    /// Reservations.
    pub reservations: Vec<WildMatch>,
    /// Names of jobs.
    pub names: Vec<WildMatch>,
    /// Whether the job has no batch script (salloc, srun).
    pub interactive: Option<bool>,
}

/// How slices are judged and what follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The rule's name; empty for what holds where no rule does.
    pub name: String,
    /// Whether jobs are touched.
    pub mode: Mode,
    /// Time after the start that never counts as idle.
    pub grace: Duration,
    /// How long a slice may stay unused from the start; None for ever.
    pub never_used: Option<Duration>,
    /// How long it may stay idle after it was used.
    pub idle: Option<Duration>,
    /// How long memory may be held after the last process.
    pub finished: Option<Duration>,
    /// How long a job may take more than its share.
    pub over_share: Option<Duration>,
    /// Percent of activity up to which a sample is idle.
    pub busy_above: f64,
    /// Percent of one CPU core up to which a job is idle where only processes can be seen.
    pub cpu_busy_above: f64,
    /// How long before the end users are warned; never empty, the longest first.
    pub warn: Vec<Duration>,
    /// A signal to the batch script, and how long the job then has.
    pub signal: Option<(Signal, Duration)>,
    /// What happens in the end.
    pub action: Action,
    /// What `--gpufrac-idle=long` multiplies the windows by.
    pub long_factor: u32,
    /// The values of `--gpufrac-idle` that may be used.
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

/// What is known of a job. None: not known (yet); an empty text: the job has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The slice's pool.
    pub pool: Option<&'a str>,
    /// The partition.
    pub partition: Option<&'a str>,
    /// The quality of service.
    pub qos: Option<&'a str>,
    /// The account.
    pub account: Option<&'a str>,
    /// The user's name.
    pub user: Option<&'a str>,
    /// The reservation.
    pub reservation: Option<&'a str>,
    /// The job's name.
    pub name: Option<&'a str>,
    /// Whether it has no batch script.
    pub interactive: Option<bool>,
}

impl Conditions {
    /// Whether a job is meant; None if that depends on what is not known.
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
            // Who has no account or reservation is in no list of them, `*` included.
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
    /// What holds for a job; a rule whose conditions cannot be decided does not hold.
    pub fn policy(&self, facts: &Facts<'_>) -> &Policy {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.conditions.hold(facts) == Some(true));
        rule.map_or(&self.general, |rule| &rule.policy)
    }

    /// Whether a job may have this value of `--gpufrac-idle`, as far as is known of it: the values of every
    /// rule that may turn out to hold are allowed.
    pub fn allows(&self, facts: &Facts<'_>, wish: IdleWish) -> bool {
        self.candidates(facts)
            .any(|policy| policy.idle_option.contains(&wish))
    }

    /// The values that [`Reaper::allows`].
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

    /// Every policy: the general one and those of the rules.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let rules = self.rules.iter().map(|rule| &rule.policy);
        std::iter::once(&self.general).chain(rules)
    }
}

impl Policy {
    /// How long a slice may be stalled in this way; None for ever.
    pub fn window(&self, stall: Stall, wish: IdleWish) -> Option<Duration> {
        let window = match stall {
            Stall::NeverUsed => self.never_used,
            Stall::Idle => self.idle,
            Stall::Finished => self.finished,
            // Who takes from others cannot ask for more time to do so.
            Stall::OverShare => return self.over_share,
        }?;
        match wish {
            IdleWish::Default => Some(window),
            IdleWish::Long => Some(window.saturating_mul(self.long_factor)),
            IdleWish::Off => None,
        }
    }

    /// The wish that counts: one that is not allowed is none.
    pub fn granted(&self, wish: IdleWish) -> IdleWish {
        match self.idle_option.contains(&wish) {
            true => wish,
            false => IdleWish::Default,
        }
    }
}
