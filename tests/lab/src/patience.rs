//! Waits for a condition. A deadline is for processes that hang, not for slow ones.

use std::time::{Duration, Instant};

/// The factor by which a wait may exceed its limit. A limit is the time on an idle machine; a machine that builds and
/// runs other labs needs several times as long.
const STRETCH: u32 = 5;

/// The longest pause between two probes. A probe starts a command of Slurm, so slow conditions are not checked fifty
/// times a second.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// The longest pause as a part of the time waited so far.
const STEP_PART: u32 = 8;

/// The time budget of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    limit: Duration,
    since: Instant,
}

impl Patience {
    /// Starts a wait for a condition that becomes true within `limit` on an idle machine.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: Instant::now(),
        }
    }

    /// The remaining time.
    pub fn left(&self) -> Duration {
        (self.limit * STRETCH).saturating_sub(self.since.elapsed())
    }

    /// The pause before the next probe, at least `step`.
    fn pause(&self, step: Duration) -> Duration {
        let grown = self.since.elapsed() / STEP_PART;
        grown.min(LONGEST_STEP).max(step)
    }

    /// Whether the time is over, so that the process counts as hanging.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// The whole time, for messages.
    pub fn most(&self) -> Duration {
        self.limit * STRETCH
    }

    /// The condition is true; prints a line if that took longer than the limit.
    pub fn end(self, what: &str) {
        if self.since.elapsed() > self.limit {
            println!(
                "lab: slow: {what} took {:.1} s",
                self.since.elapsed().as_secs_f64()
            );
        }
    }
}

/// Polls until `probe` returns something or fails; None when the time is over.
pub(crate) fn poll<T, E>(
    what: &str,
    limit: Duration,
    step: Duration,
    mut probe: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let patience = Patience::new(limit);
    loop {
        let asked = Instant::now();
        if let Some(found) = probe()? {
            patience.end(what);
            return Ok(Some(found));
        }
        if patience.is_over() {
            return Ok(None);
        }
        // On a busy machine the probes of all labs would be much of what makes it busy.
        std::thread::sleep(patience.pause(step.max(asked.elapsed())));
    }
}

/// Polls until `probe` is true; returns false when the time is over.
pub(crate) fn poll_until(
    what: &str,
    limit: Duration,
    step: Duration,
    mut probe: impl FnMut() -> bool,
) -> bool {
    let found = poll(what, limit, step, || {
        Ok::<_, std::convert::Infallible>(probe().then_some(()))
    });
    matches!(found, Ok(Some(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    #[test]
    fn a_condition_slower_than_its_limit_is_still_awaited() {
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        let slow = || begun.elapsed() > limit * 2;
        assert!(poll_until("something slow", limit, STEP, slow));
    }

    #[test]
    fn a_condition_that_never_holds_is_awaited_until_the_deadline() {
        let begun = Instant::now();
        let limit = Duration::from_millis(20);
        assert!(!poll_until("nothing", limit, STEP, || false));
        assert!(begun.elapsed() >= limit * STRETCH);
    }

    #[test]
    fn a_failing_probe_ends_the_wait() {
        let limit = Duration::from_secs(3600);
        let failed: Result<Option<()>, &str> = poll("nothing", limit, STEP, || Err("broken"));
        assert_eq!(failed, Err("broken"));
    }
}
