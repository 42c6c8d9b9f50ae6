//! Runs cases in parallel, because tests that compute need cores and tests that wait do not.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use super::case::{Case, Load, Outcome};

/// The number of threads for tests that wait, for each core.
const WAITING_PER_CORE: usize = 6;

/// Of those the number that help with tests that compute when no other is left: these wait for a part of their time.
const HELPING_PER_CORE: usize = 2;

/// The kinds of cases that a thread takes: the next only where none of those before is left.
type Kinds = &'static [Load];

const COMPUTES: Kinds = &[Load::Computes];
const WAITS: Kinds = &[Load::Waits];
/// The last tests that wait would otherwise leave cores idle.
const WAITS_FIRST: Kinds = &[Load::Waits, Load::Computes];

/// The cases that wait for a thread.
pub(crate) struct Pool {
    computing: Mutex<VecDeque<Case>>,
    waiting: Mutex<VecDeque<Case>>,
}

/// The kinds of each thread on this machine.
pub(crate) fn threads() -> Vec<Kinds> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![COMPUTES; cores];
    threads.extend(vec![WAITS_FIRST; cores * HELPING_PER_CORE]);
    threads.extend(vec![WAITS; cores * (WAITING_PER_CORE - HELPING_PER_CORE)]);
    threads
}

impl Pool {
    /// A pool of these cases, in this order.
    pub fn new(cases: Vec<Case>) -> Self {
        let (computing, waiting) = cases
            .into_iter()
            .partition(|case| case.load == Load::Computes);
        Self {
            computing: Mutex::new(computing),
            waiting: Mutex::new(waiting),
        }
    }

    /// The work of a thread: runs cases of its kinds until none is left.
    pub fn work(&self, kinds: Kinds, outcomes: &Sender<Outcome>) {
        while let Some(case) = kinds.iter().find_map(|kind| self.next(*kind)) {
            // If the run was aborted, no thread receives outcomes.
            if outcomes.send(case.run()).is_err() {
                return;
            }
        }
    }

    fn next(&self, kind: Load) -> Option<Case> {
        let queue = match kind {
            Load::Computes => &self.computing,
            Load::Waits => &self.waiting,
        };
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::case::Verdict;
    use super::super::case::tests::outcome;
    use super::*;

    #[test]
    fn each_case_is_run_once_and_threads_end() {
        for threads in [vec![COMPUTES, WAITS, WAITS], vec![WAITS_FIRST]] {
            run(&threads);
        }
    }

    fn run(threads: &[Kinds]) {
        let (sender, receiver) = channel();
        let name = "suite::case::tests::the_times_of_labs_are_added";
        let case = |load| Case {
            load,
            ..outcome(name, None, Verdict::Passed).case
        };
        let pool = Pool::new(vec![
            case(Load::Waits),
            case(Load::Computes),
            case(Load::Waits),
        ]);
        std::thread::scope(|scope| {
            for &kinds in threads {
                let (pool, sender) = (&pool, sender.clone());
                scope.spawn(move || pool.work(kinds, &sender));
            }
            drop(sender);
        });
        let verdicts: Vec<Verdict> = receiver.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Passed; 3]);
    }
}
