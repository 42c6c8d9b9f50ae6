//! Cases side by side: threads of two kinds, as tests that compute need cores and tests that wait do not.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::case::{Case, Load, Outcome};

/// So many tests that wait run for each core.
const WAITING_PER_CORE: usize = 4;

/// The cases that wait for a thread.
#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    computing: VecDeque<Case>,
    waiting: VecDeque<Case>,
    is_complete: bool,
}

impl State {
    fn queue(&mut self, load: Load) -> &mut VecDeque<Case> {
        match load {
            Load::Computes => &mut self.computing,
            Load::Waits => &mut self.waiting,
        }
    }
}

/// How many threads there are of each kind on this machine.
pub(crate) fn threads() -> Vec<Load> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![Load::Computes; cores];
    threads.extend(vec![Load::Waits; cores * WAITING_PER_CORE]);
    threads
}

impl Pool {
    /// Adds cases behind those that are there.
    pub fn add(&self, cases: Vec<Case>) {
        let mut state = self.lock();
        for case in cases {
            state.queue(case.load).push_back(case);
        }
        self.changed.notify_all();
    }

    /// No more cases come: threads end when they find none.
    pub fn complete(&self) {
        self.lock().is_complete = true;
        self.changed.notify_all();
    }

    /// Drops the cases that wait.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.computing.clear();
        state.waiting.clear();
    }

    /// A thread's work: runs cases of its kind until there are no more.
    pub fn work(&self, load: Load, outcomes: &Sender<Outcome>) {
        while let Some(case) = self.next(load) {
            // Nobody listens to a run that is given up.
            if outcomes.send(case.run()).is_err() {
                return;
            }
        }
    }

    fn next(&self, load: Load) -> Option<Case> {
        let mut state = self.lock();
        loop {
            if let Some(case) = state.queue(load).pop_front() {
                return Some(case);
            }
            if state.is_complete {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::suite::case::Verdict;
    use crate::suite::case::tests::outcome;

    #[test]
    fn each_case_is_run_once_and_threads_end() {
        let pool = Pool::default();
        let (sender, receiver) = channel();
        let name = "suite::case::tests::the_times_of_labs_are_added";
        let case = |load| Case {
            load,
            ..outcome(name, None, Verdict::Passed).case
        };
        std::thread::scope(|scope| {
            for load in [Load::Computes, Load::Waits, Load::Waits] {
                let (pool, sender) = (&pool, sender.clone());
                scope.spawn(move || pool.work(load, &sender));
            }
            drop(sender);
            pool.add(vec![
                case(Load::Waits),
                case(Load::Computes),
                case(Load::Waits),
            ]);
            pool.complete();
        });
        let verdicts: Vec<Verdict> = receiver.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Passed; 3]);
    }
}
