//! The times of a lab: start, life, and the waits of its user.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The times of one lab. Several threads may wait at once; their times add up.
#[derive(Debug)]
pub(crate) struct Times {
    begun: Instant,
    started: OnceLock<Duration>,
    waited_ms: AtomicU64,
}

impl Times {
    pub fn begin() -> Self {
        Self {
            begun: Instant::now(),
            started: OnceLock::new(),
            waited_ms: AtomicU64::new(0),
        }
    }

    /// Records that every node of the lab is ready.
    pub fn start_ends(&self) {
        self.started.get_or_init(|| self.begun.elapsed());
    }

    pub fn is_started(&self) -> bool {
        self.started.get().is_some()
    }

    /// Counts as waiting until the returned value is dropped. The start of the lab does not count.
    pub fn wait(&self) -> Waiting<'_> {
        Waiting {
            times: self.is_started().then_some(self),
            since: Instant::now(),
        }
    }
}

/// `lab: up 12.3 s, started in 2.1 s, waited 8.0 s`, for programs that read it.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = self.begun.elapsed();
        let started = self.started.get().copied().unwrap_or(up);
        let waited = Duration::from_millis(self.waited_ms.load(Ordering::Relaxed));
        write!(
            f,
            "lab: up {:.1} s, started in {:.1} s, waited {:.1} s",
            up.as_secs_f64(),
            started.as_secs_f64(),
            waited.as_secs_f64()
        )
    }
}

/// A wait for the lab, until it is dropped.
pub(crate) struct Waiting<'a> {
    times: Option<&'a Times>,
    since: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(times) = self.times {
            let waited = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            times.waited_ms.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_after_the_start_count() {
        let times = Times::begin();
        drop(times.wait());
        let line = times.to_string();
        assert!(line.starts_with("lab: up 0."), "{line}");
        assert!(line.ends_with("waited 0.0 s"), "{line}");
        times.start_ends();
        {
            let _waiting = times.wait();
            std::thread::sleep(Duration::from_millis(110));
        }
        let line = times.to_string();
        let (_, waited) = line.split_once("waited ").unwrap();
        let seconds: f64 = waited.trim_end_matches(" s").parse().unwrap();
        assert!(seconds >= 0.1, "{line}");
    }
}
