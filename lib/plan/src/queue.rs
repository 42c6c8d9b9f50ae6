//! Plays jobs on a cluster as Slurm queues them: in the order of priority, with backfill. Jobs that Slurm would start
//! in a moment start at once; nodes are chosen as Slurm chooses.
//!
//! As in Slurm, a job that cannot start stops the jobs after it that share its nodes, and backfill starts those that do
//! not delay the planned start of a job before them; such a plan holds a whole node, and counts with time limits. A job
//! that a limit of its account or QOS holds back stops no other job.

mod backfill;
mod limits;
mod nodes;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cluster::Partition;
use crate::place::{Fleet, PlacedSlice, Request};
use crate::speed::Curve;
use limits::Ledger;
use waiting::{Waiting, Walk};

pub use limits::{Class, Rule};

/// A job to play.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// When it could start: seconds.
    pub submit: u64,
    /// How long it runs on a whole GPU: seconds.
    pub ran: u64,
    /// Its time limit in seconds; None for that of its partition.
    pub limit: Option<u64>,
    /// The partition: an index into those of the play.
    pub partition: usize,
    /// Jobs with a higher priority start first.
    pub priority: u64,
    /// Units of each slice: 100 are a GPU.
    pub units: u32,
    /// Slices on each node.
    pub count: u32,
    /// CPUs on each node; 0 where they are not known.
    pub cpus: u32,
    /// Memory on each node in MiB; 0 where it is not known.
    pub memory: u32,
    pub nodes: u32,
    /// Part of its time in which the GPU works.
    pub activity: f64,
    /// The part of a GPU on which it ran as long as `ran` says.
    pub share: f64,
    /// Where its workload is on the curve of speeds.
    pub quantile: f64,
    /// Its limits: an index into the classes of the play; without limits where there is no such class.
    pub class: u32,
}

impl Work {
    /// What it asks for on each node.
    fn request(&self) -> Request {
        Request {
            units: self.units,
            count: self.count,
            cpus: self.cpus,
            memory: self.memory,
        }
    }
}

/// How Slurm is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `bf_interval`: seconds between two rounds of backfill.
    pub interval: u64,
    /// `bf_window`: plans reach so far: seconds.
    pub window: u64,
    /// `bf_max_job_test`: jobs that a round looks at.
    pub depth: usize,
    /// `default_queue_depth`: jobs that are looked at when a job ends or comes.
    pub first: usize,
    /// Time limit of jobs without one: seconds.
    pub limit: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval: 30,
            window: 86_400,
            depth: 500,
            first: 100,
            limit: 365 * 86_400,
        }
    }
}

/// The most tests of a node by plans of one round: on large clusters fewer jobs are planned ahead.
const MOST_TESTS: usize = 75_000;

/// A run of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// When it started: seconds.
    pub start: u64,
    /// When it ended: seconds.
    pub end: u64,
    /// By how much its time grew.
    pub factor: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The run of each job; None where the cluster can never start it.
    pub runs: Vec<Option<Run>>,
    /// Times, and the units that were in use from then on.
    pub used: Vec<(u64, u64)>,
    /// Jobs that the cluster can never start, or their limits.
    pub refused: usize,
    /// Those of them that their limits can never start.
    pub barred: usize,
}

/// A slice that runs, for plans: when it ends at the latest.
#[derive(Clone, Copy, Debug)]
struct Running {
    job: u32,
    latest: u64,
    held: PlacedSlice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(u32),
    Submit(u32),
    Backfill,
}

/// A cluster at work.
pub struct Play<'a> {
    work: &'a [Work],
    partitions: &'a [Partition],
    curve: &'a Curve,
    settings: Settings,
    fleet: Fleet,
    /// Slices of each node.
    running: Vec<Vec<Running>>,
    /// Slices of each job.
    held: Vec<Vec<PlacedSlice>>,
    waiting: Waiting,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    plans: backfill::Plans,
    ledger: Ledger<'a>,
    outcome: Outcome,
    has_round: bool,
    changed: bool,
}

impl<'a> Play<'a> {
    /// Plays all jobs to their end. `classes`: the limits of accounts and QOS.
    pub fn run(
        work: &'a [Work],
        partitions: &'a [Partition],
        classes: &'a [Class],
        fleet: Fleet,
        curve: &'a Curve,
        settings: Settings,
    ) -> Outcome {
        let ledger = Ledger::new(work, classes);
        let mut play = Play {
            work,
            partitions,
            curve,
            settings,
            running: vec![Vec::new(); fleet.nodes()],
            held: vec![Vec::new(); work.len()],
            waiting: Waiting::new(&ledger),
            ledger,
            events: BinaryHeap::with_capacity(work.len() + 2),
            plans: backfill::Plans::new(work, fleet.nodes()),
            outcome: Outcome {
                runs: vec![None; work.len()],
                ..Outcome::default()
            },
            fleet,
            has_round: false,
            changed: false,
        };
        play.admit();
        play.all();
        play.outcome
    }

    /// Puts the jobs that the empty cluster can start among the events.
    fn admit(&mut self) {
        let mut known = std::collections::HashMap::new();
        for (number, job) in self.work.iter().enumerate() {
            if self.ledger.bars(job) {
                self.outcome.barred += 1;
                self.outcome.refused += 1;
                continue;
            }
            let key = (job.partition, job.request(), job.nodes);
            let can = *known.entry(key).or_insert_with(|| {
                let nodes = &self.partitions[job.partition].nodes;
                let mut fitting = nodes
                    .iter()
                    .filter(|node| self.fleet.has_room(**node, job.request()));
                job.nodes > 0 && fitting.nth(job.nodes as usize - 1).is_some()
            });
            if can {
                self.events
                    .push(Reverse((job.submit, Event::Submit(number as u32))))
            } else {
                self.outcome.refused += 1
            }
        }
    }

    fn all(&mut self) {
        while let Some(Reverse((now, event))) = self.events.pop() {
            let mut is_round = false;
            let mut next = Some(event);
            while let Some(event) = next {
                match event {
                    Event::End(job) => self.end(job),
                    Event::Submit(job) => self.submit(job),
                    Event::Backfill => is_round = true,
                }
                let is_now = |Reverse((time, _)): &Reverse<(u64, Event)>| *time == now;
                next = if self.events.peek().is_some_and(is_now) {
                    self.events.pop().map(|Reverse((_, event))| event)
                } else {
                    None
                };
            }
            if self.changed {
                self.in_order(now);
            }
            if is_round {
                self.has_round = false;
                if std::mem::take(&mut self.changed) {
                    self.backfill(now);
                }
            }
            if !self.has_round && self.changed && !self.waiting.is_empty() {
                self.has_round = true;
                self.events
                    .push(Reverse((now + self.settings.interval, Event::Backfill)));
            }
            let used = self.fleet.used_units();
            if self
                .outcome
                .used
                .last()
                .is_none_or(|(_, before)| *before != used)
            {
                self.outcome.used.push((now, used));
            }
        }
    }

    fn end(&mut self, job: u32) {
        for held in std::mem::take(&mut self.held[job as usize]) {
            let node = held.node as usize;
            self.running[node].retain(|running| running.job != job);
            self.fleet.give_back(&held);
            self.plans.node_changed(node);
        }
        self.ledger.end(job);
        self.changed = true;
    }

    fn submit(&mut self, job: u32) {
        let one = &self.work[job as usize];
        let tier = self.partitions[one.partition].tier;
        let rank = (Reverse(tier), Reverse(one.priority), one.submit, job);
        self.waiting.insert(rank, self.ledger.claim(job));
        self.changed = true;
    }

    /// Starts the first jobs, up to those that cannot start: these keep their nodes from the jobs after them.
    fn in_order(&mut self, now: u64) {
        let mut blocked_nodes: Vec<bool> = Vec::new();
        let mut blocked = vec![false; self.partitions.len()];
        let mut started = Vec::new();
        let mut walk = Walk::new(&self.waiting, &mut self.ledger);
        for _ in 0..self.settings.first {
            let Some((job, place)) = walk.next(&self.waiting, &mut self.ledger) else {
                break;
            };
            let partition = self.work[job as usize].partition;
            if blocked[partition] {
                continue;
            }
            let is_free = |node: usize| !blocked_nodes.get(node).copied().unwrap_or(false);
            if let Some(nodes) = self.choose(job, is_free) {
                self.start(job, &nodes, now);
                started.push(place);
                continue;
            }
            blocked[partition] = true;
            blocked_nodes.resize(self.fleet.nodes(), false);
            for node in &self.partitions[partition].nodes {
                blocked_nodes[*node] = true;
            }
            if blocked.iter().all(|it| *it) || blocked_nodes.iter().all(|it| *it) {
                break;
            }
        }
        self.waiting.remove(started);
    }

    /// Nodes of the job's partition with room, as [`nodes::choose`] takes them.
    fn choose(&self, job: u32, is_free: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let job = &self.work[job as usize];
        let nodes = self.partitions[job.partition].nodes.iter().copied();
        let request = job.request();
        let fitting = nodes.filter(|node| self.fleet.has_room(*node, request) && is_free(*node));
        let rooms = fitting.map(|node| nodes::Room {
            node,
            size: self.fleet.room(node, request),
        });
        nodes::choose(rooms, job.nodes as usize)
    }

    fn start(&mut self, number: u32, nodes: &[usize], now: u64) {
        let job = &self.work[number as usize];
        let mut held = Vec::new();
        for node in nodes {
            held.extend(self.fleet.take(*node, job.request()).unwrap_or_default());
            self.plans.node_changed(*node);
        }
        let least = held.iter().map(|one| one.compute).fold(1.0, f64::min);
        let part = (least / job.share.max(0.001)).min(1.0);
        let factor = self.curve.factor(part, job.activity, job.quantile);
        let length = (job.ran as f64 * factor).round() as u64;
        let end = now + length;
        // A job that its piece slows gets as much more time.
        let latest = end.max(now + (self.limit(number) as f64 * factor) as u64);
        for one in &held {
            self.running[one.node as usize].push(Running {
                job: number,
                latest,
                held: *one,
            });
        }
        self.held[number as usize] = held;
        self.ledger.start(number);
        self.outcome.runs[number as usize] = Some(Run {
            start: now,
            end,
            factor,
        });
        self.events.push(Reverse((end, Event::End(number))));
    }

    /// The time limit of a job in seconds.
    fn limit(&self, job: u32) -> u64 {
        let job = &self.work[job as usize];
        let partition = self.partitions[job.partition].limit;
        let limit = job.limit.or(partition).unwrap_or(self.settings.limit);
        limit.max(1)
    }
}
