//! The configuration of a simulated node, in the words of `gpufrac.toml` and of the oracle.

use std::time::Duration;

use fastrand::Rng;
use gpufrac_core::config::Config;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::IdleWish;
use gpufrac_node::node::Node;
use gpufrac_reaper::measure::telemetry::SHORTEST_LOOK;

use crate::plans::between;

pub const NODE: &str = "n1";

/// The factor of `--gpufrac-idle=long`.
const LONG_FACTOR: u32 = 2;

/// A time in whole seconds, the smallest unit of the configuration.
fn whole(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

/// The class of a job, which selects its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Plain,
    /// The job is requeued.
    Requeue,
    /// The job gets a signal and time for a checkpoint.
    Signal,
    /// The job is warned twice.
    Twice,
    /// The job has longer windows by its QOS, which only Slurm knows.
    Patient,
    /// The job is never reclaimed.
    Exempt,
}

impl Class {
    pub const ALL: [Class; 6] = [
        Class::Plain,
        Class::Requeue,
        Class::Signal,
        Class::Twice,
        Class::Patient,
        Class::Exempt,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Class::Plain => "plain",
            Class::Requeue => "requeue",
            Class::Signal => "signal",
            Class::Twice => "twice",
            Class::Patient => "patient",
            Class::Exempt => "exempt",
        }
    }
}

/// The promise to a job of a class.
#[derive(Clone, Debug)]
pub struct Promise {
    pub grace: Duration,
    pub never_used: Duration,
    pub idle: Duration,
    pub warn: Vec<Duration>,
    pub checkpoint: Option<Duration>,
}

/// A simulated node.
#[derive(Clone, Debug)]
pub struct Site {
    pub interval: Duration,
    pub grace: Duration,
    pub never_used: Duration,
    pub idle: Duration,
    pub warn: Vec<Duration>,
    pub second_warning: Duration,
    pub checkpoint: Duration,
    /// The number of slices of each GPU: a release disturbs samples of the other slices on the same GPU.
    pub gpus: Vec<u32>,
    pub reaps_per_hour: u32,
    /// Percent of the leases at which the breaker opens.
    pub node_share: u8,
    /// Mean time between two disturbances of any kind; None for a world without disturbances.
    pub trouble: Option<Duration>,
    /// Time between two planned restarts of the daemon; None if there are none.
    pub restarts: Option<Duration>,
}

/// The longest times between two samples of a slice; shorter activity may stay unseen.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// Until the slice has been stalled for half of its window.
    pub usual: Duration,
    pub suspect: Duration,
    /// Until the slice is observed without gaps.
    pub until_suspect: Duration,
}

impl Site {
    /// Whether nothing disturbs the daemon.
    pub fn is_quiet(&self) -> bool {
        self.trouble.is_none() && self.gpus.iter().all(|parts| *parts == 1)
    }

    /// The times in ARCHITECTURE.md: six intervals, or three; activity in a longer gap is unknown, and counts as
    /// activity. Without disturbances the rounds of the daemon decide.
    pub fn pauses(&self) -> Pauses {
        let intervals = |number: f64| self.interval.mul_f64(number);
        if self.is_quiet() {
            // A round is at most a tenth longer than an interval. A sample may be later by the time that Slurm and
            // second samples take.
            Pauses {
                usual: intervals(1.3),
                // Jobs that end in one round are sampled again one after the other, for half an interval at most.
                suspect: intervals(0.55) + SHORTEST_LOOK,
                until_suspect: intervals(1.2),
            }
        } else {
            Pauses {
                usual: intervals(6.0),
                suspect: intervals(3.0),
                until_suspect: intervals(6.0),
            }
        }
    }

    /// A random site. Odd numbers have disturbances, so that each run has as many of both kinds.
    pub fn random(dice: &mut Rng, number: u64) -> Site {
        let (is_troubled, kind) = (number % 2 == 1, number / 2);
        let interval = Duration::from_secs([1, 5, 10, 30][dice.usize(0..4)]);
        let times = |dice: &mut Rng, least: u32, most: u32| {
            whole(between(dice, interval * least, interval * most))
        };
        let never_used = times(dice, 20, 45);
        let idle = times(dice, 20, 45);
        let shortest = never_used.min(idle);
        let first = whole(between(dice, interval / 2, shortest.mul_f64(0.8)));
        Site {
            interval,
            grace: times(dice, 0, 10),
            never_used,
            idle,
            warn: vec![first],
            second_warning: whole(first.mul_f64(0.5)),
            checkpoint: times(dice, 1, 6),
            gpus: match kind % 3 {
                0 => vec![7; dice.usize(1..6)],
                _ => vec![1; dice.usize(5..35)],
            },
            // In a world with disturbances the limit is one of them.
            reaps_per_hour: if is_troubled && kind % 4 == 1 { dice.u32(5..50) } else { u32::MAX },
            node_share: if is_troubled && kind % 2 == 0 { dice.u8(10..40) } else { 100 },
            trouble: is_troubled.then(|| times(dice, 60, 500)),
            restarts: None,
        }
    }

    /// The promise to a job of a class.
    pub fn promise(&self, class: Class, wish: IdleWish) -> Promise {
        let factor = match wish {
            IdleWish::Long => LONG_FACTOR,
            _ => 1,
        };
        let longer = if class == Class::Patient { 2 } else { 1 };
        let mut warn = self.warn.clone();
        if class == Class::Twice {
            warn.push(self.second_warning);
        }
        Promise {
            grace: self.grace,
            never_used: self.never_used * factor * longer,
            idle: self.idle * factor * longer,
            warn,
            checkpoint: (class == Class::Signal).then_some(self.checkpoint),
        }
    }

    /// The node with its configuration.
    pub fn node(&self) -> Node {
        let text = self.configuration();
        let mut config = Config::parse(&text, "gpufrac.toml")
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        config.reaper.reaps_per_hour = self.reaps_per_hour;
        Node::new(config, NODE)
    }

    fn configuration(&self) -> String {
        let ms = |time: Duration| format!("\"{}ms\"", time.as_millis());
        let [interval, grace] = [self.interval, self.grace].map(ms);
        let [never_used, idle] = [self.never_used, self.idle].map(ms);
        let [long_never_used, long_idle] = [self.never_used * 2, self.idle * 2].map(ms);
        let [warn, second] = [self.warn[0], self.second_warning].map(ms);
        let checkpoint = ms(self.checkpoint);
        let share = self.node_share;
        format!(
            "version = 1
[pool.slices]
mechanism = \"mig\"
layout = \"slices\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"{NODE}\"
[reaper]
mode = \"on\"
interval = {interval}
metrics = \"off\"
grace = {grace}
never_used = {never_used}
idle = {idle}
finished = \"off\"
over_share = \"off\"
warn = [{warn}]
long_factor = {LONG_FACTOR}
breaker = {{ node_share = {share}, cluster_share = 100 }}
[reaper.rule.requeue]
partitions = [\"requeue\"]
action = \"requeue\"
[reaper.rule.signal]
accounts = [\"signal\"]
signal = \"USR1\"
checkpoint = {checkpoint}
[reaper.rule.twice]
partitions = [\"twice\"]
warn = [{warn}, {second}]
[reaper.rule.patient]
qos = [\"patient\"]
never_used = {long_never_used}
idle = {long_idle}
[reaper.rule.exempt]
users = [\"exempt\"]
mode = \"off\"
"
        )
    }

    /// Makes a lease one of a class.
    pub fn name(class: Class, lease: &mut Lease) {
        let name = class.name().to_owned();
        match class {
            Class::Requeue | Class::Twice => lease.partition = name,
            Class::Signal => lease.account = Some(name),
            Class::Exempt => lease.user = name,
            Class::Plain | Class::Patient => {}
        }
    }
}
