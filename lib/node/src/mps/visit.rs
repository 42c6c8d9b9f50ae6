//! Time limits of questions to a control daemon. Any of its users can slow it down or keep it from answering while
//! the GPU is locked. So all questions of one visit have one limit, and a daemon that did not answer once is not
//! asked again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer a command, or to start. A healthy one takes milliseconds.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The time limit of all answers of one visit.
const VISIT_LIMIT: Duration = Duration::from_secs(6);
/// How long other visits do not ask a silent daemon: a job may have many slices, each with its own visit.
const MEMORY: Duration = Duration::from_secs(10);

/// The daemons that did not answer recently, by folder.
#[derive(Debug, Default)]
pub struct Silences(Mutex<BTreeMap<PathBuf, Instant>>);

impl Silences {
    fn of_late(&self, folder: &Path) -> bool {
        let noted = self.noted();
        noted
            .get(folder)
            .is_some_and(|since| since.elapsed() < MEMORY)
    }

    fn noted(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One visit to the daemon of a folder.
#[derive(Debug)]
pub(super) struct Visit {
    folder: PathBuf,
    silences: Arc<Silences>,
    began: Cell<Option<Instant>>,
    over: Cell<bool>,
}

impl Visit {
    pub fn to(folder: &Path, silences: &Arc<Silences>) -> Visit {
        Visit {
            folder: folder.to_owned(),
            silences: silences.clone(),
            began: Cell::new(None),
            over: Cell::new(silences.of_late(folder)),
        }
    }

    /// The time limit of the next answer; None if nothing more may be asked.
    pub fn patience(&self) -> Option<Duration> {
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        let left = VISIT_LIMIT.saturating_sub(began.elapsed());
        (!self.is_over() && !left.is_zero()).then(|| left.min(ANSWER_LIMIT))
    }

    /// Whether the daemon did not answer, so that it can only be ended by signals.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Records that the daemon did not answer in time.
    pub fn end(&self) {
        self.over.set(true);
        let mut noted = self.silences.noted();
        noted.insert(self.folder.clone(), Instant::now());
    }

    /// Allows further questions in the remaining time, because the cause of the silence may be gone.
    pub fn resume(&self) {
        self.over.set(false);
        self.silences.noted().remove(&self.folder);
    }

    /// Another daemon runs in the folder now.
    pub fn restart(&self) {
        self.resume();
        self.began.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_daemon_is_asked_by_no_other_visit() {
        let silences = Arc::new(Silences::default());
        let folder = Path::new("/run/gpufrac/mps/gpu0");
        let first = Visit::to(folder, &silences);
        assert_eq!(first.patience(), Some(ANSWER_LIMIT));
        first.end();
        assert_eq!(first.patience(), None);
        assert!(Visit::to(folder, &silences).is_over());
        assert!(!Visit::to(Path::new("/run/gpufrac/mps/gpu1"), &silences).is_over());
        first.resume();
        assert!(first.patience().is_some());
        assert!(!Visit::to(folder, &silences).is_over());
    }

    #[test]
    fn a_visit_has_one_limit_for_all_answers() {
        let visit = Visit::to(Path::new("/x"), &Arc::new(Silences::default()));
        visit.patience();
        let long_ago = Instant::now().checked_sub(VISIT_LIMIT);
        visit.began.set(long_ago);
        assert_eq!(visit.patience(), None);
        // The new daemon has the whole time.
        visit.restart();
        assert_eq!(visit.patience(), Some(ANSWER_LIMIT));
    }
}
