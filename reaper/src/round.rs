//! What each part of the daemon works with in a round.

use std::fmt::Display;
use std::time::Duration;

use gpufrac_core::policy::Reaper;
use gpufrac_node::clock::BootTime;
use gpufrac_node::node::Node;

use crate::judge::peers::Peers;
use crate::keep::totals::Totals;
use crate::outside::Outside;
use crate::report::errors::{ErrorReports, topic};

/// A round: the node, the access to the outside and to other nodes, and where errors and counts go.
pub(crate) struct Round {
    /// Its number since the daemon's start, from 1.
    pub(crate) number: u64,
    pub(crate) node: Node,
    pub(crate) outside: Outside,
    pub(crate) peers: Peers,
    pub(crate) totals: Totals,
    reports: ErrorReports,
}

impl Round {
    pub(crate) fn new(node: Node, outside: Outside, totals: Totals) -> Round {
        Round {
            number: 0,
            peers: Peers::new(node.shared.as_deref(), &node.name),
            node,
            outside,
            totals,
            reports: ErrorReports::default(),
        }
    }

    pub(crate) fn reload(&mut self, node: Node) {
        self.peers = Peers::new(node.shared.as_deref(), &node.name);
        self.outside.sampler.reload(&node);
        self.node = node;
    }

    pub(crate) fn begin(&mut self) {
        self.number += 1;
        self.totals.rounds += 1;
    }

    /// Whether what is done once in so many rounds is due, from the first round on.
    pub(crate) fn is_each(&self, rounds: u64) -> bool {
        self.number % rounds == 1
    }

    pub(crate) fn now(&self) -> BootTime {
        self.outside.clock.now()
    }

    pub(crate) fn settings(&self) -> &Reaper {
        &self.node.config.reaper
    }

    pub(crate) fn interval(&self) -> Duration {
        self.settings().interval
    }

    /// Whether the work since `began` takes so long that the next samples must not wait for the rest of it.
    pub(crate) fn is_late(&self, began: BootTime) -> bool {
        self.now().since(began) > self.interval() / 2
    }

    pub(crate) fn has_error(&self, topic: &str) -> bool {
        self.reports.has_error(topic)
    }

    /// Logs an error when it begins or changes, and its end.
    pub(crate) fn report<T>(&mut self, topic: &'static str, result: Result<T, impl Display>) {
        self.reports.report(&self.outside.log, topic, result);
    }

    /// Reports and counts an answer of Slurm. None after an error.
    pub(crate) fn answer<T, E: Display>(&mut self, answer: Result<T, E>) -> Option<T> {
        self.totals.slurm_errors += u64::from(answer.is_err());
        self.report(topic::SLURM, answer.as_ref());
        answer.ok()
    }
}
