//! Waiting jobs in the order of their priority. Jobs that a limit holds back are passed over together, however many
//! they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::limits::Ledger;

/// The place of a job in the queue: tier of its partition, priority, submission, number.
pub(super) type Rank = (Reverse<u32>, Reverse<u64>, u64, u32);

/// Where a job waits: its class, its units, and its place among the jobs with both.
type QueuePosition = (u32, u64, usize);

/// The jobs that wait.
pub(super) struct Waiting {
    /// By class, and by units: in the order of their ranks.
    classes: Vec<BTreeMap<u64, Vec<Rank>>>,
    count: usize,
}

impl Waiting {
    pub(super) fn new(ledger: &Ledger<'_>) -> Waiting {
        Waiting {
            classes: vec![BTreeMap::new(); ledger.classes()],
            count: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn insert(&mut self, rank: Rank, (class, units): (u32, u64)) {
        let queue = self.classes[class as usize].entry(units).or_default();
        let at = queue.partition_point(|other| *other < rank);
        queue.insert(at, rank);
        self.count += 1;
    }

    /// Takes away the jobs that a walk over an unchanged queue found at these places.
    pub(super) fn remove(&mut self, mut places: Vec<QueuePosition>) {
        // From the end: the other places stay as they are.
        places.sort_unstable_by(|one, other| other.cmp(one));
        for (class, units, at) in places {
            let queues = &mut self.classes[class as usize];
            if let Some(queue) = queues.get_mut(&units) {
                queue.remove(at);
                self.count -= 1;
                if queue.is_empty() {
                    queues.remove(&units);
                }
            }
        }
    }
}

/// A walk over the jobs that no limit holds back, in the order of their ranks.
pub(super) struct Walk {
    /// The next job of each class and size.
    heads: BinaryHeap<Reverse<(Rank, QueuePosition)>>,
}

impl Walk {
    pub(super) fn new(waiting: &Waiting, ledger: &mut Ledger<'_>) -> Walk {
        let mut heads = BinaryHeap::new();
        for (class, queues) in waiting.classes.iter().enumerate() {
            if queues.is_empty() {
                continue;
            }
            let class = u32::try_from(class).unwrap_or(u32::MAX);
            for (units, queue) in queues.range(..=ledger.room(class)) {
                let head = queue.first().map(|rank| (*rank, (class, *units, 0)));
                heads.extend(head.map(Reverse));
            }
        }
        Walk { heads }
    }

    /// The next job. Jobs that started meanwhile count, so that those behind them may be held back now.
    pub(super) fn next(
        &mut self,
        waiting: &Waiting,
        ledger: &mut Ledger<'_>,
    ) -> Option<(u32, QueuePosition)> {
        while let Some(Reverse((rank, place))) = self.heads.pop() {
            let (class, units, at) = place;
            if units > ledger.room(class) {
                continue;
            }
            let queue = waiting.classes[class as usize].get(&units)?;
            if let Some(next) = queue.get(at + 1) {
                self.heads.push(Reverse((*next, (class, units, at + 1))));
            }
            return Some((rank.3, place));
        }
        None
    }
}
