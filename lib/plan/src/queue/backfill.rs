//! Backfill: jobs start out of order where they delay no planned start of a job before them.

use std::collections::HashMap;

use super::{MOST_TESTS, Play, Walk, Work};
use crate::place::{PlacedSlice, Request};

/// When nodes are ready for each kind of request, and the plans of a round.
pub(super) struct Plans {
    /// Kind of request of each job: its place among the requests.
    kinds: Vec<u32>,
    requests: Vec<Request>,
    /// By node and kind: the version of the node for which the time holds, and the time.
    ready: Vec<Vec<(u32, u64)>>,
    versions: Vec<u32>,
    /// Times for which each node is planned in this round.
    planned: Vec<Vec<(u64, u64)>>,
    touched: Vec<usize>,
}

impl Plans {
    pub(super) fn new(work: &[Work], nodes: usize) -> Plans {
        let mut numbers: HashMap<Request, u32> = HashMap::new();
        let mut requests = Vec::new();
        let mut kinds = Vec::with_capacity(work.len());
        for job in work {
            let kind = *numbers.entry(job.request()).or_insert_with(|| {
                requests.push(job.request());
                (requests.len() - 1) as u32
            });
            kinds.push(kind);
        }
        Plans {
            ready: vec![vec![(u32::MAX, 0); requests.len()]; nodes],
            kinds,
            requests,
            versions: vec![0; nodes],
            planned: vec![Vec::new(); nodes],
            touched: Vec::new(),
        }
    }

    pub(super) fn node_changed(&mut self, node: usize) {
        self.versions[node] = self.versions[node].wrapping_add(1) & 0x7fff_ffff;
    }

    fn is_free(&self, node: usize, from: u64, until: u64) -> bool {
        self.planned[node]
            .iter()
            .all(|(start, end)| until <= *start || *end <= from)
    }

    /// The first time from `from` on at which the node has no plan for `length`.
    fn after_plans(&self, node: usize, mut from: u64, length: u64) -> u64 {
        loop {
            let until = from.saturating_add(length);
            let mut plans = self.planned[node].iter();
            match plans.find(|(start, end)| from < *end && *start < until) {
                Some((_, end)) => from = *end,
                None => return from,
            }
        }
    }

    fn plan(&mut self, node: usize, from: u64, until: u64) {
        if self.planned[node].is_empty() {
            self.touched.push(node);
        }
        self.planned[node].push((from, until));
    }

    fn clear(&mut self) {
        for node in self.touched.drain(..) {
            self.planned[node].clear();
        }
    }
}

impl Play<'_> {
    /// A round of backfill.
    pub(super) fn backfill(&mut self, now: u64) {
        self.plans.clear();
        let mut plans_left = (MOST_TESTS / self.fleet.nodes().max(1)).clamp(1, self.settings.depth);
        // The shortest limit with which a request could not start in this round: a longer one cannot either.
        let mut failed: HashMap<(usize, u32, u32), u64> = HashMap::new();
        let mut started = Vec::new();
        let mut walk = Walk::new(&self.waiting, &mut self.ledger);
        for _ in 0..self.settings.depth {
            let Some((job, place)) = walk.next(&self.waiting, &mut self.ledger) else {
                break;
            };
            let own = &self.work[job as usize];
            let limit = self.limit(job);
            let key = (own.partition, self.plans.kinds[job as usize], own.nodes);
            let may = failed.get(&key).is_none_or(|shortest| limit < *shortest);
            let until = now.saturating_add(limit);
            let chosen = if may {
                self.choose(job, |node| self.plans.is_free(node, now, until))
            } else {
                None
            };
            if let Some(nodes) = chosen {
                self.start(job, &nodes, now);
                started.push(place);
                continue;
            }
            failed
                .entry(key)
                .and_modify(|shortest| *shortest = limit.min(*shortest))
                .or_insert(limit);
            if plans_left > 0 {
                plans_left -= 1;
                self.plan(job, now, limit);
            }
        }
        self.waiting.remove(started);
    }

    /// Plans the earliest start of a job, and keeps its nodes for it.
    fn plan(&mut self, job: u32, now: u64, limit: u64) {
        let own = &self.work[job as usize];
        let kind = self.plans.kinds[job as usize] as usize;
        let mut times: Vec<(u64, usize)> = Vec::new();
        let partitions = self.partitions;
        for node in &partitions[own.partition].nodes {
            let ready = self.ready(*node, kind).max(now);
            if ready <= now + self.settings.window {
                times.push((self.plans.after_plans(*node, ready, limit), *node));
            }
        }
        let wanted = own.nodes as usize;
        if times.len() < wanted {
            return;
        }
        let (sooner, (start, last), _) = times.select_nth_unstable(wanted - 1);
        let (start, last) = (*start, *last);
        if start > now + self.settings.window {
            return;
        }
        let nodes: Vec<usize> = sooner.iter().map(|(_, node)| *node).chain([last]).collect();
        for node in nodes {
            self.plans.plan(node, start, start.saturating_add(limit));
        }
    }

    /// When a node has room for a kind of request, by the time limits of its jobs.
    fn ready(&mut self, node: usize, kind: usize) -> u64 {
        let version = self.plans.versions[node];
        let (known, time) = self.plans.ready[node][kind];
        if known == version {
            return time;
        }
        let request = self.plans.requests[kind];
        let time = if self.fleet.has_room(node, request) {
            0
        } else {
            self.running[node].sort_unstable_by_key(|running| running.latest);
            let running = &self.running[node];
            let ends: Vec<&PlacedSlice> = running.iter().map(|running| &running.held).collect();
            let first = self.fleet.ready_after(node, request, &ends);
            first.map_or(u64::MAX, |number| running[number].latest)
        };
        self.plans.ready[node][kind] = (version, time);
        time
    }
}
