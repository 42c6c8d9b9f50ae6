//! Limits of accounts and QOS while jobs run: what is in use, and which jobs wait for it.
//!
//! As in Slurm (`acct_policy.c`), a job that a limit holds back keeps no node from the jobs after it, and backfill
//! plans no start for it.

use super::Work;

/// The limits of jobs with the same owner. The default has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// What its jobs use while they run.
    pub rules: Vec<Rule>,
    /// The most units of a job; 100 are a GPU.
    pub job_units: u64,
    /// The most units of a job on a node.
    pub node_units: u64,
    /// The most nodes of a job.
    pub nodes: u64,
}

/// A count that a job adds to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The count: an index into those of the play.
    pub count: u32,
    /// Whether it is of jobs; else of units.
    pub is_jobs: bool,
    /// The job starts only if the count stays at or below this; [`u64::MAX`] where another limit comes first.
    pub most: u64,
}

impl Default for Class {
    fn default() -> Class {
        Class {
            rules: Vec::new(),
            job_units: u64::MAX,
            node_units: u64::MAX,
            nodes: u64::MAX,
        }
    }
}

impl Class {
    /// Whether a job could never start, even alone.
    fn bars(&self, job: &Work) -> bool {
        let node_units = u64::from(job.units) * u64::from(job.count);
        let units = node_units * u64::from(job.nodes);
        let amount = |rule: &Rule| if rule.is_jobs { 1 } else { units };
        units > self.job_units
            || node_units > self.node_units
            || u64::from(job.nodes) > self.nodes
            || self.rules.iter().any(|rule| amount(rule) > rule.most)
    }
}

/// The counts of a play.
pub(super) struct Ledger<'a> {
    classes: &'a [Class],
    /// Class and units of each job; empty without limits, so that a play without them does no work for them.
    claims: Vec<(u32, u64)>,
    used: Vec<u64>,
    /// By class: the change of the counts for which the room holds, and the most units that a job may have to start
    /// now.
    room: Vec<(u64, u64)>,
    changes: u64,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(work: &[Work], classes: &'a [Class]) -> Ledger<'a> {
        let is_limited = classes.iter().any(|class| !class.rules.is_empty());
        let rules = classes.iter().flat_map(|class| &class.rules);
        let counts = rules.map(|rule| rule.count as usize + 1).max();
        let claim = |job: &Work| {
            let units = u64::from(job.units) * u64::from(job.count) * u64::from(job.nodes);
            (job.class, units)
        };
        Ledger {
            classes,
            claims: if is_limited { work.iter().map(claim).collect() } else { Vec::new() },
            used: vec![0; counts.unwrap_or(0)],
            room: vec![(0, 0); classes.len()],
            changes: 1,
        }
    }

    /// Whether a job can never start.
    pub(super) fn bars(&self, job: &Work) -> bool {
        let class = self.classes.get(job.class as usize);
        class.is_some_and(|class| class.bars(job))
    }

    /// Number of classes of jobs.
    pub(super) fn classes(&self) -> usize {
        let classes = self.claims.iter().map(|(class, _)| *class as usize + 1);
        classes.max().unwrap_or(1)
    }

    /// Class and units of a job; zeros where there are no limits.
    pub(super) fn claim(&self, job: u32) -> (u32, u64) {
        self.claims.get(job as usize).copied().unwrap_or_default()
    }

    /// The most units that a job of a class may have to start now. Jobs with more wait for a limit.
    pub(super) fn room(&mut self, class: u32) -> u64 {
        let Some((known, room)) = self.room.get_mut(class as usize) else {
            return u64::MAX;
        };
        if *known != self.changes {
            let used = &self.used;
            let left = |rule: &Rule| {
                let left = rule.most.saturating_sub(used[rule.count as usize]);
                match (rule.is_jobs, left) {
                    (true, 1..) => u64::MAX,
                    _ => left,
                }
            };
            let rules = &self.classes[class as usize].rules;
            (*known, *room) = (
                self.changes,
                rules.iter().map(left).min().unwrap_or(u64::MAX),
            );
        }
        *room
    }

    pub(super) fn start(&mut self, job: u32) {
        self.add(job, u64::saturating_add);
    }

    pub(super) fn end(&mut self, job: u32) {
        self.add(job, u64::saturating_sub);
    }

    fn add(&mut self, job: u32, change: fn(u64, u64) -> u64) {
        let Some(&(class, units)) = self.claims.get(job as usize) else {
            return;
        };
        let Some(class) = self.classes.get(class as usize) else {
            return;
        };
        for rule in &class.rules {
            let used = &mut self.used[rule.count as usize];
            *used = change(*used, if rule.is_jobs { 1 } else { units });
        }
        self.changes += 1;
    }
}
